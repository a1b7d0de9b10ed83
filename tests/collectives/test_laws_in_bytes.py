"""Laws of every algorithm for any ranks, root, nodes, channels and pieces: it is correct, its bytes the closed form's.

Trees of switches are the default ones, those of fabrics as they are cabled, and any others.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives.check import check
from commsim.collectives.registry import BuildOptions, build, entry, names
from commsim.collectives.schedule import Schedule
from commsim.collectives.sharp import Levels, SwitchTree
from commsim.collectives.traffic import traffic, units
from commsim.errors import TopologyError
from commsim.topology import aggregation
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset

ADDS = {"in_network_reduction": True}
FABRICS: dict[str, Callable[[], Topology]] = {
    name: cache(lambda knobs=knobs: load_preset(**knobs))
    for name, knobs in {
        "two leaves per rail": {"name": "hgx-h100-ndr400", "nodes": 4, "nodes_per_leaf": 2, "gpus_per_node": 2},
        "one leaf per rail": {"name": "hgx-h100-ndr400", "nodes": 3, "gpus_per_node": 4},
        "one switch": {"name": "hgx-a100-4-hdr200", "nodes": 5, "gpus_per_node": 1},
        "three levels": {"name": "hgx-h100-fat-tree-3level", "nodes": 6, "gpus_per_node": 1, "nodes_per_leaf": 1},
    }.items()
    for knobs in [{**knobs, "fabric": ADDS}]
}


class Run(NamedTuple):
    """A schedule, and what its closed form is asked for."""

    schedule: Schedule
    node: int | None
    switches: SwitchTree | None


def any_tree(draw: st.DrawFn, n: int) -> SwitchTree:
    """A tree of switches of which every one may have any children of the level below, numbered with gaps."""
    leaf = n + 3 * np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    spine = n + 20 + 2 * np.array(draw(st.lists(st.integers(0, 2), min_size=6, max_size=6)))

    def levels(ranks: np.ndarray) -> Levels:
        leaves = np.unique(leaf[ranks])
        if leaves.size == 1:
            return [(ranks, leaf[ranks])]
        spines = spine[(leaves - n) // 3]
        found = [(ranks, leaf[ranks]), (leaves, spines)]
        if np.unique(spines).size > 1:
            found.append((np.unique(spines), np.full(np.unique(spines).size, n + 40)))
        return found

    return levels


@st.composite
def runs(draw: st.DrawFn) -> Run:
    collective, algorithm = draw(st.sampled_from(names()))
    takes = entry(collective, algorithm).takes
    n, switches = draw(st.integers(1, 40)), None
    if entry(collective, algorithm).adds_in == "network":
        form = draw(st.sampled_from(["default", "any", *FABRICS]))
        if form == "any":
            switches = any_tree(draw, n)
        elif form in FABRICS:
            fabric = FABRICS[form]()
            n, switches = draw(st.integers(1, fabric.world_size)), aggregation.SwitchTree(fabric)
    node = draw(st.sampled_from([None, *(d for d in range(1, n + 1) if n % d == 0)]))
    node = node if "ranks_per_node" in takes else None
    root = draw(st.integers(0, n - 1)) if "root" in takes else 0
    channels, chunks, item = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 8]))
    try:
        parts = units(collective, algorithm, n, root, ranks_per_node=node, switches=switches).parts
    except TopologyError:  # rails without spines have no switch above all ranks
        parts, switches = units(collective, algorithm, n, root, ranks_per_node=node).parts, None
    nbytes = parts * item * draw(st.integers(0, 9))
    options = BuildOptions(itemsize=item, switches=switches, channels=channels, chunks=chunks, ranks_per_node=node)
    schedule = build(collective, algorithm, n, nbytes, root, **options)
    return Run(schedule, node, switches)


@given(run=runs())
@settings(max_examples=250)
def test_it_is_correct_and_its_bytes_are_the_closed_forms_whatever_the_channels_and_pieces(run: Run) -> None:
    s = run.schedule
    form = traffic(
        s.collective, s.algorithm, s.world_size, s.nbytes, s.root or 0, ranks_per_node=run.node, switches=run.switches
    )
    check(s)
    assert np.array_equal(s.sent_bytes(), form[0])
    assert np.array_equal(s.received_bytes(), form[1])
