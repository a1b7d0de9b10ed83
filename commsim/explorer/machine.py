"""The drawing of a machine as data: its fabric and one node, with the heat of a call on every link.

Any fabric is drawn in one way: nodes in a row, above them switches by how many hops they are away. Of long rows the
first are drawn and the last, with an ellipsis for the others.
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
from commsim.explorer.state import MACHINE_KEYS, State
from commsim.report.tables import format_time_us
from commsim.report.topology_shapes import FILL, cut
from commsim.scenario.run import prepare, run
from commsim.topology.graph import Topology, VertexKind
from commsim.units import format_bandwidth, format_bytes, parse_bytes

if TYPE_CHECKING:
    from commsim.engine.usage import Use
    from commsim.scenario.predictors import Cache
    from commsim.scenario.run import Prepared
    from commsim.topology.kinds import Float64, Int64

MOST_NODES, MOST_NICS, MOST_LEAVES, MOST_SWITCHES, MOST_LEVELS = 8, 8, 24, 16, 4
_APART, _RISE = 50.0, 96.0
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


def faults_answer(state: State, base_dir: Path, cache: Cache) -> dict[str, Any]:
    """Empty where the machine has the places of all faults; their CommsimError otherwise."""
    from commsim.explorer.answers import scenario_of

    machine = State.of({key: text for key, text in state.values.items() if key in MACHINE_KEYS})
    prepare(scenario_of(machine, "collective", base_dir), cache)
    return {}


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
    """Nodes with their NICs in a row, and switches above; an ellipsis stands for what is left out of a row."""
    t = d.topology
    nodes, ports, levels = _drawn(t, looked_at)
    most = max(map(len, ports.values()))
    each = max(84.0, 12.0 * most + 12)
    d.width = max(len(nodes) * (each + 14), _APART * max(map(len, levels), default=1), 560.0) + 20
    base = 40 + _RISE * len(levels)
    _place_levels(d, levels)
    step = (d.width - 20) / len(nodes)
    centre = [10 + step * (i + 0.5) for i in range(len(nodes))]
    for x, n in zip(centre, nodes, strict=True):
        some = [] if n is None else ports[n]
        for k, port in enumerate(some):
            at = (x + 12.0 * (k - (len(some) - 1) / 2), base - 22)
            if port is None:
                d.box(at, (10, 14), "…", "none")
            else:
                d.place[port[1]], d.half[port[1]] = at, 6.0
    _join(d, {v: i for i, row in enumerate(levels) for v in row if v is not None})
    _switch_boxes(d, levels)
    for x, n in zip(centre, nodes, strict=True):
        if n is None:
            d.box((x, base + 4), (10, 14), "…", "none")
            continue
        for k, v in filter(None, ports[n]):
            d.box(d.place[v], (9, 12), "", FILL[VertexKind.NIC], title=t.vertex_name[v], place=f"nic:{n}.{k}")
        words = f"{t.groups[int(t.node_group[n])].ranks_per_node} GPUs"
        words += f", {int(t.nics_of_nodes[n])} NICs" if None in ports[n] else ""
        d.box((x, base + 4), (each, 34), f"node {n}\n{words}", "#eef6e7", node=n, chosen=n == looked_at)
    d.height = base + 30


_Ports = dict[int, list[tuple[int, int] | None]]
"""By node its NICs that are drawn, (number, vertex), None where some are left out."""


def _drawn(t: Topology, looked_at: int) -> tuple[list[int | None], _Ports, list[list[int | None]]]:
    """Nodes, NICs and levels of switches: as many nodes as leave each switch above a NIC room of its own."""
    first = t.node_first_vertex
    for most_nodes, most_nics in ((MOST_NODES, MOST_NICS), (5, MOST_NICS), (3, MOST_NICS), (3, 4), (3, 2)):
        nodes = cut(t.nodes, most_nodes, [looked_at])
        ports: _Ports = {}
        for n in (n for n in nodes if n is not None):
            nics = first[n] + np.flatnonzero(t.vertex_kind[first[n] : first[n + 1]] == VertexKind.NIC)
            ports[n] = [None if k is None else (k, int(nics[k])) for k in cut(nics.size, most_nics)]
        levels = _levels(t, [v for some in ports.values() for _, v in filter(None, some)])
        if not levels or len(levels[0]) <= MOST_LEAVES:
            break
    return nodes, ports, levels


def _levels(t: Topology, nics: list[int]) -> list[list[int | None]]:
    """Switches by hops from the NICs that are drawn, the lowest first; None where some of a level are left out."""
    every = _reached(t, np.flatnonzero(t.vertex_kind == VertexKind.NIC))
    below, levels = nics, list[list[int | None]]()
    for level in every[:MOST_LEVELS]:
        above = [[v for v in t.link_dst[t.link_src == w].tolist() if v in level] for w in below]
        all_above = sorted(set().union(*above))
        if levels:  # of each switch one that it reaches, so that none looks as if it were apart
            wanted = [all_above.index(some[0]) for some in above if some]
            all_above = [all_above[i] for i in cut(len(all_above), MOST_SWITCHES, wanted) if i is not None]
        below = all_above
        levels.append(_marked(all_above, sorted(level)))
    return levels


def _reached(t: Topology, ends: Int64) -> list[set[int]]:
    """All switches of the machine by hops from its NICs."""
    seen, levels = set(ends.tolist()), list[set[int]]()
    while ends.size:
        near = np.unique(t.link_dst[np.isin(t.link_src, ends)]).tolist()
        level = {v for v in near if t.vertex_kind[v] == VertexKind.SWITCH and v not in seen}
        seen |= level
        ends = np.array(sorted(level), np.int64)
        levels.append(level)
    return levels[:-1]


def _marked(drawn: list[int], every: list[int]) -> list[int | None]:
    """What is drawn of a row, with None in the place of what is not."""
    shown: list[int | None] = []
    for v in every:
        if v in drawn:
            shown.append(v)
        elif drawn and (not shown or shown[-1] is not None):
            shown.append(None)
    return shown


def _place_levels(d: Drawing, levels: list[list[int | None]]) -> None:
    for k, row in enumerate(levels):
        y = 28 + _RISE * (len(levels) - 1 - k)
        for i, v in enumerate(row):
            at = (10 + (d.width - 20) * (i + 0.5) / len(row), y)
            if v is None:
                d.box(at, (10, 14), "…", "none")
            else:
                d.place[v] = at


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


def _switch_boxes(d: Drawing, levels: list[list[int | None]]) -> None:
    for row in levels:
        wide = min(92.0, (d.width - 20) / len(row) - 6)
        for v in row:
            if v is None:
                continue
            name = d.topology.vertex_name[v]
            text = name.replace(".", "\n", 1) if wide < 90 else name
            d.box(d.place[v], (wide, 30), text, FILL[VertexKind.SWITCH], title=name, place=f"switch:{name}")


def _plain(d: Drawing) -> dict[str, Any]:
    return {"width": d.width, "height": d.height, "boxes": d.boxes, "lines": d.lines}
