"""What would take more memory than it may is counted, and refused before it is built."""

from __future__ import annotations

import sys
import tracemalloc
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from fresh import fresh
from typer.testing import CliRunner

from commsim.cli.schedule import app
from commsim.collectives.check import check
from commsim.collectives.registry import build
from commsim.collectives.traffic import require_rows
from commsim.errors import MemoryLimitError, UnitError
from commsim.memory import allowed, limit_bytes, machine_bytes, require_memory
from commsim.planner.sweep import read_sweep
from commsim.planner.workers import start_worker
from commsim.units import GIB


def test_the_limit_is_half_of_what_is_free_unless_allowed() -> None:
    half, machine = limit_bytes(), machine_bytes()
    if half is None or machine is None:
        pytest.skip("this system does not say how much memory it has")
    assert 0 < half <= machine // 2
    with allowed(1000):
        assert limit_bytes() == 1000
        with allowed(5):
            assert limit_bytes() == 5
        assert limit_bytes() == 1000
    assert limit_bytes() == half


def test_a_refusal_says_what_it_would_take_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commsim.memory.machine_bytes", lambda: 8 << 30)
    with allowed(1 << 30):
        require_memory(1 << 30, 10)
        with pytest.raises(MemoryLimitError) as one:
            require_memory(3 << 30, 30, subject="a list", what="small things", advice="take fewer")
        with pytest.raises(MemoryLimitError) as other:
            require_memory(9 << 30, 90)
    assert str(one.value) == (
        "a list of 30 small things needs about 3 GiB, the limit is 1 GiB (half of the free memory unless set); "
        "10 things would fit: take fewer; or allow it with --memory 3GiB"
    )
    assert "--memory" not in str(other.value), "there is not so much"


@pytest.mark.parametrize(
    ("collective", "algorithm", "ranks"),
    [
        ("all_reduce", "ring", 20_000),
        ("all_to_all", "pairwise", 100_000),
        ("all_to_all", "bruck", 100_000),
        ("all_reduce", "hierarchical_3", 65_536),
        ("all_gather", "pat", 65_536),
        ("broadcast", "flat", 10**12),
    ],
)
def test_a_schedule_that_does_not_fit_is_not_built(collective: str, algorithm: str, ranks: int) -> None:
    tracemalloc.start()
    with allowed(8 << 30), pytest.raises(MemoryLimitError, match=f"{algorithm} {collective} on {ranks:,} ranks"):
        require_rows(collective, algorithm, ranks)
    assert tracemalloc.get_traced_memory()[1] < 1 << 26
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "swing"),
        ("all_reduce", "hierarchical"),
        ("all_to_all", "pairwise"),
        ("all_to_all", "hierarchical"),
        ("scatter", "binomial"),
        ("reduce_scatter", "bruck"),
    ],
)
def test_what_is_built_stays_below_its_estimate(collective: str, algorithm: str) -> None:
    """Estimated bytes are those of the largest peak, with a twentieth for what does not grow."""
    n = 16_384 if collective == "scatter" else 256
    tracemalloc.start()
    schedule = build(collective, algorithm, n, 4 * n)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    per_row = 80 if algorithm == "ring" else 290
    assert peak < 1.05 * per_row * schedule.rows
    with allowed(per_row * schedule.rows):
        require_rows(collective, algorithm, n)
    with allowed(per_row * schedule.rows - 1), pytest.raises(MemoryLimitError):
        require_rows(collective, algorithm, n)


def test_a_proof_is_refused_by_its_table() -> None:
    schedule = build("all_reduce", "ring", 128, 4 * 128)
    slots = 128 * 3 * 128
    with allowed((56 + 2 * 16) * slots):
        check(schedule)
        require_rows("all_reduce", "ring", 128, proof=True)
    with allowed((56 + 2 * 16) * slots - 1):
        with pytest.raises(MemoryLimitError, match=f"the proof of ring all_reduce on 128 ranks, a table of {slots:,} "):
            check(schedule)
        with pytest.raises(MemoryLimitError, match=f"{slots:,} slots"):
            require_rows("all_reduce", "ring", 128, proof=True)


