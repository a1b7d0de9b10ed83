"""Kernels on symmetric memory and copy engines by the engine: what waits for what, and the closed forms held to it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import median

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.engine.fair import simulate_fair
from commsim.errors import ScenarioError
from commsim.nccl.event_ops import ProgramOps
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.registered import Instead
from commsim.nccl.symmetric import Kernel, kernels
from commsim.nccl.symmetric_choice import SymmetricChoice, counted_bytes, expected, held_bytes
from commsim.nccl.symmetric_pace import MEMORY_S, START_S, of_rank, turns_of
from commsim.nccl.symmetric_rows import LaneRows, RoundCut
from commsim.nccl.version import Version
from commsim.nccl.window_call import WindowCall
from commsim.topology.presets import load_preset

NEW: Version = (2, 30, 7)
WINDOW = Options(NEW, registered="window")
MIB = 1 << 20
MEDIAN, WORST = 0.02, 0.08
BY_NAME = {kernel.name: kernel for kernel in kernels(NEW)}


@cache
def of(preset: str = "hgx-h100", ranks: int = 0, nodes: int = 1, engine: str = "auto", policy: str = "") -> Predictor:
    options = replace(WINDOW, engine=engine, env={"NCCL_CTA_POLICY": policy} if policy else {})
    topology = load_preset(preset, nodes=nodes) if nodes > 1 else load_preset(preset)
    return Predictor(topology, options, None, range(ranks) if ranks else None)


def call(predictor: Predictor, kernel: Kernel, nbytes: int, blocks: int = 0) -> WindowCall:
    """A call by a kernel, whatever NCCL would take, on as many thread blocks as NCCL expects to be best."""
    system, nic = predictor.system, predictor.topology.nic_bandwidth if predictor.system.nodes > 1 else 0.0
    held = counted_bytes(held_bytes(kernel.collective, nbytes, system.ranks), NEW)
    blocks = blocks or expected(kernel, system, held, NEW, {}, nic)[1]
    own = Instead("symmetric", kernel.short, blocks, SymmetricChoice(kernel, blocks, 0.0))
    return WindowCall(system, predictor.machine, predictor.nodes.kinds, own, kernel.collective, nbytes, NEW, {})


def off(calls: list[WindowCall]) -> list[tuple[float, str, int, int]]:
    """How far closed form and engine are apart, as a share of the engine's time."""
    return [(abs(one.time()[0] / one.simulated()[0] - 1), one.own.name, one.system.ranks, one.nbytes) for one in calls]


def held_to_the_engine(calls: list[WindowCall], worst: float = WORST) -> None:
    every = off(calls)
    assert max(every)[0] <= worst, max(every)
    assert median(one for one, *_ in every) <= MEDIAN


def on_switch(predictor: Predictor) -> list[Kernel]:
    return [k for k in kernels(NEW) if not k.over_nodes and (predictor.system.nvls or not (k.multicast or k.reduces))]


def test_a_barrier_ends_a_hop_after_the_last_has_come() -> None:
    ops = ProgramOps()
    arrived = ops.add((3, 1), delay_s=np.array([[1.0], [5.0], [2.0]]))
    met = ops.meet(arrived, 0.5)
    end = simulate_fair(ops.program(np.ones(1))).end_s
    assert end[met].ravel() == pytest.approx([5.5, 5.0, 5.5])  # the last finds the flags of the others there


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_the_smallest_calls_are_starts_hops_and_trips(ranks: int) -> None:
    predictor = of(ranks=ranks)
    hop = predictor.parameters.ring_hop.nvlink.LL
    trip = 2 * hop + MEMORY_S
    seconds = {k.name: call(predictor, k, 8).simulated()[0] - START_S for k in on_switch(predictor)}
    single = len(turns_of(BY_NAME["ReduceScatter_LD"], ranks))
    assert single == {2: 1, 5: 3, 8: 4}[ranks]
    waits = {
        "AllReduce_AGxLL_R": hop,
        "AllGather_LLMC": hop,
        "AllGather_ST": 3 * hop,
        "AllGather_STMC": 3 * hop,
        "ReduceScatter_LDMC": 2 * hop + trip,
        "ReduceScatter_LD": 2 * hop + single * trip,
        "AllReduce_RSxLDMC_AGxSTMC": 3 * hop + trip,
        "AllReduce_RSxLD_AGxST": 3 * hop + single * trip,
    }
    for name in waits.keys() & seconds.keys():  # two GPUs do not use the switch
        assert seconds[name] == pytest.approx(waits[name], rel=1e-3), name


