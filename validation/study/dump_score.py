"""Dumps whose truth is known, read back: are rank, call and cause named, and how far is the waiting off?"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commsim.accuracy.diagnosis import JobDiagnosis, diagnose
from study import dump_forms, dump_runs
from study.dump_forms import Entry, Timeline

LEAST_S = 0.02
"""Waiting from which on it is scored."""

_OF_KIND = {
    "missing": ("missing",), "skipped": ("mismatch", "missing"), "operation": ("mismatch", "missing"),
    "size": ("mismatch",), "dtype": ("mismatch",),
}  # fmt: skip
"""What a finding may call it: where a trace of gloo counts each collective by itself, a wrong call is a missing one."""


@dataclass(frozen=True)
class Score:
    """One set of dumps: what was wrong, whether the first finding names it, errors of the waiting as fractions."""

    source: str
    form: str
    wrong: str
    named: bool
    errors: tuple[float, ...] = ()
    answer: str = ""


# -- real ranks ---------------------------------

REAL_FORMS = {"flight recorder, pickle": "flight_rank_?", "flight recorder, JSON": "flight_rank_?.json",
              "torch.profiler, gzipped": "trace_rank?.json.gz"}  # fmt: skip


def score_run(plan: dump_runs.Plan, folder: Path) -> list[Score]:
    """The dumps that a run of gloo left in a folder, in each form."""
    scores = []
    for form, pattern in REAL_FORMS.items():
        if plan.broken in dump_runs.ABORTS and form.startswith("torch.profiler"):
            continue  # the rank whose process gloo ends leaves no trace
        found = diagnose(sorted(folder.glob(pattern)))
        numbered = "flight" in form
        if plan.broken:
            scores.append(_broken(plan, found, form, numbered=numbered))
        else:
            scores.append(_late(plan, found, form, dump_runs.truth(folder), numbered=numbered))
    return scores


def _number(plan: dump_runs.Plan, call: int, *, numbered: bool) -> int:
    """The sequence of a call: in its group after a barrier, or among those of its collective."""
    same = sum(plan.operation(c) == plan.operation(call) for c in range(call + 1))
    return call + 2 if numbered else same


def _broken(plan: dump_runs.Plan, found: JobDiagnosis, form: str, *, numbered: bool) -> Score:
    first = found.findings[0] if found.findings else None
    named = (
        first is not None
        and first.ranks == (plan.rank,)
        and first.kind in _OF_KIND[plan.broken]
        and _names_call(plan, first.sequence, first.operation, numbered=numbered)
    )
    return Score("gloo, 4 ranks", form, plan.broken, named, (), found.answer[0])


def _names_call(plan: dump_runs.Plan, sequence: int, operation: str, *, numbered: bool) -> bool:
    """Whether a finding names the call; one that skipped an equal call lacks the last of the equal ones."""
    call = plan.call
    if plan.broken != "skipped":
        return sequence == _number(plan, call, numbered=numbered) and bool(operation)
    last = call
    while last + 1 < plan.calls and (not numbered or plan.operation(last + 1) == plan.operation(call)):
        last += 1
    return _number(plan, call, numbered=numbered) <= sequence <= _number(plan, last, numbered=numbered)


def _late(
    plan: dump_runs.Plan, found: JobDiagnosis, form: str, entered: Sequence[Sequence[int]], *, numbered: bool
) -> Score:
    errors: list[float] = []
    named = True
    waits = {(w.match.any.operation, w.match.sequence): w for w in found.waits}
    for rank, call, _ in plan.late:
        wait = waits[plan.operation(call), _number(plan, call, numbered=numbered)]
        last = max(times[call] for times in entered)
        named = named and wait.last == rank
        errors += [
            wait.waiting_s[other] / waited - 1
            for other in range(dump_runs.RANKS)
            if (waited := (last - entered[other][call]) / 1e9) >= LEAST_S
        ]
    blamed = {rank for finding in found.findings if finding.kind == "late" for rank in finding.ranks}
    named = named and {rank for rank, _, _ in plan.late} <= blamed
    return Score("gloo, 4 ranks", form, "late", named, tuple(errors), found.answer[0])


# -- NCCL's forms ---------------------------------

Writer = Callable[[Path, Timeline], Sequence[Path]]


def _host(rank: int) -> str:
    return f"node{rank // 4}"


LATE_FORMS: dict[str, Writer] = {
    "flight recorder, pickle": dump_forms.write_flight,
    "flight recorder, JSON": lambda folder, job: dump_forms.write_flight(folder, job, form="json"),
    "Kineto, two hosts' clocks": lambda folder, job: dump_forms.write_kineto(folder, job, host_of=_host),
    "inspector": dump_forms.write_inspector,
    "inspector, verbose": lambda folder, job: dump_forms.write_inspector(folder, job, verbose=True),
    "nsys export": dump_forms.write_nsys,
}
ONE_CLOCK = ("inspector, verbose", "nsys export")
"""Forms whose hosts' names are not in the test, so that their clocks agree in it."""

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")


