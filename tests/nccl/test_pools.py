"""Equal ways between switches carry what they have together: a fabric that never blocks is as quick as one switch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from machines import machine, small

from commsim.nccl.pools import described_rate
from commsim.nccl.predict import Options, Predictor
from commsim.topology.kinds import LinkKind
from commsim.topology.presets import list_presets
from commsim.units import GIB

COLLECTIVES = ("send_recv", "all_reduce", "all_gather", "all_to_all")
FLAT = ("torus", "dragonfly")
MULTI_NODE = [p.name for p in list_presets() if p.nics_per_node and p.gpu != "CPU process"]


def seconds(described: dict[str, Any], collective: str, ranks: Sequence[int] | None = None) -> float:
    """Seconds of a call of 1 GiB."""
    return (
        Predictor(machine(**described), Options(version=(2, 26, 2)), ranks=ranks).predict(collective, int(GIB)).time_s
    )


def assert_as_one_switch(described: dict[str, Any], collective: str, ranks: Sequence[int] | None = None) -> None:
    """The hops over spines are longer, but no narrower."""
    one_switch = {**described, "fabric": {"kind": "single_switch"}}
    assert seconds(described, collective, ranks) == pytest.approx(seconds(one_switch, collective, ranks), rel=0.02)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("gpus", [1, 4, 6, 16, 64])
def test_parts_of_racks_are_held_up_by_their_nics_alone(gpus: int, collective: str) -> None:
    assert_as_one_switch({"preset": "gb200-nvl72-ndr", "nodes": 4, "gpus_per_node": gpus}, collective)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("each", [[0], [15], [*range(8)], [*range(0, 16, 4)]], ids=str)
def test_so_are_groups_of_part_of_each_rack(each: list[int], collective: str) -> None:
    ranks = [16 * node + gpu for node in range(3) for gpu in each]
    assert_as_one_switch({"preset": "gb200-nvl72-ndr", "nodes": 3, "gpus_per_node": 16}, collective, ranks)


@pytest.mark.parametrize(
    "fabric",
    [
        {"kind": "fat_tree", "nodes_per_leaf": 1, "spines": 64},
        {"kind": "rail_fat_tree", "nodes_per_leaf": 1, "spines": 18},
        {"kind": "fat_tree", "nodes_per_leaf": 1, "spines": 8, "planes": 2},
        {"kind": "fat_tree", "levels": 3, "nodes_per_leaf": 1, "leaves_per_pod": 1, "spines": 16, "cores": 256},
        {"kind": "rail_fat_tree", "levels": 3, "nodes_per_leaf": 1, "leaves_per_pod": 2, "spines": 4, "cores": 64},
    ],
    ids=str,
)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("each", [[0, 1, 2, 3], [3]], ids=str)
def test_uplinks_thinner_than_a_nic_hold_nothing_up(each: list[int], collective: str, fabric: dict[str, Any]) -> None:
    ranks = [4 * node + gpu for node in range(4) for gpu in each]
    described = {"preset": "hgx-h100-4-ndr400", "nodes": 4, "fabric": fabric}
    assert_as_one_switch(described, collective, ranks)


@pytest.mark.parametrize(
    ("collective", "part"), [("send_recv", 8), ("all_gather", 8), ("all_to_all", 2), ("all_gather", 2)]
)
@pytest.mark.parametrize("preset", MULTI_NODE)
def test_every_machine_whose_fabric_never_blocks_is_as_quick_as_over_one_switch(
    preset: str, collective: str, part: int
) -> None:
    gpus = max(1, machine(preset=preset).ranks_per_node // part)
    described = {"preset": preset, "nodes": 3, "gpus_per_node": gpus}
    kind = machine(**described).kind
    if kind not in FLAT:
        knobs = {} if kind == "single_switch" else {"nodes_per_leaf": 1, "oversubscription": 1.0}
        one = {**described, "fabric": {"kind": "single_switch"}, "oversubscription": 1.0}
        assert seconds(described | knobs, collective) == pytest.approx(seconds(one, collective), rel=0.02)


def test_nodes_of_three_ranks_and_of_two_load_all_their_nics() -> None:
    described = {"preset": "hgx-h100-ndr400", "nodes": 4, "fabric": {"nodes_per_leaf": 1, "spines": 4}}
    assert_as_one_switch(described, "all_to_all", [*range(0, 32, 3)])


@pytest.mark.parametrize(("routing", "gb"), [("shortest", 100.0), ("spray", 100.0), ("ecmp", 12.5)])
def test_a_stream_has_all_uplinks_of_its_leaf_or_the_one_that_a_hash_gives(routing: str, gb: float) -> None:
    topology = small(4, kind="fat_tree", nodes_per_leaf=2, spines=8, oversubscription=2.0, routing=routing)
    uplinks = np.flatnonzero(topology.link_kind == LinkKind.FABRIC)[:1]
    assert described_rate(topology, uplinks).tolist() == [gb * 1e9]


@pytest.mark.parametrize("ratio", [2.0, 4.0])
def test_an_oversubscribed_leaf_still_holds_up_what_leaves_it(ratio: float) -> None:
    described = {"preset": "gb200-nvl72-ndr", "nodes": 2, "gpus_per_node": 8}
    slower = seconds(described | {"oversubscription": ratio}, "all_to_all") / seconds(described, "all_to_all")
    assert slower == pytest.approx(ratio, rel=0.25)
