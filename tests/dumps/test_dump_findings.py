"""Waiting told from transferring, and what is wrong: against timelines whose truth is known, by hand, and by laws."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.accuracy.diagnosis import diagnose
from commsim.accuracy.expected import slow_findings
from commsim.dumps.call import CallGroup, Dump, RankCall
from commsim.dumps.finding import format_ranks
from commsim.dumps.findings import covered_s, findings_of, late_findings
from commsim.dumps.job import job_of
from commsim.dumps.waits import rank_times, waits_of
from commsim.errors import LogFormatError, ScenarioError
from commsim.report.dumps import dump_tables
from study import dump_forms, dump_runs, dump_score
from study.dump_forms import Entry, Timeline

DATA = Path(__file__).resolve().parents[1] / "data" / "dumps"
MS = 1_000_000


def _dump(rank: int, *calls: RankCall, host: str = "", ranks: tuple[int, ...] = (0, 1, 2)) -> Dump:
    return Dump(Path(f"r{rank}"), "test", calls, (CallGroup("g", "", ranks),), ranks=(rank,), host=host)


def _call(rank: int, sequence: int, start_ms: float | None, end_ms: float | None, **more: object) -> RankCall:
    start, end = (None if t is None else round(t * MS) for t in (start_ms, end_ms))
    call = RankCall(rank, "g", sequence, "all_reduce", 4096, "float32", start, end)
    return replace(call, **more)  # type: ignore[arg-type]


def test_by_hand_on_one_clock() -> None:
    job = job_of([_dump(0, _call(0, 1, 1, 10)), _dump(1, _call(1, 1, 2, 10)), _dump(2, _call(2, 1, 7, 10))])
    (wait,), clocks = waits_of(job)
    assert clocks == []
    assert wait.last == 2
    assert wait.waiting_s == pytest.approx({0: 6e-3, 1: 5e-3, 2: 0})
    assert wait.transfer_s == pytest.approx(3e-3)
    assert wait.cost_s == pytest.approx(5e-3)  # against the middle one of three


def test_by_hand_from_durations() -> None:
    calls = [_call(r, 1, None, None, seconds=s) for r, s in enumerate((9e-3, 8e-3, 3e-3))]
    (wait,), _ = waits_of(job_of([_dump(r, call) for r, call in enumerate(calls)]))
    assert (wait.last, wait.start_s) == (2, {})
    assert wait.waiting_s == pytest.approx({0: 6e-3, 1: 5e-3, 2: 0})
    assert wait.transfer_s == pytest.approx(3e-3)


def test_a_root_does_not_wait_after_it_left() -> None:
    calls = [_call(0, 1, 1, 2, operation="broadcast"), _call(1, 1, 5, 8, operation="broadcast")]
    (wait,), _ = waits_of(job_of([_dump(r, call, ranks=(0, 1)) for r, call in enumerate(calls)]))
    assert wait.waiting_s == pytest.approx({0: 1e-3, 1: 0})


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    ahead_ms=st.floats(-5000, 5000),
    late=st.floats(0.02, 2.0),
    n_ranks=st.sampled_from([4, 8, 16]),
)
def test_two_roads_to_the_waiting(seed: int, ahead_ms: float, late: float, n_ranks: int) -> None:
    """Clocks put together by ends, and durations alone, both give the timeline's truth, whatever the clocks say."""
    draw = random.Random(seed)
    rank, call = draw.randrange(n_ranks), draw.randrange(10)
    job = Timeline(n_ranks, ["all_reduce"] * 10, {(rank, call): late}, seed=seed)
    dumps = []
    for r in range(n_ranks):
        off = round(ahead_ms * MS) if r >= n_ranks // 2 else 0
        times = [(job.starts[c][r] + off, job.ends[c][r] + off) for c in range(10)]
        calls = [RankCall(r, "g", c, "all_reduce", 8, "", *start_end) for c, start_end in enumerate(times)]
        dumps.append(Dump(Path(f"r{r}"), "test", calls, ranks=(r,), host="ab"[r >= n_ranks // 2]))
    by_starts, clocks = waits_of(job_of(dumps))
    bare = [
        replace(d, calls=[replace(c, start_ns=None, end_ns=None, seconds=c.duration_s) for c in d.calls]) for d in dumps
    ]
    by_durations, _ = waits_of(job_of(bare))
    assert clocks[1].ahead_s == pytest.approx(ahead_ms / 1e3, abs=1e-4)
    for road in (by_starts, by_durations):
        wait = next(w for w in road if w.match.sequence == call)
        assert wait.last == rank
        for r, true in enumerate(job.waiting_s(call)):
            assert wait.waiting_s[r] == pytest.approx(true, abs=1e-4)


def test_without_hosts_clocks_are_left() -> None:
    job = job_of([_dump(r, *(_call(r, s, 10 * s + 5 * r, 10 * s + 9) for s in range(5))) for r in range(3)])
    assert waits_of(job)[1] == []


@pytest.mark.parametrize("seed", range(6))
def test_all_that_may_be_wrong_is_named(tmp_path: Path, seed: int) -> None:
    scores = dump_score.score_forms(tmp_path, seed)
    assert [score for score in scores if not score.named] == []
    assert max(abs(error) for score in scores for error in score.errors) < 0.05


def test_real_late_ranks_are_named_with_their_waiting() -> None:
    """gloo on four ranks, whose flight recorders and traces were written as it ran."""
    plan = dump_runs.late_plan(1)
    for score in _scores(plan, DATA / "gloo-late", ("flight_rank_?.json", "trace_rank?.json.gz")):
        assert score.named, score.answer
        assert max(map(abs, score.errors)) < 0.05
        assert len(score.errors) == 9  # three late ranks, three others each


def test_a_real_missing_rank_is_named() -> None:
    found = diagnose([DATA / "gloo-missing"])
    assert found.answer[0].startswith("Rank 2 never entered all_reduce #9 of 256 KiB of group 0 (default_pg)")
    assert "in which ranks 0-1, 3 wait" in found.answer[0] or "in which ranks 0, 1, 3 wait" in found.answer[0]


def _scores(plan: dump_runs.Plan, folder: Path, patterns: tuple[str, ...]) -> list[dump_score.Score]:
    entered = dump_runs.truth(folder)
    return [
        dump_score._late(plan, diagnose(sorted(folder.glob(p))), p, entered, numbered="flight" in p) for p in patterns
    ]


JOB = Timeline(4, ["all_reduce", "all_gather"] * 4)


def test_nothing_is_wrong(tmp_path: Path) -> None:
    found = diagnose(dump_forms.write_flight(tmp_path, JOB))
    assert found.findings == []
    assert (
        found.answer[0]
        == "Nothing is wrong: 8 collectives of ranks 0-3, each entered by all its ranks with the same call."
    )


def test_one_rank_says_what_it_can_and_cannot(tmp_path: Path) -> None:
    found = diagnose(dump_forms.write_flight(tmp_path, JOB)[:1])
    assert found.answer[0].startswith("Nothing is wrong that one rank can tell")
    assert "needs the files of the other ranks" in found.answer[1]
    assert any("there is no file of ranks 1-3" in note for note in found.notes)


def test_an_absent_rank_of_a_call_that_did_not_end(tmp_path: Path) -> None:
    files = dump_forms.write_flight(tmp_path, JOB, lambda r, e: [*e[:-1], dump_forms.unfinished(e[-1])])
    found = diagnose([path for path in files if not path.name.endswith("2")])
    assert (found.findings[0].kind, found.findings[0].ranks) == ("missing", (2,))
    assert "there is no dump of rank 2" in found.answer[0]


def test_hosts_that_are_ahead_do_not_hide_the_call_that_hangs(tmp_path: Path) -> None:
    """Calls are asked for ahead of time: rank 3 has asked for fewer, but all are in the one that does not end."""

    def change(rank: int, entries: list[Entry]) -> list[Entry]:
        waiting = [dump_forms.unfinished(e, "scheduled") for e in entries[4:]]
        return [*entries[:4], *(waiting[:1] if rank == 3 else waiting)]

    (finding,) = diagnose(dump_forms.write_flight(tmp_path, JOB, change)).findings
    assert (finding.kind, finding.sequence, finding.ranks) == ("stuck", 5, (0, 1, 2, 3))


@pytest.mark.parametrize(("before", "blamed"), [(2, (1,)), (0, (0, 1))])
def test_of_two_that_differ_the_odd_one_does_what_none_did_before(before: int, blamed: tuple[int, ...]) -> None:
    """Rank 2 is not there to decide, as where a mismatch ends processes; without calls before nothing does."""
    same = [[_call(rank, c + 1, 10 * c, 10 * c + 5) for c in range(before)] for rank in range(3)]
    last = [_call(rank, before + 1, 50, None, state="started") for rank in range(2)]
    odd = replace(last[1], dtype="float64")
    dumps = [_dump(0, *same[0], last[0]), _dump(1, *same[1], odd), _dump(2, *same[2])]
    finding = next(f for f in findings_of(job_of(dumps)) if f.kind == "mismatch")
    assert (finding.ranks, finding.sequence) == (blamed, before + 1)
    assert "float64" in finding.text


def test_who_waits_elsewhere_comes_after_who_does_not() -> None:
    """Rank 1 is missing from a since it waits in b for rank 2, which is in neither."""

    def made(rank: int, *names: str) -> Dump:
        calls = [RankCall(rank, n, 1, "all_reduce", 4, "", 10 * i + 1, state="started") for i, n in enumerate(names)]
        groups = (CallGroup("a", "", (0, 1)), CallGroup("b", "", (1, 2)))
        return Dump(Path(f"r{rank}"), "test", calls, groups, ranks=(rank,))

    job = job_of([made(0, "a"), made(1, "b"), replace(made(2), calls=[RankCall(2, "c", 1, "barrier")])])
    first, second = (f for f in findings_of(job) if f.kind == "missing")
    assert (first.ranks, first.group) == ((2,), "b")
    assert (second.ranks, second.group) == ((1,), "a")
    assert second.text.endswith("it waits itself in all_reduce #1 of group b")


def test_groups_of_one_name_and_other_ranks_are_apart() -> None:
    """Two halves that call themselves the same; rank 2 is missing from its own."""

    def made(rank: int, calls: int) -> Dump:
        half = (0, 1) if rank < 2 else (2, 3)
        row = [RankCall(rank, "tp", c + 1, "all_reduce", 4, "", 10 * c + 1, state="completed") for c in range(calls)]
        return Dump(Path(f"r{rank}"), "test", row, (CallGroup("tp", "", half),), ranks=(rank,))

    job = job_of([made(0, 3), made(1, 3), made(2, 1), made(3, 2)])
    assert set(job.groups) == {"tp of ranks 0, 1", "tp of ranks 2, 3"}
    (missing,) = (f for f in findings_of(job) if f.kind == "missing")
    assert (missing.ranks, missing.sequence, missing.group) == ((2,), 2, "tp of ranks 2, 3")


def _message(name: str, state: str = "scheduled") -> Entry:
    entry = dump_forms.flight_entries(JOB, 0)[0] | {"profiling_name": name, "is_p2p": True}
    return dump_forms.unfinished(entry, state)


def test_a_pipeline_that_hangs_names_who_did_not_send(tmp_path: Path) -> None:
    """Each stage waits for the one before, and rank 0 sends nothing."""
    waits = {1: "nccl:recv 1<-0", 2: "nccl:recv 2<-1", 3: "nccl:recv 3<-2"}
    files = dump_forms.write_flight(tmp_path, JOB, lambda r, e: [*e, _message(waits[r])] if r in waits else e)
    first, *others = diagnose(files).findings
    assert (first.kind, first.ranks, first.operation) == ("missing", (0,), "send")
    assert "rank 1 waits in a recv from rank 0 of group 0 at train.py:40, which does not end" in first.text
    assert first.text.endswith("rank 0 has no send under way")
    assert [f.ranks for f in others] == [(1,), (2,)]
    assert others[0].text.endswith("rank 1 has no send under way, it waits elsewhere")


def test_a_message_that_both_are_in(tmp_path: Path) -> None:
    names = {1: "nccl:send 1->2", 2: "nccl:recv 2<-1"}
    files = dump_forms.write_flight(tmp_path, JOB, lambda r, e: [*e, _message(names[r])] if r in names else e)
    (finding,) = diagnose(files).findings
    assert (finding.kind, finding.ranks) == ("stuck", (1, 2))


def test_messages_that_ended_are_no_matter(tmp_path: Path) -> None:
    over = _message("nccl:send 0->1") | {"state": "completed"}
    found = diagnose(dump_forms.write_flight(tmp_path, JOB, lambda r, e: [*e, over] if r == 0 else e))
    assert found.findings == []
    assert any("1 sends and receives" in note for note in found.notes)


def test_a_recording_that_ends_early_is_no_missing_rank(tmp_path: Path) -> None:
    """The others left the call as ever: the rank was in it, or they would not have."""
    files = dump_forms.write_kineto(tmp_path, JOB, host_of=str, packed=False)
    document = json.loads(files[2].read_text())
    document["traceEvents"] = document["traceEvents"][:-2]
    files[2].write_text(json.dumps(document))
    found = diagnose(files)
    assert found.findings == []
    assert any("the recording of rank 2 ends before all_gather #8" in note for note in found.notes)


def test_a_call_left_by_its_timeout_is_not_measured_by_itself() -> None:
    """The second of two calls ends after 12 s, and rank 2 has none: rank 1 was in the first for 30 ms."""
    dumps = [_dump(r, _call(r, 1, 0 if r == 0 else 1470, 1500), _call(r, 2, 2000, 14_000)) for r in (0, 1)]
    job = job_of([*dumps, _dump(2, _call(2, 1, 0, 1500))])
    assert [(f.kind, f.ranks, f.sequence) for f in findings_of(job)] == [("missing", (2,), 2)]


def test_a_rank_that_is_always_waited_for_may_end_its_recording() -> None:
    """Rank 0 waits 50 ms for rank 1 in every call, so that it does in the last, which rank 1 has no more."""
    ends = [
        [_call(0, s, 100 * s, 100 * s + 51) for s in range(4)],
        [_call(1, s, 100 * s + 50, 100 * s + 51) for s in range(3)],
    ]
    job = job_of([_dump(rank, *calls, ranks=(0, 1)) for rank, calls in enumerate(ends)])
    assert findings_of(job) == []


def test_late_by_its_share() -> None:
    dumps = [_dump(r, *(_call(r, s, 100 * s + (r == 2) * 20, 100 * s + 30) for s in range(10))) for r in range(3)]
    job = job_of(dumps)
    waits, _ = waits_of(job)
    (finding,) = late_findings(job, waits, rank_times(waits), 0.05)
    assert (finding.kind, finding.ranks) == ("late", (2,))
    assert "came last into 10 of 10 collectives and cost the others 200 ms of 930 ms" in finding.text
    assert late_findings(job, waits, rank_times(waits), 0.25) == []


def test_slower_than_expected(tmp_path: Path) -> None:
    """4 MiB in 2 ms on four H100 is far above what the model gives; 25 us would be within."""
    job = Timeline(4, ["all_reduce"] * 6)
    found = diagnose(dump_forms.write_kineto(tmp_path, job, host_of=str), "hgx-h100")
    (kind,) = found.kinds
    assert kind.expected_s is not None
    assert 10e-6 < kind.expected_s < 200e-6
    assert kind.transfer_s == pytest.approx(2e-3, rel=0.03)
    assert [f.kind for f in found.findings] == ["slow"]
    assert slow_findings([replace(kind, transfer_s=kind.expected_s)]) == []


def test_a_rank_twice_is_refused(tmp_path: Path) -> None:
    path = dump_forms.write_flight(tmp_path, JOB)[1]
    twin = tmp_path / "copy_rank_1"
    twin.write_bytes(path.read_bytes())
    with pytest.raises(LogFormatError, match="found rank 1, which"):
        diagnose([path, twin])


def test_kinds_are_not_mixed(tmp_path: Path) -> None:
    files = [dump_forms.write_flight(tmp_path, JOB)[0], dump_forms.write_nsys(tmp_path, JOB)[1]]
    with pytest.raises(LogFormatError, match="several kinds") as error:
        diagnose(files)
    assert f"flight recorder: {files[0]}" in str(error.value)
    assert f"nsys export: {files[1]}" in str(error.value)


@given(st.sets(st.integers(0, 60), min_size=1))
def test_ranks_in_words_are_those_ranks(ranks: set[int]) -> None:
    text = format_ranks(ranks).split(" ", 1)[1]
    read: set[int] = set()
    for part in text.split(", "):
        if part != "...":
            first, _, last = part.partition("-")
            read |= set(range(int(first), int(last or first) + 1))
    assert read <= ranks
    assert read == ranks or "..." in text


def test_torchs_own_reader_agrees(tmp_path: Path) -> None:
    """The dumps written by hand are such that the tool of PyTorch finds the same missing rank (an outside referee)."""
    builder = pytest.importorskip("torch.distributed.flight_recorder.components.builder")
    config = pytest.importorskip("torch.distributed.flight_recorder.components.config_manager")
    loader = pytest.importorskip("torch.distributed.flight_recorder.components.loader")

    def change(rank: int, entries: list[Entry]) -> list[Entry]:
        return entries[:4] if rank == 3 else [*entries[:4], dump_forms.unfinished(entries[4])]

    files = dump_forms.write_flight(tmp_path, JOB, change)
    (finding,) = diagnose(files).findings
    manager = config.JobConfig()
    args = manager.parse_args([str(tmp_path), "--prefix", "nccl_trace_rank_"])
    details, version = loader.read_dir(args)
    database = builder.build_db(details, args, version)
    broken = next(c for c in database.collectives if not c.pass_check or c.missing_ranks)
    assert (broken.missing_ranks, broken.collective_seq_id) == (set(finding.ranks), finding.sequence)


def test_the_record_of_the_real_run_is_whole() -> None:
    assert [len(json.loads((DATA / "gloo-late" / f"truth{r}.json").read_text())) for r in range(4)] == [12] * 4


def test_ranks_that_come_together_are_not_last() -> None:
    """Four calls, one of which rank 1 enters 40 ms late; the others are entered by all at once."""
    late = {2: 40.0}
    dumps = [
        _dump(r, *(_call(r, s, 100 * s + (late.get(s, 0) if r == 1 else 0), 100 * s + 50) for s in range(4)))
        for r in range(3)
    ]
    waits, _ = waits_of(job_of(dumps))
    assert [wait.latest for wait in waits] == [(), (), (1,), ()]
    assert [(t.times_last, t.cost_s) for t in rank_times(waits)] == [(0, 0), (1, pytest.approx(0.04)), (0, 0)]
    bare = [
        replace(d, calls=[replace(c, start_ns=None, end_ns=None, seconds=c.duration_s) for c in d.calls]) for d in dumps
    ]
    assert [wait.latest for wait in waits_of(job_of(bare))[0]] == [(), (), (1,), ()]


def test_ranks_that_come_late_together_are_all_last() -> None:
    ranks = (0, 1, 2, 3)
    job = job_of([_dump(r, _call(r, 1, 1 if r < 2 else 31, 50), ranks=ranks) for r in ranks])
    (wait,), _ = waits_of(job)
    assert wait.latest == (2, 3)
    assert [t.cost_s for t in rank_times([wait])] == pytest.approx([0, 0, 0.03, 0.03])


def test_the_start_of_a_recording_is_left_out_alike(tmp_path: Path) -> None:
    """The traces of a run and its flight recorders, whose first call is a barrier that traces do not hold."""
    forms = [diagnose(sorted((DATA / "gloo-late").glob(p))) for p in ("flight_rank_?.json", "trace_rank?.json.gz")]
    late = [{f.ranks: f.text.split(" of ")[-3] for f in found.findings if f.kind == "late"} for found in forms]
    assert (1,) not in late[0]  # it was late into the first collective alone
    assert (1,) not in late[1]
    assert {(2,), (3,)} <= late[0].keys() & late[1].keys()
    names = [next(note for note in found.notes if "the recording starts in" in note) for found in forms]
    assert names[0].startswith("the recording starts in barrier #1 and all_reduce #2:")
    assert names[1].startswith("the recording starts in all_reduce #1:")
    for found in forms:
        assert max(rank.waiting_s for rank in found.ranks) < covered_s(found.judged)
    tables = [dump_tables(found) for found in forms]
    assert "all_reduce #2 " not in tables[0].split("most waited for")[1]
    assert "all_reduce #1 " not in tables[1].split("most waited for")[1]


def test_calls_most_waited_for_are_in_that_order_and_unknown_transfers_are_no_zeros() -> None:
    found = diagnose(sorted((DATA / "gloo-late").glob("flight_rank_?.json")))
    assert {rank.transfer_s for rank in found.ranks} == {None}
    table, ranks = dump_tables(found).split("most waited for\n")[1].split("# Ranks")
    waited = [float(line.split()[-2]) for line in table.splitlines() if "#" in line[2:] and line[0] == " "]
    assert len(waited) == 8
    assert waited == sorted(waited, reverse=True)
    assert "0.00" not in ranks


GLOO_TRACES = sorted((DATA / "gloo-late").glob("trace_rank?.json.gz"))


def test_calls_of_gloo_are_held_against_gloo() -> None:
    found = diagnose(GLOO_TRACES, "testbed-star", ["nics=99"])
    assert {kind.choice for kind in found.kinds} == {"gloo_ring", "gloo_binomial"}
    assert any(note.startswith("the calls are gloo's: expected is what library gloo takes") for note in found.notes)
    assert "exactly the same" in found.answer[-1]
    flight = sorted((DATA / "gloo-late").glob("flight_rank_?.json"))
    for files in (GLOO_TRACES, flight):
        with pytest.raises(ScenarioError, match="--on hgx-h100: the calls are gloo's, so library gloo is asked"):
            diagnose(files, "hgx-h100")


def test_calls_of_nccl_have_no_times_on_a_machine_without_gpus(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="--on testbed-star: the calls are NCCL's, and this machine"):
        diagnose(dump_forms.write_kineto(tmp_path, JOB, host_of=lambda rank: "a"), "testbed-star")


def test_the_size_of_an_all_gather_is_that_of_all_ranks_in_every_reader() -> None:
    forms = [diagnose(files) for files in (GLOO_TRACES, sorted((DATA / "gloo-late").glob("flight_rank_?.json")))]
    sizes = [{kind.match.any.operation: kind.match.any.nbytes for kind in found.kinds} for found in forms]
    assert sizes[0]["all_gather"] == sizes[1]["all_gather"] == 4 * 65536 * 4
    assert sizes[0]["broadcast"] == sizes[1]["broadcast"] == 65536 * 4


def test_a_group_of_one_rank_has_a_whole_name() -> None:
    found = diagnose([GLOO_TRACES[0]])
    assert {match.group.name for match in found.job.matches} == {
        "of 1 rank/all_reduce", "of 1 rank/all_gather", "of 1 rank/broadcast"
    }  # fmt: skip
    assert "of 1 rank " in dump_tables(found)
    assert "..." not in dump_tables(found)