def score_forms(folder: Path, seed: int) -> list[Score]:
    """One drawn job in every form of NCCL's dumps: late ranks, then each thing that may be wrong."""
    draw = random.Random(seed)
    n_ranks, calls = draw.choice((2, 4, 8, 16, 32)), 24
    operations = [draw.choice(OPERATIONS) for _ in range(calls)]
    rank, call = draw.randrange(n_ranks), draw.randrange(2, calls - 2)
    late = {(rank, call): draw.uniform(0.05, 0.5)}
    ahead = {r: draw.randrange(100_000_000) * (r // 4) for r in range(n_ranks)}
    ahead = {r: ahead[r // 4 * 4] for r in range(n_ranks)}
    job = Timeline(n_ranks, operations, late, ahead, seed=seed)
    scores = []
    for form, write in LATE_FORMS.items():
        made = replace(job, ahead_ns={}) if form in ONE_CLOCK else job
        scores.append(_score_late(write(_place(folder, form, seed), made), made, form, rank, call))
    return scores + _score_wrong(folder, job, seed, rank, call)


def _place(folder: Path, form: str, seed: int) -> Path:
    place = folder / f"{form.replace(' ', '_').replace(',', '')}-{seed}"
    place.mkdir(parents=True)
    return place


def _score_late(files: Sequence[Path], job: Timeline, form: str, rank: int, call: int) -> Score:
    found = diagnose(files)
    true = job.waiting_s(call)
    same = sum(o == job.operations[call] for o in job.operations[: call + 1])
    sequence = same if form == "nsys export" else call + 1
    wait = next(w for w in found.waits if (w.match.any.operation, w.match.sequence) == (job.operations[call], sequence))
    errors = [wait.waiting_s[r] / true[r] - 1 for r in range(job.n_ranks) if true[r] >= LEAST_S]
    first = found.findings[0] if found.findings else None
    named = first is not None and (first.kind, first.ranks, first.sequence) == ("late", (rank,), sequence)
    return Score("NCCL's forms", form, "late", named and wait.last == rank, tuple(errors), found.answer[0])


def _score_wrong(folder: Path, job: Timeline, seed: int, rank: int, call: int) -> list[Score]:
    scores = []
    for wrong, change in _changes(job, rank, call).items():
        for form in ("pickle", "json"):
            files = dump_forms.write_flight(_place(folder, f"{wrong} {form}", seed), job, change, form=form)
            first = next(iter((found := diagnose(files)).findings), None)
            kinds = _OF_KIND.get(wrong, ("stuck",))
            whole = wrong == "stuck"
            tie = job.n_ranks == 2 and wrong in ("operation", "size", "dtype", "skipped")
            every = tuple(range(job.n_ranks))  # of two ranks that differ what they did before may say which is wrong
            blamed = {every} if whole else {(rank,), every} if tie else {(rank,)}
            named = first is not None and first.kind in kinds and first.ranks in blamed
            named = named and first is not None and _near(first.sequence, job, call, skipped=wrong == "skipped")
            label = "flight recorder, " + ("JSON" if form == "json" else form)
            scores.append(Score("NCCL's forms", label, wrong, named, (), found.answer[0]))
    place = _place(folder, "ras", seed)
    launched = [641 - (r == rank) for r in range(job.n_ranks)]
    found = diagnose([dump_forms.write_ras_json(place, launched)])
    named = bool(found.findings) and found.findings[0].ranks == (rank,) and found.findings[0].sequence == 641
    scores.append(Score("NCCL's forms", "ncclras, JSON", "missing", named, (), found.answer[0]))
    path = place / "ras.txt"
    path.write_text(dump_forms.RAS_TEXT.format(front=641, behind=640, rank=rank))
    found = diagnose([path])
    named = bool(found.findings) and found.findings[0].ranks == (rank,) and found.findings[0].sequence == 641
    scores.append(Score("NCCL's forms", "ncclras, text", "missing", named, (), found.answer[0]))
    return scores


def _near(sequence: int, job: Timeline, call: int, *, skipped: bool) -> bool:
    last = call
    while skipped and last + 1 < len(job.operations) and job.operations[last + 1] == job.operations[call]:
        last += 1
    return call + 1 <= sequence <= last + 1


def _changes(job: Timeline, rank: int, call: int) -> dict[str, dump_forms.Change]:
    """What is wrong by name, as changes of the entries of each rank."""

    def stopped(entries: list[Entry], state: str = "started") -> list[Entry]:
        return [*entries[:call], dump_forms.unfinished(entries[call], state)]

    def one(changed: dict[str, Any]) -> dump_forms.Change:
        return lambda r, entries: stopped([e | changed if (r, i) == (rank, call) else e for i, e in enumerate(entries)])

    def skipped(r: int, entries: list[Entry]) -> list[Entry]:
        if r != rank:
            return entries
        return [e | {"collective_seq_id": i + 1} for i, e in enumerate(entries[:call] + entries[call + 1 :])]

    half, broadcast = [[dump_forms.ELEMENTS // 2]], {"profiling_name": "nccl:broadcast"}
    return {
        "missing": lambda r, entries: entries[:call] if r == rank else stopped(entries),
        "skipped": skipped,
        "operation": one(broadcast),
        "size": one({"input_sizes": half, "output_sizes": half}),
        "dtype": one({"input_dtypes": ["Half"], "output_dtypes": ["Half"]}),
        "stuck": lambda r, entries: stopped(entries),
        "queued": lambda r, entries: stopped(entries, "scheduled" if r == rank else "started"),
    }
