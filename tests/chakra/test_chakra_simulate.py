"""Traces on a machine: small ones against sums by hand, groups, and what can be wrong between ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from chakra_files import call, message, work, write_scenario, write_traces
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.chakra.flows import SharedLinks
from commsim.chakra.groups import Groups
from commsim.chakra.program import build
from commsim.chakra.simulate import TraceRun, critical_path, simulate
from commsim.chakra.trace import Node, Trace
from commsim.errors import ScenarioError
from commsim.nccl.predict import Options
from commsim.scenario.chakra_result import TraceItem
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run
from commsim.topology.presets import load_preset
from commsim.training.nccl_groups import NcclGroups

Ranks = Mapping[int, Sequence[Node]]
NS = 1e-9


def _seconds(collective: str, nbytes: float, ranks: object) -> float:
    """A machine where a byte takes a nanosecond."""
    del collective, ranks
    return nbytes * NS


def _run(
    ranks: Ranks,
    world: int | None = None,
    groups: Mapping[str, tuple[int, ...]] | None = None,
    axes: Sequence[int] = (),
) -> TraceRun:
    traces = [Trace(tuple(ranks[r])) if r in ranks else None for r in range(world or len(ranks))]
    count = len(traces)
    resolver = Groups(traces, [0] * count, groups or {}, axes or (count,))
    return simulate(build(traces, resolver, _seconds, range(count), lambda node: node.seconds or 0.0))


def _ends(found: TraceRun, rank: int) -> list[float]:
    return [round(float(found.end_s[i]) / NS, 6) for i in found.program.operation[rank]]


# -- by hand ---------------------------------


def test_a_chain_and_a_call_that_waits_for_the_last() -> None:
    """Rank 0 computes 100, rank 1 computes 30; then 50 together, then 10 and 20."""
    found = _run(
        {
            0: [work(0, 100 * NS), call(1, "all_reduce", 50, 0), work(2, 10 * NS, 1)],
            1: [work(0, 30 * NS), call(1, "all_reduce", 50, 0), work(2, 20 * NS, 1)],
        }
    )
    assert _ends(found, 0) == [100, 150, 160]
    assert _ends(found, 1) == [30, 150, 170]
    zero, one = TraceItem("x", (0, 1), found).ranks
    assert np.allclose([zero.compute, zero.exposed, zero.idle], [110 * NS, 50 * NS, 10 * NS])
    assert np.allclose([one.compute, one.exposed, one.idle], [50 * NS, 50 * NS, 70 * NS])
    # What let rank 1 end: its last work, the call, and the work of rank 0 that came last.
    path = [found.program.operations[i].members[0] for i in critical_path(found, 1)]
    assert path == [(0, 0), (0, 1), (1, 2)]
    assert np.allclose(one.path, [120 * NS, 50 * NS, 0])


def test_compute_hides_a_call() -> None:
    """A call of 80 beside work of 50: 30 exposed; the GPU runs one kernel at a time, in the trace's order."""
    nodes = [call(0, "all_reduce", 80), work(1, 30 * NS), work(2, 20 * NS), work(3, 5 * NS, 0, 2)]
    found = _run({0: nodes, 1: nodes})
    assert _ends(found, 0) == [80, 30, 50, 85]
    row = TraceItem("x", (0, 1), found).ranks[0]
    assert np.allclose([row.compute, row.communication, row.exposed, row.idle], [55 * NS, 80 * NS, 30 * NS, 0])


def test_calls_of_a_group_follow_one_another_and_groups_run_beside_each_other() -> None:
    nodes = [call(0, "all_reduce", 40), call(1, "all_gather", 10), call(2, "all_reduce", 25, group="a")]
    found = _run({0: nodes, 1: nodes}, groups={"a": (0, 1)})
    # The all_gather's ten bytes are those of one rank: twenty in all.
    assert _ends(found, 0) == [40, 60, 25]