def test_a_block_of_ll_waits_for_its_lines_before_the_next_round() -> None:
    """One block of 512 threads sends 4 KiB a round; sixteen blocks send all in one."""
    predictor, kernel = of(), BY_NAME["AllReduce_AGxLL_R"]
    hop = predictor.parameters.ring_hop.nvlink.LL
    one, many = (call(predictor, kernel, 1 << 16, blocks).simulated()[0] for blocks in (1, 16))
    lines = 2 * 8 * (1 << 16) / (450e9 * predictor.parameters.efficiency.nvlink_switch)
    assert one == pytest.approx(START_S + 16 * hop + lines, rel=0.01)
    assert many == pytest.approx(START_S + hop + lines, rel=0.01)


def test_sums_in_the_switch_leave_by_every_gpu_at_nvls_share() -> None:
    got = call(of(), BY_NAME["ReduceScatter_LDMC"], 1 << 28, 64).simulated()
    assert got[1] == pytest.approx((1 << 28) / (450e9 * of().parameters.efficiency.nvls), rel=0.01)
    assert got[2:] == ("NVLink", "event")


@pytest.mark.parametrize("preset", ["dgx-a100-hdr200", "hgx-b200-ndr400"])
@pytest.mark.parametrize("nbytes", [4, 64 << 10, MIB, 16 * MIB])
def test_both_views_name_the_same_limit(preset: str, nbytes: int) -> None:
    closed, event = (
        Predictor(load_preset(preset), replace(WINDOW, engine=engine)).predict("all_reduce", nbytes)
        for engine in ("closed_form", "event")
    )
    assert (event.bottleneck, event.limit) == (closed.bottleneck, closed.limit)
    assert event.busy_s / event.kernel_s == pytest.approx(closed.busy_s / closed.kernel_s, rel=1e-6)


def test_what_one_round_waits_for_is_latency() -> None:
    got = of("dgx-a100-hdr200").predict("all_reduce", 64 << 10)  # each warp loads once from all seven peers, in turns
    assert (got.protocol, got.bottleneck) == ("RSxLD_AGxST", "latency")


def test_few_thread_blocks_are_what_limits() -> None:
    """One block of each GPU has 64 KiB on its way for the time of a trip."""
    predictor = of("hgx-b200")
    trip = 2 * predictor.parameters.ring_hop.nvlink.LL + MEMORY_S
    seconds, *_, level = call(predictor, BY_NAME["AllReduce_RSxLDMC_AGxSTMC"], 1 << 30, 1).simulated()
    assert seconds == pytest.approx((1 << 30) / (8 * (64 << 10)) * trip, rel=0.05)
    assert level == "event, two cuts"


@pytest.mark.parametrize("kernel", kernels(NEW), ids=lambda kernel: kernel.name)
def test_what_runs_is_a_schedule_that_is_proven(kernel: Kernel) -> None:
    local, cut = (2 if kernel.over_nodes else 4), RoundCut(lanes=2, rounds=3, pieces=2)
    rows = LaneRows(kernel, 4, local, cut, 4 * 96, rounds=3)
    check(rows.schedule)
    assert rows.schedule.nbytes == 4 * 96
    assert set(rows.round.tolist()) == {0, 1, 2}
    loads = rows.loads & (rows.issued_by < 0)
    assert not loads.any()  # every load has a rank that asks for it


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_closed_forms_are_held_to_the_engine(ranks: int) -> None:
    """All kernels of a node with start, barriers and lines, on as many blocks as NCCL gives them."""
    predictor = of(ranks=ranks)
    sizes = (8, 64 << 10, 512 << 10, 7_000_000, 1 << 30)
    held_to_the_engine(
        [call(predictor, k, n) for k in on_switch(predictor) for n in sizes if not (k.lines and n > 16 * MIB)]
    )


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["hgx-h100", "hgx-b200", "dgx-a100", "hgx-a100-4"])
def test_closed_forms_of_all_numbers_of_gpus_are_held_to_the_engine(preset: str) -> None:
    sizes = [8 << k for k in range(0, 28, 3)] + [200_000, 1_500_000, 7_000_000]
    most = load_preset(preset).world_size
    predictors = [of(preset, ranks) for ranks in range(2, most + 1)]
    held_to_the_engine(
        [
            call(predictor, k, n)
            for predictor in predictors
            for k in on_switch(predictor)
            for n in sizes
            if not (k.lines and n > 16 * MIB)
        ]
    )


