"""Switches and servers on a topology: where they lie, what their links carry, times by hand, where there are none."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from commsim.bounds import lower_bound_s
from commsim.collectives.check import check
from commsim.collectives.registry import build, entry, names
from commsim.collectives.schedule import Schedule
from commsim.engine.evaluate import evaluate
from commsim.engine.placement import place
from commsim.engine.program import build_program
from commsim.errors import ScheduleError, TopologyError
from commsim.topology.aggregation import SwitchTree
from commsim.topology.graph import Topology
from commsim.topology.kinds import LinkKind, VertexKind
from commsim.topology.presets import load_preset
from commsim.topology.ways import WayFinder

_IN_SWITCHES = [key for key in names() if entry(*key).adds_in]


@cache
def machine(name: str, nodes: int = 1, nodes_per_leaf: int | None = None) -> Topology:
    more = {} if nodes_per_leaf is None else {"nodes_per_leaf": nodes_per_leaf}
    adds = {"fabric": {"in_network_reduction": True}} if name == "hgx-h100-ndr400" else {}
    return load_preset(name, nodes=nodes, **more, **adds)


def built(key: tuple[str, str], topology: Topology, nbytes: int, chunks: int = 1, root: int = 0) -> Schedule:
    in_network = entry(*key).adds_in == "network"
    switches = SwitchTree(topology) if in_network else None
    node = topology.ranks_per_node
    return build(*key, topology.world_size, nbytes, root, chunks=chunks, ranks_per_node=node, switches=switches)


def kind_bytes(topology: Topology, schedule: Schedule, kind: LinkKind) -> list[int]:
    carried = build_program(schedule, topology).link_bytes()[topology.link_kind == kind]
    return sorted(set(carried[carried > 0].tolist()))


def test_the_switch_of_nvls_is_the_nvswitch_and_its_links_carry_one_array_and_a_block() -> None:
    topology, size = machine("hgx-h100"), 8 << 20
    schedule = built(("all_reduce", "nvls"), topology, size)
    assert topology.vertex_name[place(schedule, topology)[8]] == "node0.nvswitch"
    assert kind_bytes(topology, schedule, LinkKind.NVLINK) == [size + size // 8]
    assert kind_bytes(topology, schedule, LinkKind.PCIE) == []


def test_nvls_in_one_piece_takes_what_its_passes_take() -> None:
    """All loads go up, then every rank's store of a block; then all blocks come down: 2 S/B + S/(nB), and two hops."""
    topology, size = machine("hgx-h100"), 8 << 20
    nvlink = int(np.flatnonzero(topology.link_kind == LinkKind.NVLINK)[0])
    rate, alpha = topology.link_bandwidth[nvlink], topology.link_latency[nvlink]
    time = evaluate(built(("all_reduce", "nvls"), topology, size), topology).makespan_s
    assert time == pytest.approx((2 + 1 / 8) * size / rate + 2 * alpha, rel=1e-9)


@pytest.mark.parametrize(("collective", "whole"), [("all_reduce", 1 + 1 / 8), ("reduce_scatter", 1), ("all_gather", 1)])
def test_nvls_in_pieces_comes_near_the_bytes_of_one_port(collective: str, whole: float) -> None:
    topology, size = machine("hgx-h100"), 1 << 30
    rate = topology.link_bandwidth[topology.link_kind == LinkKind.NVLINK].max()
    time = evaluate(built((collective, "nvls"), topology, size, chunks=64), topology).makespan_s
    assert whole * size / rate < time < 1.05 * whole * size / rate


def test_a_tree_of_switches_follows_the_cables() -> None:
    topology = machine("hgx-h100-ndr400", 4, 2)
    schedule = built(("all_reduce", "sharp"), topology, 1 << 20)
    check(schedule)
    lies = [topology.vertex_name[v] for v in place(schedule, topology)[32:]]
    assert lies == [f"leaf{g}.rail{r}" for g in range(2) for r in range(8)] + ["spine0"]
    # Every port and every link between leaf and spine carries the array once each way.
    for kind in (LinkKind.NETWORK, LinkKind.FABRIC):
        assert kind_bytes(topology, schedule, kind) == [1 << 20]


def test_sharp_in_pieces_takes_its_way_and_the_bytes_of_one_card() -> None:
    topology, size = machine("hgx-h100-ndr400", 4, 2), 64 << 20
    one = evaluate(built(("all_reduce", "sharp"), topology, 0), topology).makespan_s
    slowest = 48e9  # PCIe and the card, as counted
    time = evaluate(built(("all_reduce", "sharp"), topology, size, chunks=32), topology).makespan_s
    assert one + size / slowest < time < 1.2 * (one + size / slowest)