def test_messages_leave_when_sent_and_queue_up_on_their_pair() -> None:
    found = _run(
        {
            0: [message(0, "send", 1, 10), message(1, "send", 1, 20, tag=1), work(2, 5 * NS, 0)],
            1: [message(0, "recv", 0, 20, tag=1), message(1, "recv", 0, 10), work(2, 1 * NS, 0, 1)],
        }
    )
    assert _ends(found, 0) == [10, 30, 15]
    assert _ends(found, 1) == [30, 10, 31]


def test_a_ring_whose_ranks_all_send_first_does_not_wait_for_ever() -> None:
    n = 4
    ranks = {
        r: [message(0, "send", (r + 1) % n, 8), message(1, "recv", (r - 1) % n, 8, 0), work(2, 3 * NS, 1)]
        for r in range(n)
    }
    assert _run(ranks).seconds == pytest.approx(11 * NS)


def test_a_late_receiver_ends_when_it_comes() -> None:
    found = _run(
        {0: [message(0, "send", 1, 10)], 1: [work(0, 70 * NS), message(1, "recv", 0, 10, 0), work(2, 1 * NS, 1)]}
    )
    assert _ends(found, 1) == [70, 70, 71]
    assert TraceItem("x", (0, 1), found).ranks[1].exposed == 0.0


def test_ranks_that_are_always_ready() -> None:
    """Rank 1 has no trace: a call starts when rank 0 comes, a message arrives as long after it is waited for."""
    found = _run({0: [work(0, 9 * NS), call(1, "all_reduce", 50, 0), message(2, "recv", 1, 7, 1)]}, world=2)
    assert _ends(found, 0) == [9, 59, 66]
    assert len(TraceItem("x", (0, 1), found).ranks) == 1


def test_host_and_memory_run_beside_the_gpu() -> None:
    nodes = [work(0, 10 * NS), Node(1, "h", "cpu", seconds=25 * NS), Node(2, "m", "memory", seconds=5 * NS)]
    found = _run({0: nodes})
    row = TraceItem("x", (0,), found).ranks[0]
    assert np.allclose([found.seconds, row.compute, row.other, row.idle], [25 * NS, 10 * NS, 15 * NS, 0])


def test_an_empty_trace_takes_no_time() -> None:
    item = TraceItem("x", (0,), _run({0: []}))
    assert item.seconds == 0.0
    assert item.bottleneck == "nothing"
    assert item.timeline.rows == 0


# -- groups ---------------------------------


def test_axes_of_involved_dim() -> None:
    nodes = [Node(0, "c", "collective", nbytes=1, collective="all_reduce", dims=(False, True))]
    found = _run(dict.fromkeys(range(6), nodes), axes=(2, 3))
    assert sorted(key[1] for key in found.program.keys if key) == [(0, 2, 4), (1, 3, 5)]
    with pytest.raises(ScenarioError, match=r"involved_dim of 2 axes, but axes \[6\] of 6 ranks"):
        _run(dict.fromkeys(range(6), nodes))


