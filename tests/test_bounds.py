"""Lower bounds: values by hand, and no schedule is quicker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.bounds import lower_bound_s
from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from commsim.collectives.schedule import Schedule
from commsim.collectives.semantics import COLLECTIVES
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.evaluate import evaluate
from commsim.errors import ScheduleError
from commsim.topology.faults import without_nvlink
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset, preset_names

S = 1 << 30


def _machines() -> list[Topology]:
    """Every shipped machine as one node, and those with NICs as two and three."""
    found = []
    for name in preset_names():
        one = load_preset(name)
        found.append(one)
        if one.nics_per_node:
            found += [load_preset(name, nodes=nodes) for nodes in (2, 3)]
    return [t for t in found if 1 < t.world_size <= 32]


MACHINES = _machines()


def test_gpu_ports_by_hand() -> None:
    """8 GPUs with 18 NVLinks each: 2 * 7/8 S over a GPU's own links; NVLS halves what must be sent."""
    topology = load_preset("hgx-h100")
    port = topology.nvlink_links * topology.nvlink_link_bandwidth
    bound = lower_bound_s("all_reduce", S, topology)
    assert bound.bandwidth_at == "GPU ports"
    assert bound.bandwidth_s == pytest.approx(2 * 7 / 8 * S / port)
    assert bound.seconds == bound.bandwidth_s
    assert lower_bound_s("all_reduce", S, topology, in_network=True).bandwidth_s == pytest.approx(S / port)
    assert lower_bound_s("all_gather", S, topology).bandwidth_s == pytest.approx(7 / 8 * S / port)


def test_node_nics_by_hand() -> None:
    """4 nodes with one NIC of 25 GB/s each, slower than its PCIe: a node must send 2 * 3/4 S through it."""
    topology = load_preset("hgx-h100-ndr400", nodes=4, nics_per_node=1, nic_bandwidth="25 GB/s")
    bound = lower_bound_s("all_reduce", S, topology)
    assert bound.bandwidth_at == "node NICs"
    assert bound.bandwidth_s == pytest.approx(2 * 3 / 4 * S / 25e9)
    # From half to half S crosses over two NICs.
    assert bound.bisection_s == pytest.approx(S / 50e9)


def test_latency_by_hand() -> None:
    topology = load_preset("hgx-h100")
    assert lower_bound_s("all_reduce", 0, topology).seconds == pytest.approx(
        topology.link_latency[topology.route(0, 7)].sum()
    )


@pytest.mark.parametrize("in_network", [False, True])
@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_every_collective_has_a_bound_that_grows_with_the_size(collective: str, in_network: bool) -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    small, large = (lower_bound_s(collective, size, topology, in_network=in_network) for size in (0, S))
    assert small.bandwidth_s == small.bisection_s == 0
    assert 0 < small.latency_s == large.latency_s
    assert large.seconds == large.latency_s if collective == "barrier" else large.seconds > large.latency_s


def test_one_rank_needs_no_time() -> None:
    assert lower_bound_s("all_reduce", S, load_preset("rtx4090", gpus_per_node=1)).seconds == 0


def test_unknown_collective() -> None:
    with pytest.raises(ScheduleError, match="unknown collective 'all_reduc', expected one of all_gather"):
        lower_bound_s("all_reduc", S, load_preset("hgx-h100"))


def _tree(n: int, nbytes: int) -> Schedule:
    return tree_all_reduce(n, nbytes, channels=2, chunks=4)


@given(
    st.sampled_from(MACHINES),
    st.sampled_from([ring_all_reduce, ring_all_gather, ring_reduce_scatter, _tree]),
    st.sampled_from([1, 1000, 1 << 20, 1 << 30]),
)
def test_no_schedule_is_quicker_than_the_bound(
    topology: Topology, build: Callable[[int, int], Schedule], nbytes: int
) -> None:
    schedule = build(topology.world_size, nbytes)
    done = evaluate(schedule, topology)
    assert done.makespan_s >= lower_bound_s(schedule.collective, nbytes, topology).seconds * (1 - 1e-12)


def test_wires_bound_and_not_what_nccl_rates_them_at() -> None:
    """Published: 8 A100 over PCIe move 4 GiB in 502,615 us, above what NCCL counts of a link between sockets."""
    topology = load_preset("a100-pcie")
    bound = lower_bound_s("all_reduce", 4 << 30, topology)
    assert bound.seconds < 0.502615
    # A GPU's port: 16 lanes of 16 GT/s, 31.5 GB/s for the 24 of the preset.
    assert bound.seconds == pytest.approx(2 * 7 / 8 * (4 << 30) / 31.5e9, rel=0.001)


def test_gpus_without_nvlink_may_meet_in_a_host_by_any_way() -> None:
    """Two Graces of a GB200 NVL4: NCCL shares memory over C2C and between the hosts, not at the 6 GB/s it counts."""
    topology = without_nvlink(load_preset("gb200-nvl4"))
    bound = lower_bound_s("broadcast", S, topology)
    assert bound.bandwidth_s == pytest.approx(S / 225e9)
    assert bound.bisection_s == pytest.approx(S / 450e9)