def test_collnet_direct_keeps_every_share_on_its_rail() -> None:
    topology, size = machine("hgx-h100-ndr400", 2), 8 << 20
    schedule = built(("all_reduce", "collnet_direct"), topology, size)
    check(schedule)
    assert [topology.vertex_name[v] for v in place(schedule, topology)[16:]] == [f"leaf0.rail{r}" for r in range(8)]
    assert kind_bytes(topology, schedule, LinkKind.NETWORK) == [size // 8]


def test_a_parameter_server_runs_on_the_host_of_node_0() -> None:
    topology, size = machine("hgx-h100-ndr400", 2), 1 << 20
    schedule = built(("all_reduce", "parameter_server"), topology, size)
    assert topology.vertex_name[place(schedule, topology)[16]] == "node0.cpu0"
    carried = build_program(schedule, topology).link_bytes()
    network = topology.link_kind == LinkKind.NETWORK
    into = network & (topology.vertex_node[topology.link_dst] == 0)
    assert carried[into].sum() == 8 * size  # the other node's eight ranks


@pytest.mark.parametrize(("collective", "algorithm"), _IN_SWITCHES)
@pytest.mark.parametrize(("name", "nodes"), [("hgx-h100", 1), ("hgx-h100-ndr400", 2), ("hgx-h100-ndr400", 5)])
def test_no_switch_is_quicker_than_the_lower_bound(collective: str, algorithm: str, name: str, nodes: int) -> None:
    topology = machine(name, nodes, 2 if nodes > 2 else None)
    for nbytes, chunks in ((0, 1), (topology.world_size * 64, 1), (topology.world_size << 16, 3)):
        try:
            schedule = built((collective, algorithm), topology, nbytes, chunks)
            outcome = evaluate(schedule, topology)
        except (ScheduleError, TopologyError):
            return  # not applicable: the next test says where and why
        bound = lower_bound_s(collective, nbytes, topology, in_network=True).seconds
        assert outcome.makespan_s >= bound * (1 - 1e-9)


@pytest.mark.parametrize(
    ("key", "name", "nodes", "reason"),
    [
        (("all_reduce", "nvls"), "hgx-h100-ndr400", 2, "reaches the ranks of one node, and these are on 2"),
        (("all_reduce", "nvls"), "dgx-a100", 1, "do not add: the A100 .* is older than Hopper"),
        (("all_reduce", "nvls_tree"), "dgx-1v-edr100", 2, "have no NVSwitch"),
        (("all_reduce", "sharp"), "hgx-h100", 1, "is one node"),
        (("all_reduce", "collnet_chain"), "gcp-a3-mega", 2, "the network is tcpx, SHARP is InfiniBand's"),
        (("reduce", "sharp"), "hgx-h100-ndr400", 2, "no switch is joined to all leaves"),
        (("reduce", "sharp"), "hgx-h200-ndr400", 2, "does not say that its switches add .*in_network_reduction: true"),
        (("all_reduce", "nvls_tree"), "hgx-h100", 1, "runs on 2 nodes or more, and the ranks are on 1"),
    ],
)
def test_where_there_is_no_such_switch_the_reason_is_given(
    key: tuple[str, str], name: str, nodes: int, reason: str
) -> None:
    topology = machine(name, nodes)
    schedule = build(*key, topology.world_size, 1 << 20, ranks_per_node=topology.ranks_per_node)
    with pytest.raises(ScheduleError, match=f"{key[1]} {key[0]} is not applicable, because .*{reason}"):
        evaluate(schedule, topology)


def test_only_infiniband_can_be_said_to_add() -> None:
    with pytest.raises(
        TopologyError, match=r"fabric.in_network_reduction is SHARP, of InfiniBand .* found network roce"
    ):
        load_preset("hgx-h100-roce400", nodes=2, fabric={"in_network_reduction": True})


def test_a_tree_that_does_not_follow_the_cables_has_a_place_too() -> None:
    topology = machine("hgx-h100-ndr400", 5, 2)
    schedule = build("all_reduce", "sharp", topology.world_size, 1 << 10, ranks_per_node=8)
    vertices = place(schedule, topology)[topology.world_size :]
    assert (topology.vertex_kind[vertices] == VertexKind.SWITCH).all()
    assert evaluate(schedule, topology).makespan_s > 0


@pytest.mark.parametrize("name", ["hgx-h100-ndr400", "gh200x4-dragonfly200", "dgx-1v-edr100", "gh200x4-slingshot200"])
def test_ways_are_chains_of_links_and_the_way_back_is_the_same(name: str) -> None:
    topology = machine(name, 3)
    ways = WayFinder(topology)
    host = int(np.flatnonzero(topology.vertex_kind == VertexKind.HOST)[0])
    for rank in (0, topology.world_size - 1):
        gpu = int(topology.rank_vertex[rank])
        for target in (ways.leaf(rank), host):
            there, back = ways.links(gpu, target), ways.links(target, gpu)
            assert topology.link_src[there[0]] == gpu
            assert topology.link_dst[there[-1]] == target
            assert (topology.link_dst[there[:-1]] == topology.link_src[there[1:]]).all()
            assert topology.link_src[back].tolist() == topology.link_dst[there[::-1]].tolist()
            assert topology.link_dst[back].tolist() == topology.link_src[there[::-1]].tolist()


def test_a_way_to_the_fabric_avoids_a_card_that_has_failed() -> None:
    adds = {"in_network_reduction": True}
    topology = load_preset(
        "hgx-h100-ndr400", nodes=5, nodes_per_leaf=2, fabric=adds, faults=[{"nic": [0, 3], "failed": True}]
    )
    schedule = built(("all_reduce", "sharp"), topology, 1 << 10)
    carried = build_program(schedule, topology).link_bytes()
    assert topology.link_failed is not None
    assert not carried[topology.link_failed].any()