def test_a_group_no_file_lists_is_who_names_it() -> None:
    found = _run({0: [call(0, "all_reduce", 5, group="x")], 1: [], 2: [call(0, "all_reduce", 5, group="x")]})
    assert [key[1] for key in found.program.keys if key] == [(0, 2)]


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (
            {0: [call(0, "all_reduce", 5)], 1: [call(0, "all_gather", 5)]},
            "call 1 on a group of 2 ranks .* is all_gather",
        ),
        ({0: [call(0, "all_reduce", 5)], 1: [call(0, "all_reduce", 6)]}, "of 6 bytes on rank 1 and all_reduce of 5"),
        ({0: [call(0, "all_reduce", 5)], 1: []}, "rank 1 makes 0 such calls"),
        ({0: [message(0, "send", 1, 5)], 1: []}, r"rank 0 sends 1 messages to rank 1 \(tag 0\), which receives 0"),
        ({0: [message(0, "send", 1, 5)], 1: [message(0, "recv", 0, 6)]}, "receives 6 bytes, but rank 0 sends 5"),
        ({0: [message(0, "send", 2, 5)], 1: []}, "found the peer 2, expected one of the 2 ranks"),
        ({0: [message(0, "send", 0, 5)], 1: []}, "between rank 0 and itself"),
        ({0: [call(0, "all_reduce", 5, group="a")], 1: []}, "rank 0 is not in the process group 'a': 1"),
        (
            {
                0: [call(0, "all_reduce", 5, 1), message(1, "recv", 1, 5)],
                1: [call(0, "all_reduce", 5), message(1, "send", 0, 5, 0)],
            },
            "rank 0 waits for ever for node 1",
        ),
    ],
)
def test_ranks_that_do_not_fit_together(ranks: Ranks, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        _run(ranks, groups={"a": (1,)})


# -- laws ---------------------------------


@st.composite
def _programs(draw: st.DrawFn) -> dict[int, list[Node]]:
    """Three ranks: work of their own between calls that all make in the same order, and messages round the ring."""
    ranks: dict[int, list[Node]] = {r: [] for r in range(3)}
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["work", "call", "ring"]))
        size = draw(st.integers(1, 100))
        for rank, nodes in ranks.items():
            waits: bool = draw(st.booleans())
            last = [nodes[draw(st.integers(0, len(nodes) - 1))].id] if nodes and waits else []
            index = len(nodes)
            if kind == "work":
                nodes.append(work(index, draw(st.integers(0, 50)) * NS, *last))
            elif kind == "call":
                nodes.append(call(index, "all_reduce", size, *last))
            else:
                nodes.append(message(index, "send", (rank + 1) % 3, size, *last))
                nodes.append(message(index + 1, "recv", (rank - 1) % 3, size))
    return ranks


@settings(max_examples=60, deadline=None)
@given(_programs())
def test_the_critical_path_fills_the_time(ranks: dict[int, list[Node]]) -> None:
    """No gap on it, parts that add up on every rank, no dependency broken, and twice the seconds twice the time."""
    found = _run(ranks)
    item = TraceItem("x", (0, 1, 2), found)
    for rank in range(3):
        path = critical_path(found, rank)
        own = max((found.end_s[i] for i in found.program.operation[rank]), default=0.0)
        assert sum(found.end_s[i] - found.start_s[i] for i in path) == pytest.approx(own, abs=1e-15)
        row = item.ranks[rank]
        assert row.compute + row.exposed + row.other + row.idle == pytest.approx(found.seconds, abs=1e-15)
        trace = found.program.traces[rank]
        assert trace is not None
        for i, node in enumerate(trace.nodes):
            for dep in node.deps:
                before, after = (found.program.operation[rank][p] for p in (trace.place[dep], i))
                assert found.end_s[before] <= found.start_s[after] + 1e-15
    assert found.seconds >= max(sum(n.seconds or 0.0 for n in nodes) for nodes in ranks.values()) - 1e-15


# -- on a machine ---------------------------------


def _item(tmp_path: Path, ranks: Ranks, more: str = "", nodes: int = 1) -> tuple[TraceItem, list[str]]:
    write_traces(tmp_path, ranks)
    result = run(load_scenarios(write_scenario(tmp_path, more=more, nodes=nodes))[0])
    return result.traces[0], list(result.warnings)


def test_a_call_takes_what_a_single_nccl_call_takes(tmp_path: Path) -> None:
    """Two roads: the collective alone as a workload item in mode single, and as the one node of a trace."""
    nodes = [call(0, "all_gather", 1 << 20)]
    item, _ = _item(tmp_path, dict.fromkeys(range(16), nodes), nodes=2)
    plain = tmp_path / "plain.yaml"
    plain.write_text(
        "name: plain\ntopology: {preset: hgx-h100-ndr400, nodes: 2}\nlibrary: {name: nccl, version: 2.26.2}\n"
        "mode: single\nworkload:\n  - {collective: all_gather, sizes: 16 MiB}\n"
    )
    assert item.seconds == pytest.approx(run(load_scenarios(plain)[0]).items[0].rows[0].time_s, rel=1e-12)