def test_an_order_in_which_all_wait_for_all_is_refused_by_its_pairs() -> None:
    schedule = build("all_reduce", "direct_two_shot", 64, 64 * 64)
    pairs = 64 * 63 * 64  # of each block 63 sums come before 63 copies and the owner's own
    assert 0.9 * pairs < schedule.dependencies()[1].size <= pairs
    with allowed(64 * pairs):
        schedule.dependencies()
    with allowed(64 * pairs - 1), pytest.raises(MemoryLimitError, match=f"a list of {pairs:,} pairs"):
        schedule.dependencies()


def test_memory_holds_for_one_command() -> None:
    runner = CliRunner()
    refused = runner.invoke(app, ["stats", "ring", "-n", "300", "--memory", "1MiB"])
    assert isinstance(refused.exception, MemoryLimitError)
    assert runner.invoke(app, ["stats", "ring", "-n", "300"]).exit_code == 0
    assert runner.invoke(app, ["check", "ring", "-n", "30", "--memory", "1GiB"]).exit_code == 0
    wrong = runner.invoke(app, ["stats", "ring", "--memory", "16"])
    assert isinstance(wrong.exception, UnitError)
    assert str(wrong.exception).startswith("--memory: found the bare number '16'")


def test_processes_of_a_sweep_share_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Pool:
        def __init__(self, *arguments: Any) -> None:
            given.append(arguments)
            raise InterruptedError

    monkeypatch.setattr("commsim.planner.workers.Pool", Pool)
    from commsim.planner.workers import run_local

    file = tmp_path / "s.yaml"
    file.write_text(
        "name: S\ntopology: {preset: hgx-h100-ndr400}\nlibrary: none\n"
        "workload: [{collective: all_reduce, sizes: 1 MiB}]\nsweep: {topology.nodes: [1, 2]}\n"
    )
    sweep = read_sweep(file)
    with allowed(6 << 30), pytest.raises(InterruptedError):
        next(run_local(sweep, list(sweep.points()), 3))
    ((count, begin, arguments),) = given
    assert (count, begin, arguments) == (3, start_worker, (sweep, 2 << 30))

    def in_worker() -> int | None:
        begin(*arguments)
        return limit_bytes()

    assert copy_context().run(in_worker) == 2 << 30
    assert limit_bytes() != 2 << 30


_HEAD = "name: Hostile\ntopology: {preset: hgx-h100-ndr400, nodes: %s}\nlibrary: none\n"
_HOSTILE = {
    "a million nodes": (
        _HEAD % 1_000_000 + "workload: [{collective: all_to_all, sizes: 1 GiB}]",
        ["topology.nodes: found 1000000, expected a whole number <= 65536"],
    ),
    "what does not fold": (
        _HEAD % 12_500 + "workload: [{collective: all_to_all, sizes: 1 GiB}]",
        ["pairwise all_to_all on 100,000 ranks, a simulation of 10,000,000,000 chunk moves needs about 5.011 TiB"],
    ),
    "the largest machine": (
        _HEAD % 65_536 + "workload: [{collective: all_to_all, sizes: 1 GiB}]",
        ["pairwise all_to_all on 524,288 ranks, a simulation of 274,877,906,944 chunk moves needs about 137.8 TiB"],
    ),
    "jobs that do not fold": (
        _HEAD % 12_500 + "workload: [{jobs: [{collective: all_to_all, size: 1 GiB}]}]",
        ["pairwise all_to_all on 100,000 ranks, a simulation of 10,000,000,000 chunk moves"],
    ),
    "absent links": (
        "name: Hostile\ntopology:\n  preset: hgx-h100-ndr400\n  nodes: 4\n  faults:\n"
        + "".join(f"    - {{link: [leaf{i}.rail9, spine{i}], failed: true}}\n" for i in range(5))
        + "workload: [{collective: all_reduce, sizes: 1 GiB}]",
        [f":{6 + i}:14 topology.faults.{i}.link: leaf{i}.rail9 is neither a device nor a switch" for i in range(5)],
    ),
}


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's own memory is asked of Linux")
@pytest.mark.parametrize("what", _HOSTILE)
def test_hostile_questions_are_refused_at_once(what: str, tmp_path: Path) -> None:
    """Bars: 500 MiB; all faults of a file in one answer; exit status 2. What a fork inherits does not count."""
    text, expected = _HOSTILE[what]
    (tmp_path / "q.yaml").write_text(text)
    done = fresh("run", str(tmp_path / "q.yaml"), "--no-files")
    assert done.status == 2, done.said
    assert all(line in done.said for line in expected), done.said
    assert done.peak_kib * 1024 < 500 / 1024 * GIB
