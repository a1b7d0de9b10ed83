"""The replay of a dump: against sums by hand, and what it refuses."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.accuracy.buckets import bucketed
from commsim.accuracy.diagnosis import JobDiagnosis, diagnose
from commsim.accuracy.node_count import NodeCount, node_count
from commsim.accuracy.replay import replay
from commsim.api import cost
from commsim.chakra.trace import Node
from commsim.cli import main
from commsim.dumps.call import CallGroup, Dump, RankCall
from commsim.dumps.job import job_of
from commsim.dumps.waits import CallWait, waits_of
from commsim.errors import CommsimError, ScenarioError
from commsim.units import nccl_bytes
from study import dump_forms
from study.dump_forms import Timeline

MACHINE = "hgx-h100-ndr400"
JOB = Timeline(16, ["all_reduce", "all_gather", "reduce_scatter"] * 2, {(5, 3): 0.1}, transfer_s=1e-4)


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    return dump_forms.write_kineto(tmp_path, JOB, host_of=lambda rank: f"node{rank // 8}")


def _replayed(traces: list[Path], *changes: str) -> tuple[JobDiagnosis, float, float]:
    found = diagnose(traces, MACHINE, changes)
    assert found.replayed is not None
    return found, found.replayed.machine_s, found.replayed.changed_s


def test_by_hand(traces: list[Path]) -> None:
    """All ranks leave a call together, so each turn takes the longest gap, then the call's expected time."""
    found, machine_s, _ = _replayed(traces, "nics=4")
    expected = {kind.match.any.operation: kind.expected_s or 0.0 for kind in found.kinds}
    starts, ends = JOB.starts, JOB.ends
    left = [[min(s for s in starts[0])] * 16, *ends[:-1]]
    gaps = [max(start - before for start, before in zip(starts[c], left[c], strict=True)) for c in range(6)]
    total = sum(gap / 1e9 + expected[JOB.operations[c]] for c, gap in enumerate(gaps))
    assert machine_s == pytest.approx(total, rel=1e-3)


def test_what_changes_nothing_changes_nothing(traces: list[Path]) -> None:
    found, machine_s, changed_s = _replayed(traces, "nics=8")
    assert changed_s == machine_s
    assert "exactly the same: on this machine that changes nothing" in found.answer[-1]


def test_fewer_nics_take_longer_and_the_gap_stays(traces: list[Path]) -> None:
    found, machine_s, changed_s = _replayed(traces, "nics=1", "library.env.NCCL_ALGO=Ring")
    assert changed_s > machine_s > 0.1
    assert f"{100 * (changed_s / machine_s - 1):.1f} % longer" in found.answer[-1]
    assert "topology.nics_per_node=1" in found.answer[-1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("nodes=0", "expected a whole number from 1"),
        ("nodes=2.5", "expected a whole number from 1"),
        ("nodes=", "expected nodes=4"),
        ("bucket=0", "found 0 bytes"),
        ("bucket=", "expected bucket=50MB"),
        ("bucket=many", "bucket"),
        ("bucket=1", "at least"),
        ("bucket=64", "over 100,000 parts"),
        ("nonsense=1", "unknown key 'nonsense'"),
        ("nics", "expected key.path=value"),
        ("nics=0x", "nics_per_node"),
    ],
)
def test_what_cannot_be_changed(traces: list[Path], change: str, says: str) -> None:
    with pytest.raises(CommsimError, match=says):
        diagnose(traces, MACHINE, [change])


def test_what_cannot_be_replayed(tmp_path: Path) -> None:
    for name, files, says in (
        ("flight", dump_forms.write_flight, "does not hold the start and the end"),
        ("nsys", dump_forms.write_nsys, "does not hold the sizes"),
    ):
        (tmp_path / name).mkdir()
        found = diagnose(files(tmp_path / name, JOB))
        with pytest.raises(ScenarioError, match=says):
            replay(found.job, found.waits, MACHINE, ["nics=4"])


def test_a_rank_is_missing(traces: list[Path]) -> None:
    with pytest.raises(ScenarioError, match="there is no file of rank 3"):
        diagnose([path for path in traces if "trace_3." not in path.name], MACHINE, ["nics=4"])