def test_work_without_a_duration_is_a_roofline(tmp_path: Path) -> None:
    """989.4 TFLOP/s of bf16 and 3.35 TB/s of an H100; scaled by what is asked."""
    nodes = [Node(0, "p", "compute", flops=989.4e12), Node(1, "m", "memory", (0,), nbytes=3_350_000_000)]
    item, notes = _item(tmp_path, {0: nodes}, "ranks: 0, compute_scale: 2")
    assert item.seconds == pytest.approx(2 * (1 + 1e-3), rel=2e-3)
    assert any("2 nodes have num_ops or tensor_size and no duration" in note for note in notes)


def test_transfers_that_share_a_nic_slow_each_other_down(tmp_path: Path) -> None:
    """Two groups over the same two GPUs of two nodes: one NIC, which has to carry the bytes of both."""
    (tmp_path / "g.json").write_text(json.dumps({"a": [0, 8], "b": [0, 8], "c": [1, 9]}))
    size = 1 << 28
    both = {r: [call(0, "all_reduce", size, group="a"), call(1, "all_reduce", size, group="b")] for r in (0, 8)}
    apart = {r: [call(0, "all_reduce", size, group=g)] for r, g in ((0, "a"), (8, "a"), (1, "c"), (9, "c"))}
    idle: dict[int, list[Node]] = {r: [] for r in range(16)}
    alone = _item(tmp_path / "x", idle | apart, "groups: ../g.json", nodes=2)[0].seconds
    beside = _item(tmp_path / "y", idle | both, "groups: ../g.json", nodes=2)[0].seconds
    without = _item(tmp_path / "z", idle | both, "groups: ../g.json, contention: false", nodes=2)[0].seconds
    assert without == pytest.approx(alone, rel=1e-12)
    assert beside == pytest.approx(2 * size / (0.95 * 50e9), rel=1e-3)  # (n - 1) / n of it, twice, of either group
    assert beside > 1.4 * alone


def test_flows_alone_take_the_closed_form() -> None:
    """Lines that share links, while no one else is on them, take the time that the closed form says."""
    calls = NcclGroups(load_preset("hgx-h100-ndr400", nodes=2), Options())
    first, second = call(0, "all_reduce", 1 << 26, group="a"), call(1, "broadcast", 1 << 24, group="b")
    after = [first, call(1, "broadcast", 1 << 24, 0, group="b")]
    parts = {0: after, 8: after, 1: [second], 9: [second]}
    traces = [Trace(tuple(parts.get(rank, ()))) for rank in range(16)]
    resolver = Groups(traces, [0] * 16, {"a": (0, 8), "b": (0, 1, 8, 9)}, (16,))
    program = build(traces, resolver, calls, range(16), lambda node: 0.0)
    shared = SharedLinks(program, calls, range(16))
    assert shared.contended
    assert simulate(program, shared).seconds == pytest.approx(simulate(program).seconds, rel=1e-12)


def test_repeat_moves_peers_and_groups_on(tmp_path: Path) -> None:
    """Rank 0's part of a ring stands for all eight: the same as eight files."""
    n, size = 8, 1 << 20

    def part(rank: int) -> list[Node]:
        return [
            message(0, "send", (rank + 1) % n, size),
            message(1, "recv", (rank - 1) % n, size),
            call(2, "all_reduce", 512, 1),
        ]

    one, _ = _item(tmp_path / "one", {0: part(0)}, "others: repeat")
    all_of_them, _ = _item(tmp_path / "all", {r: part(r) for r in range(n)})
    assert one.seconds == all_of_them.seconds
    assert [row.end for row in one.ranks] == [row.end for row in all_of_them.ranks]


def test_the_same_trace_on_fewer_ranks_of_a_machine(tmp_path: Path) -> None:
    """Two ranks of one node, or of two: across nodes the same call takes longer."""
    nodes = [call(0, "all_reduce", 1 << 26)]
    near, _ = _item(tmp_path / "near", dict.fromkeys(range(2), nodes), "ranks: 0 .. 1", nodes=2)
    far, _ = _item(tmp_path / "far", dict.fromkeys(range(2), nodes), "ranks: 0 .. 8 +8", nodes=2)
    assert far.places == (0, 8)
    assert far.seconds > 1.5 * near.seconds
