"""The drawing of a machine as data: its fabric and one node, with the heat of a call on every link.

Any fabric is drawn in one way: nodes in a row, above them switches by how many hops they are away. Of long rows the
first are drawn and the last.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.document.types import show
from commsim.errors import ScenarioError
from commsim.explorer.drawing import Drawing, fault_place
from commsim.explorer.inside import inside
from commsim.report.tables import format_time_us
from commsim.report.topology_shapes import FILL, cut
from commsim.scenario.run import prepare, run
from commsim.topology.graph import Topology, VertexKind
from commsim.units import format_bandwidth, format_bytes, parse_bytes

if TYPE_CHECKING:
    from commsim.engine.usage import Use
    from commsim.explorer.state import State
    from commsim.scenario.predictors import Cache
    from commsim.scenario.run import Prepared
    from commsim.topology.kinds import Float64

MOST_NODES, MOST_NICS, MOST_SWITCHES, MOST_LEVELS = 8, 8, 16, 4
SIZE = "256 MiB"
"""Of the call whose heat is drawn, where the state says none."""


def machine_answer(state: State, base_dir: Path, cache: Cache) -> dict[str, Any]:
    """The fabric and one node, drawn; how busy a call of the chosen size keeps each link."""
    from commsim.explorer.answers import scenario_of
    from commsim.report.topology_tables import fabric_words

    ready = prepare(scenario_of(state, "collective", base_dir), cache)
    t, size = ready.topology, _size(state, ready)
    node = _node(state, t)
    heat, said, warnings = _heat(ready, size, cache)
    fabric = Drawing(t, heat)
    if t.nodes > 1:
        _draw_fabric(fabric, node)
    one = Drawing(t, heat)
    inside(one, node)
    facts = [t.name, f"{t.world_size:,} GPUs", *([fabric_words(t)] if t.nodes > 1 else [])]
    if t.world_size > 1:
        facts.append(f"bisection {format_bandwidth(t.bisection_bandwidth())} one direction")
    return {
        "facts": "; ".join(facts),
        "said": said,
        "fabric": _plain(fabric) if t.nodes > 1 else None,
        "node": _plain(one) | {"number": node, "of": t.nodes},
        "size": format_bytes(size),
        "sizes": [format_bytes(n) for n in (ready.scenario.collectives[0].sizes or ())],
        "warnings": warnings,
    }


def _size(state: State, ready: Prepared) -> int:
    if state["size"]:
        return parse_bytes(state["size"])
    sizes = ready.scenario.collectives[0].sizes or ()
    wanted = parse_bytes(SIZE)
    return wanted if wanted in sizes or not sizes else sizes[-1]


def _node(state: State, t: Topology) -> int:
    text = state["node"] or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise ScenarioError(f"node: found {show(text)}, expected one of 0..{t.nodes - 1}")
    return min(int(text), t.nodes - 1)  # the machine may have shrunk since it was chosen


def _heat(ready: Prepared, size: int, cache: Cache) -> tuple[Float64, str, list[str]]:
    """Share of its bandwidth that a call of a size uses of every link, (links,), NaN where nothing goes; in words."""
    from commsim.scenario.predictors import NcclRows, row_predictor

    t, work = ready.topology, ready.scenario.collectives[0]
    heat = np.full(t.link_bandwidth.size, np.nan)
    predictor = row_predictor(ready.scenario, t, work, cache)
    row = predictor(size)
    how = " ".join(filter(None, (row.algorithm, row.protocol)))
    how = how or ready.scenario.library.name
    said = f"{work.collective} of {format_bytes(size)} by {how}: {format_time_us(row.time_s)} us"
    if isinstance(predictor, NcclRows):
        from commsim.nccl.traffic import load_of

        model = predictor.model
        load = load_of(model, work.collective, model.predict(work.collective, size))
        if row.time_s:
            heat[load.link] = np.minimum(load.nbytes / (t.link_bandwidth[load.link] * row.time_s), 1.0)
    elif (use := _simulated(ready, size, cache)) is not None:
        from commsim.report.topology_shapes import heat_of

        heat = heat_of(t, {link.link: link.busy_share for link in use.links}).share
    else:
        said += "; what it puts on each link is not known of this library"
    if not np.isnan(heat).all():
        top = int(np.nanargmax(np.where(t.works, heat, np.nan)))
        said += f"; busiest {t.link_name(top)}, {100 * heat[top]:.0f} % of its bandwidth"
    return heat, said, list(predictor.warnings)


def _simulated(ready: Prepared, size: int, cache: Cache) -> Use | None:
    """What a raw schedule of one size puts on links; None where links are not simulated."""
    scenario = ready.scenario
    work = scenario.collectives[0].model_copy(update={"sizes": (size,)})
    one = scenario.model_copy(update={"workload": (work,), "compare": ()})
    return run(replace(ready, scenario=one, measured=()), cache=cache, notes=False).items[0].use


def _draw_fabric(d: Drawing, looked_at: int) -> None:
    """Nodes with their NICs in a row, and switches above."""
    t = d.topology
    nodes = sorted({n for n in cut(t.nodes, MOST_NODES) if n is not None} | {looked_at})
    vertex_kind, first = t.vertex_kind, t.node_first_vertex
    nics = {n: first[n] + np.flatnonzero(vertex_kind[first[n] : first[n + 1]] == VertexKind.NIC) for n in nodes}
    shown = {n: [int(v) for v in some[:MOST_NICS]] for n, some in nics.items()}
    levels = _levels(d, [v for some in shown.values() for v in some])
    each = max(84.0, 12.0 * max(map(len, shown.values())) + 12)
    d.width = max(len(nodes) * (each + 14), 70.0 * max(map(len, levels), default=1), 560.0) + 20
    rise = 96.0
    base = 40 + rise * len(levels)
    _place_levels(d, levels, rise)
    step = (d.width - 20) / len(nodes)
    for i, n in enumerate(nodes):
        x = 10 + step * (i + 0.5)
        for k, v in enumerate(shown[n]):
            d.place[v] = (x + 12.0 * (k - (len(shown[n]) - 1) / 2), base - 22)
    level_of = {v: i for i, row in enumerate(levels) for v in row}
    _join(d, level_of)
    _switch_boxes(d, levels)
    for i, n in enumerate(nodes):
        x = 10 + step * (i + 0.5)
        for k, v in enumerate(shown[n]):
            d.box(d.place[v], (9, 12), "", FILL[VertexKind.NIC], title=t.vertex_name[v], place=f"nic:{n}.{k}")
        gap = i > 0 and n > nodes[i - 1] + 1
        if gap:
            d.box((x - step / 2, base + 4), (10, 14), "…", "none")
        gpus = t.groups[int(t.node_group[n])].ranks_per_node
        d.box((x, base + 4), (each, 34), f"node {n}\n{gpus} GPUs", "#eef6e7", node=n, chosen=n == looked_at)
    d.height = base + 30


def _levels(d: Drawing, nics: list[int]) -> list[list[int]]:
    """Switches by hops from the NICs that are drawn, of each level those that are drawn."""
    t, below = d.topology, nics
    ports = t.link_dst[np.isin(t.link_src, np.flatnonzero(t.vertex_kind == VertexKind.NIC))]
    lowest = {int(v) for v in np.unique(ports) if t.vertex_kind[v] == VertexKind.SWITCH}  # never above others
    seen = set(nics)
    levels: list[list[int]] = []
    while len(levels) < MOST_LEVELS:
        ends = t.link_dst[np.isin(t.link_src, below)]
        above = [int(v) for v in np.unique(ends) if t.vertex_kind[v] == VertexKind.SWITCH and int(v) not in seen]
        if not above:
            break
        below = [above[i] for i in cut(len(above), MOST_SWITCHES) if i is not None]
        levels.append(below)
        seen |= set(above) | lowest
    return levels


def _place_levels(d: Drawing, levels: list[list[int]], rise: float) -> None:
    for k, row in enumerate(levels):
        y = 28 + rise * (len(levels) - 1 - k)
        for i, v in enumerate(row):
            d.place[v] = (10 + (d.width - 20) * (i + 0.5) / len(row), y)


def _join(d: Drawing, level_of: dict[int, int]) -> None:
    """Lines between what is drawn; of a NIC its port, of switches beside each other an arch."""
    t, drawn = d.topology, list(d.place)
    inside_it = np.isin(t.link_src, drawn) & np.isin(t.link_dst, drawn) & (t.link_src < t.link_dst)
    pairs = {(int(t.link_src[i]), int(t.link_dst[i])) for i in np.flatnonzero(inside_it)}
    for a, b in sorted(pairs):
        if t.vertex_node[a] >= 0 and t.vertex_node[b] >= 0:
            continue
        bend = 0.0
        if a in level_of and level_of[a] == level_of.get(b):
            bend = min(34.0, 10 + 0.1 * abs(d.place[a][0] - d.place[b][0]))
        d.line(a, b, fault_place(t, a, b), bend)


def _switch_boxes(d: Drawing, levels: list[list[int]]) -> None:
    for row in levels:
        wide = min(92.0, (d.width - 20) / len(row) - 6)
        for v in row:
            name = d.topology.vertex_name[v]
            text = name.replace(".", "\n", 1) if wide < 90 else name
            d.box(d.place[v], (wide, 30), text, FILL[VertexKind.SWITCH], title=name, place=f"switch:{name}")


def _plain(d: Drawing) -> dict[str, Any]:
    return {"width": d.width, "height": d.height, "boxes": d.boxes, "lines": d.lines}