@pytest.fixture
def gradients(tmp_path: Path) -> list[Path]:
    """Six all_reduces of 4 MiB of two nodes, an all_gather between the fourth and the fifth."""
    job = Timeline(16, ["all_reduce"] * 4 + ["all_gather"] + ["all_reduce"] * 2, {(5, 3): 0.1}, transfer_s=1e-4)
    return dump_forms.write_kineto(tmp_path, job, host_of=lambda rank: f"node{rank // 8}")


@pytest.mark.parametrize(
    ("bucket", "calls"),
    [
        ("4MiB", [(4,), (4,), (4,), (4,), (4,), (4,), (4,)]),
        ("8MiB", [(), (8,), (), (8,), (4,), (), (8,)]),
        ("13MiB", [(), (), (12,), (4,), (4,), (), (8,)]),
        ("1GiB", [(), (), (), (16,), (4,), (), (8,)]),
        ("2MiB", [(2, 2), (2, 2), (2, 2), (2, 2), (4,), (2, 2), (2, 2)]),
        ("3MiB", [(3, 1), (3, 1), (3, 1), (3, 1), (4,), (3, 1), (3, 1)]),
    ],
)
def test_buckets_by_hand(gradients: list[Path], bucket: str, calls: list[tuple[int, ...]]) -> None:
    waits = diagnose(gradients).waits
    sizes = bucketed(waits, nccl_bytes(bucket)).sizes
    called = [sizes.get(i, (wait.match.any.nbytes,)) for i, wait in enumerate(waits)]
    assert called == [tuple(part << 20 for part in parts) for parts in calls]


@settings(max_examples=30)
@given(bucket=st.integers(1 << 10, 1 << 26))
def test_buckets_hold_all_bytes(bucket: int) -> None:
    waits = _waits_of([300, 5_000, 4_000_000, 70_000, 70_000, 12, 9_000_000])
    sizes = bucketed(waits, bucket).sizes
    assert sum(map(sum, sizes.values())) == sum(wait.match.any.nbytes for wait in waits)
    assert all(0 < part <= bucket for parts in sizes.values() for part in parts)


def test_a_bucket_as_large_as_each_call_changes_nothing(gradients: list[Path]) -> None:
    found, machine_s, changed_s = _replayed(gradients, "bucket=4MiB")
    assert changed_s == machine_s
    assert any("6 become 6" in note for note in found.notes)


def test_larger_buckets_are_quicker_and_smaller_ones_slower(gradients: list[Path]) -> None:
    """All starts together by hand: the gaps stay, so the difference is that of the calls."""
    _, machine_s, large_s = _replayed(gradients, "bucket=1GiB")
    _, _, small_s = _replayed(gradients, "bucket=256KiB")
    assert 0.1 < large_s < machine_s < small_s


def test_gradients_that_are_not_told_from_others() -> None:
    """Ranks in two groups that both sum: by the title of a group, else refused."""
    inner, outer = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    for title, names in (("", None), ("mesh_dp", "o")):
        groups = [CallGroup(f"i{n}", "", ranks) for n, ranks in enumerate(inner)]
        groups += [CallGroup(f"o{n}", title, ranks) for n, ranks in enumerate(outer)]
        waits = _waits_of([1000, 1000], groups)
        if names is None:
            with pytest.raises(ScenarioError, match="rank 0 in groups i0, o0, and the dump does not say"):
                bucketed(waits, 4000)
        else:
            assert {waits[i].match.group.name[0] for i in bucketed(waits, 4000).sizes} == {names}


def test_a_job_without_gradients() -> None:
    """None that sums, and sums of a group that splits the model."""
    for groups, operation in ((None, "all_gather"), ([CallGroup("t", "mesh_tp", (0, 1, 2, 3))], "all_reduce")):
        with pytest.raises(ScenarioError, match="found no call of all_reduce or reduce_scatter in a group that may"):
            bucketed(_waits_of([1000], groups, operation), 4000)


def _waits_of(sizes: list[int], groups: list[CallGroup] | None = None, operation: str = "all_reduce") -> list[CallWait]:
    return waits_of(job_of(_dumps_of(sizes, groups, operation)))[0]


def _dumps_of(sizes: list[int], groups: list[CallGroup] | None = None, operation: str = "all_reduce") -> list[Dump]:
    """Calls of uint8 on four ranks that follow each other, group by group."""
    groups = groups or [CallGroup("g", "", (0, 1, 2, 3))]
    dumps = []
    for rank in range(4):
        mine = [group for group in groups if rank in (group.ranks or ())]
        calls = [
            RankCall(rank, g.name, c, operation, n, "uint8", start := 10_000 * (at * len(sizes) + c), start + 5_000)
            for at, g in enumerate(mine)
            for c, n in enumerate(sizes)
        ]
        dumps.append(Dump(Path(f"r{rank}"), "test", calls, groups, ranks=(rank,)))
    return dumps


