"""The replay of a dump: against sums by hand, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.accuracy.diagnosis import JobDiagnosis, diagnose
from commsim.accuracy.replay import replay
from commsim.errors import CommsimError, ScenarioError
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
        ("nodes=4", "does not say what more ranks"),
        ("bucket=25MiB", "does not say what more ranks"),
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
