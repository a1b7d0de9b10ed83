"""One node of the drawing: CPUs above, PCIe switches, then GPUs and NICs in a row, NVLink below."""

from __future__ import annotations

import numpy as np

from commsim.explorer.drawing import Drawing, fault_place
from commsim.report.topology_shapes import FILL
from commsim.topology.graph import LinkKind, VertexKind

MOST_IN_ROW = 32
_SIZE = (42.0, 30.0)
_STEP, _RISE = 52.0, 74.0
_LEAVES = (VertexKind.GPU, VertexKind.NIC)


def inside(d: Drawing, node: int) -> None:
    """Draws a node of the machine."""
    t = d.topology
    first, last = (int(v) for v in t.node_first_vertex[[node, node + 1]])
    kinds = {v: VertexKind(int(t.vertex_kind[v])) for v in range(first, last)}
    near: dict[int, dict[int, LinkKind]] = {v: {} for v in kinds}
    mine = (t.link_src >= first) & (t.link_src < last) & (t.link_dst >= first) & (t.link_dst < last)
    for i in np.flatnonzero(mine).tolist():
        near[int(t.link_src[i])][int(t.link_dst[i])] = LinkKind(int(t.link_kind[i]))
    parent, order = _hung(kinds, near)
    leaves = [v for v in order if kinds[v] in _LEAVES]
    shown = leaves[:MOST_IN_ROW]
    depth = _place(d, kinds, parent, order, shown)
    switches = [v for v in kinds if kinds[v] == VertexKind.NVSWITCH]
    row_y = 26 + _RISE * depth
    gpus = [v for v in shown if kinds[v] == VertexKind.GPU]
    for k, v in enumerate(switches):
        d.place[v] = (d.width * (k + 0.5) / len(switches), row_y + _RISE)
    direct = sorted({(a, b) for a in gpus for b in gpus if a < b and near[a].get(b) == LinkKind.NVLINK})
    spans = [abs(d.place[a][0] - d.place[b][0]) for a, b in direct]
    d.height = row_y + (_RISE + 24 if switches else 26 + 0.25 * max(spans, default=0))
    many_hosts = sum(kind == VertexKind.HOST for kind in kinds.values()) > 2
    for a in sorted(d.place):
        for b, kind in sorted(near[a].items()):
            if not (a < b and b in d.place):
                continue
            bend = -_depth_of(d, a, b) if (a, b) in direct else 0.0
            if kind == LinkKind.HOST and many_hosts and abs(d.place[a][0] - d.place[b][0]) > 0.6 * d.width:
                bend = 20.0
            d.line(a, b, fault_place(t, a, b), bend, upright=switches == [b])
    for v, at in d.place.items():
        wide = (d.width - 20) / len(switches) if v in switches else _SIZE[0] if v in leaves else 64.0
        name = t.vertex_name[v].split(".", 1)[1]
        d.box(at, (wide, _SIZE[1]), name, FILL[kinds[v]], title=t.vertex_name[v])
    if len(leaves) > len(shown):
        d.box((d.width - 40, row_y + 26), (10, 14), f"and {len(leaves) - len(shown)} more", "none")


def _depth_of(d: Drawing, a: int, b: int) -> float:
    return 16 + 0.22 * abs(d.place[a][0] - d.place[b][0])


def _hung(kinds: dict[int, VertexKind], near: dict[int, dict[int, LinkKind]]) -> tuple[dict[int, int], list[int]]:
    """By vertex what it hangs from, nearest to a CPU; and all of them so that children follow their parents."""
    parent: dict[int, int] = {}
    hosts = [v for v in kinds if kinds[v] == VertexKind.HOST]
    seen, row = set(hosts), hosts
    while row:
        below = []
        for v in row:
            for w, kind in sorted(near[v].items()):
                if w not in seen and kind in (LinkKind.PCIE, LinkKind.C2C) and kinds[w] != VertexKind.NVSWITCH:
                    parent[w] = v
                    seen.add(w)
                    below.append(w)
        row = [v for v in below if kinds[v] not in _LEAVES]
    children: dict[int, list[int]] = {}
    for w, v in parent.items():
        children.setdefault(v, []).append(w)
    order: list[int] = []
    stack = [*reversed(hosts)]
    while stack:
        v = stack.pop()
        order.append(v)
        stack += reversed(children.get(v, []))
    return parent, order + [v for v in kinds if v not in seen and kinds[v] != VertexKind.NVSWITCH]


def _place(
    d: Drawing, kinds: dict[int, VertexKind], parent: dict[int, int], order: list[int], shown: list[int]
) -> int:  # fmt: skip
    """Places what is drawn, leaves in a row, others over the middle of what hangs below; returns the leaves' depth."""
    level: dict[int, int] = {}
    for v in order:
        level[v] = level[parent[v]] + 1 if v in parent else 0
    inner = [v for v in order if kinds[v] not in _LEAVES]
    depth = 1 + max((level[v] for v in inner), default=-1)
    d.width = max(_STEP * len(shown) + 20, 380.0)
    margin = (d.width - _STEP * len(shown)) / 2
    for i, v in enumerate(shown):
        d.place[v] = (margin + _STEP * (i + 0.5), 26 + _RISE * depth)
    for v in reversed(inner):
        below = [d.place[w][0] for w, p in parent.items() if p == v and w in d.place]
        if below:
            d.place[v] = (float(np.mean(below)), 26 + _RISE * level[v])
    return depth