@pytest.mark.parametrize("nodes", [2, 4])
def test_closed_forms_over_nodes_are_held_to_the_engine(nodes: int) -> None:
    predictor = of("hgx-h100-ndr400", nodes=nodes)
    over_nodes = [k for k in kernels(NEW) if k.over_nodes]
    held_to_the_engine(
        [call(predictor, k, n) for k in over_nodes for n in (8, 64 << 10, 7_000_000, 256 * MIB, 1 << 30)]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "nodes"), [("hgx-b200-ndr400", 2), ("dgx-a100-hdr200", 2), ("hgx-h100-ndr400", 8)])
def test_closed_forms_of_other_machines_over_nodes_are_held_to_the_engine(preset: str, nodes: int) -> None:
    """Farthest apart where the last round of a reduce_scatter is short, which the closed form takes for full."""
    predictor = of(preset, nodes=nodes)
    over_nodes = [k for k in kernels(NEW) if k.over_nodes and (predictor.system.nvls or not (k.multicast or k.reduces))]
    held_to_the_engine([call(predictor, k, n) for k in over_nodes for n in (8, MIB, 16 * MIB, 256 * MIB)], 0.12)


def test_a_gpu_alone_in_its_node_sends_what_it_has() -> None:
    predictor = Predictor(load_preset("hgx-h100-ndr400", nodes=4), WINDOW, None, [0, 8, 16, 24])
    kernel = BY_NAME["ReduceScatter_RailA2A_LsaLD"]
    held_to_the_engine([call(predictor, kernel, n) for n in (64, MIB, 256 * MIB)])


@pytest.mark.parametrize(
    ("nodes", "collective"),
    [(1, "all_gather"), (1, "all_to_all"), (1, "gather"), (1, "scatter"), (4, "all_gather"), (4, "all_to_all")],
)
def test_copies_are_what_the_engine_has_them_be(nodes: int, collective: str) -> None:
    preset = "hgx-h100-ndr400" if nodes > 1 else "hgx-h100"
    closed, engine = (of(preset, 0, nodes, name, "ZERO") for name in ("auto", "event"))
    for nbytes in (8, MIB, 256 * MIB, 8 << 30):
        one, other = closed.predict(collective, nbytes), engine.predict(collective, nbytes)
        assert (one.algorithm, one.level, other.level) == ("copy_engine", "closed_form", "event")
        assert one.kernel_s == pytest.approx(other.kernel_s, rel=0.03), nbytes


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_engine_times_what_nccl_chooses(nodes: int) -> None:
    preset = "hgx-h100-ndr400" if nodes > 1 else "hgx-h100"
    closed, engine = (of(preset, 0, nodes, name) for name in ("auto", "event"))
    for nbytes in (1024, 256 * MIB):
        one, other = closed.predict("all_gather", nbytes), engine.predict("all_gather", nbytes)
        assert (one.protocol, one.channels) == (other.protocol, other.channels)
        assert other.level.startswith("event")
        assert one.time_s == pytest.approx(other.time_s, rel=WORST)


def test_what_the_engine_cannot_time_says_why() -> None:
    wavefront = of(engine="wavefront")
    with pytest.raises(ScenarioError, match=r"engine wavefront cannot time all_gather by .*auto, closed_form or event"):
        wavefront.predict("all_gather", MIB)
    large = of("hgx-h100-ndr400", 0, 128, "event")
    with pytest.raises(ScenarioError, match=r"of 1024 ranks: it has more than .* moves; expected auto or closed_form"):
        large.predict("all_gather", MIB)
    copies = of("hgx-h100-ndr400", 0, 128, "event", "ZERO")
    with pytest.raises(ScenarioError, match=r"copy engines of 1024 ranks: it has .* copies; expected auto"):
        copies.predict("all_gather", MIB)
    uneven = Predictor(load_preset("hgx-h100-ndr400", nodes=2), replace(WINDOW, engine="event"), None, [0, 1, 2, 8, 9])
    with pytest.raises(ScenarioError, match="on nodes with other numbers of ranks; expected auto or closed_form"):
        uneven.predict("reduce_scatter", MIB)


def test_bytes_of_a_rank() -> None:
    assert of_rank(BY_NAME["AllReduce_AGxLL_R"], 1000, 8) == 1000
    assert of_rank(BY_NAME["AllGather_LL"], 1001, 8) == 126