def test_as_many_nodes_as_recorded_change_nothing(traces: list[Path]) -> None:
    found, machine_s, changed_s = _replayed(traces, "nodes=2")
    assert changed_s == machine_s
    assert any("held as recorded: bytes per rank of data parallel calls" in note for note in found.notes)


def test_more_nodes_are_never_quicker(gradients: list[Path]) -> None:
    taken = [_replayed(gradients, f"{key}={n}")[2] for key, n in (("nodes", 1), ("topology.nodes", 2), ("nodes", 8))]
    assert 0.1 < taken[0] < taken[1] < taken[2]


def test_nodes_by_hand(traces: list[Path]) -> None:
    """All ranks wait for the latest of each gap, which added nodes repeat; calls take what they take on 32 ranks."""
    taken = [_replayed(traces, f"nodes={n}")[2] for n in (2, 4)]
    calls = [2 * sum(cost(op, "4MiB", n, MACHINE) for op in set(JOB.operations)) for n in (16, 32)]
    assert taken[1] - taken[0] == pytest.approx(calls[1] - calls[0], rel=1e-6)


def _scaled(groups: list[CallGroup], after: int, operation: str = "all_reduce") -> NodeCount:
    """A job of two nodes with two ranks each."""
    dumps = _dumps_of([1000], groups, operation)
    job = job_of(dumps)
    return node_count(job, waits_of(job)[0], 2, after)


def test_groups_of_more_and_fewer_nodes() -> None:
    groups = [
        CallGroup("a", "", (0, 1)),
        CallGroup("b", "", (2, 3)),
        CallGroup("x", "", (0, 2)),
        CallGroup("y", "", (1, 3)),
    ]
    more, fewer = _scaled(groups, 3), _scaled(groups, 1)
    assert more.groups == {"a": (0, 1), "b": (2, 3), "a of node 2": (4, 5), "x": (0, 2, 4), "y": (1, 3, 5)}
    assert fewer.groups == {"a": (0, 1), "x": (0,), "y": (1,)}
    row = [Node(0, "", "collective", group="a"), Node(1, "", "collective", group="x")]
    rows = more.rows(dict.fromkeys(range(4), row))
    assert [node.group for node in rows[4]] == ["a of node 2", "x"]
    assert [node.group for node in rows[0]] == ["a", "x"]


@pytest.mark.parametrize(
    ("groups", "operation", "says"),
    [
        ([(0, 1, 2)], "all_reduce", "does not have the same ranks of each of the 2 nodes"),
        ([(0, 1, 2, 3)], "all_to_all", "spans nodes and calls all_to_all"),
    ],
)
def test_groups_that_do_not_grow(groups: list[tuple[int, ...]], operation: str, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        _scaled([CallGroup(f"g{i}", "", ranks) for i, ranks in enumerate(groups)], 4, operation)


def test_jobs_that_do_not_grow(tmp_path: Path) -> None:
    dumps = _dumps_of([1000])
    for per_node, hosts, messages, says in (
        (4, "", 0, "was on one node"),
        (3, "", 0, "expected whole nodes of 3"),
        (2, "one", 0, "found 4 ranks on 1 host, expected 2 consecutive ranks on each"),
        (2, "", 5, "found sends and receives"),
    ):
        job = job_of([replace(dump, host=hosts, messages=messages) for dump in dumps])
        with pytest.raises(ScenarioError, match=says):
            node_count(job, waits_of(job)[0], per_node, 4)
        if says == "was on one node":
            assert node_count(job, waits_of(job)[0], per_node, 1).groups == {"g": (0, 1, 2, 3)}


@pytest.mark.parametrize(
    ("change", "says"), [("bucket=1", "--with bucket: found 1 B, expected at least 4 B"), ("nodes=x", "--with nodes:")]
)
def test_refusals_exit_with_2(
    traces: list[Path], change: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["commsim", "dump", *map(str, traces), "--on", MACHINE, "--with", change])
    with pytest.raises(SystemExit) as info:
        main()
    assert info.value.code == 2
    assert says in " ".join(capsys.readouterr().err.split())
