"""Calls of a dump beside what the model gives for them: each kind of call, measured and expected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from commsim.accuracy.verdict import DEFAULT_BAND
from commsim.collectives.semantics import NCCL_TESTS
from commsim.dumps.finding import DumpFinding, format_ranks
from commsim.dumps.job import DumpedJob, Match
from commsim.dumps.waits import CallWait
from commsim.errors import CommsimError, ScenarioError, UnitError
from commsim.units import format_bytes, format_time

if TYPE_CHECKING:
    from commsim.scenario.cost_source import ModelSource

MOST_GROUPS = 64
"""Groups of ranks that are predicted one by one."""

GLOO = "gloo"
"""Calls of it are held against its model, all others against that of the machine's library."""


@dataclass(frozen=True)
class CallKind:
    """Calls of one group, collective, size and type: medians over them, seconds.

    ``transfer_s`` of a single rank's dump is its quickest call, which waited least. ``expected_s`` with its band:
    what the model gives, None where there is no machine, no size, or nothing is predicted.
    """

    match: Match
    calls: int
    waiting_s: float | None
    most_waiting_s: float | None
    transfer_s: float | None
    expected_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    choice: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over expected."""
        return self.transfer_s / self.expected_s if self.transfer_s and self.expected_s else None


def kinds_of(job: DumpedJob, waits: Sequence[CallWait], machine: str | None) -> tuple[list[CallKind], list[str]]:
    """The kinds of calls in the order in which they first occur, and what the user should know of the predictions."""
    model = None if machine is None else _Machine(machine, job)
    by_match = {id(wait.match): wait for wait in waits}
    grouped: dict[tuple[str, str, int, str], list[Match]] = defaultdict(list)
    for match in job.matches:
        call = match.any
        grouped[match.group.name, call.operation, call.nbytes, call.dtype].append(match)
    kinds = [_kind(matches, [w for m in matches if (w := by_match.get(id(m)))], model) for matches in grouped.values()]
    return kinds, [] if model is None else model.notes


def _kind(matches: Sequence[Match], waits: Sequence[CallWait], model: _Machine | None) -> CallKind:
    match = matches[0]
    longest = [max(wait.waiting_s.values()) for wait in waits]
    transfers = [wait.transfer_s for wait in waits if wait.transfer_s is not None]
    if not waits:
        durations = [d for m in matches for call in m.calls.values() if (d := call.duration_s) is not None]
        transfers = [min(durations)] if durations else []
    transfer = median(transfers) if transfers else None
    expected_s, low_s, high_s, choice = (None, None, None, "") if model is None else model.expected(match)
    return CallKind(
        match,
        calls=len(matches),
        waiting_s=median(longest) if longest else None,
        most_waiting_s=max(longest, default=None),
        transfer_s=transfer,
        expected_s=expected_s,
        low_s=low_s,
        high_s=high_s,
        choice=choice,
    )


class _Machine:
    """The model of the machine that the dump is held against."""

    def __init__(self, name: str, job: DumpedJob) -> None:
        self.name = name
        self.notes: list[str] = []
        self._size = 1 + max((rank for group in job.groups.values() for rank in group.ranks or ()), default=0)
        self._sources: dict[tuple[str, tuple[int, ...], str, str], ModelSource | None] = {}

    def expected(self, match: Match) -> tuple[float | None, float | None, float | None, str]:
        """(seconds, low, high, NCCL's choice) of a call; None where there is no answer."""
        call, ranks = match.any, match.group.ranks or ()
        if call.operation not in NCCL_TESTS or not call.nbytes or len(ranks) < 2:
            return None, None, None, ""
        source = self._source(call.operation, ranks, call.dtype, call.library)
        if source is None:
            return None, None, None, ""
        try:
            row = source.predictor(call.nbytes)
        except CommsimError as error:
            raise self._refusal(call.library, error) from None
        self._note(source.warnings)
        low, high = row.low_s or row.time_s * (1 - DEFAULT_BAND), row.high_s or row.time_s * (1 + DEFAULT_BAND)
        return row.time_s, low, high, " ".join(word for word in (row.algorithm, row.protocol) if word)

    def _source(self, operation: str, ranks: tuple[int, ...], dtype: str, library: str) -> ModelSource | None:
        from commsim.scenario.cost_question import AskedCall
        from commsim.scenario.cost_source import model_source

        key = (operation, ranks, dtype, library)
        if key not in self._sources:
            if len(self._sources) >= MOST_GROUPS:
                self._note([f"only the first {MOST_GROUPS} groups and types are predicted"])
                return None
            gloo = library == GLOO
            if gloo:
                self._note([f"the calls are gloo's: expected is what library gloo takes on {self.name}"])
            call = AskedCall(operation, dtype or None, library={"name": GLOO} if gloo else None)
            first = tuple(range(self._size))
            try:
                self._sources[key] = model_source(call, len(ranks) if ranks == first else ranks, self.name)
            except UnitError:
                raise
            except CommsimError as error:
                if not any(self._sources.values()):
                    raise self._refusal(library, error) if gloo else error from None
                self._note([f"{operation} on {format_ranks(ranks)} is not predicted: {error}"])
                self._sources[key] = None
        return self._sources[key]

    def _refusal(self, library: str, error: CommsimError) -> CommsimError:
        """That the machine has no answer for calls of a library; they are never judged by another one's times."""
        whose = "gloo's, so library gloo is asked" if library == GLOO else "NCCL's, and this machine does not run them"
        return ScenarioError(f"--on {self.name}: the calls are {whose}: {error}")

    def _note(self, texts: Sequence[str]) -> None:
        self.notes += [text for text in texts if text not in self.notes]


def slow_findings(kinds: Sequence[CallKind]) -> list[DumpFinding]:
    """That calls take longer than the band of what is expected, once all have entered: the worst kind of them, and how
    many others; empty where none does."""
    slow = [k for k in kinds if k.ratio and k.transfer_s and k.high_s and k.transfer_s > k.high_s]
    if not slow:
        return []
    worst = max(slow, key=lambda kind: kind.ratio or 0)
    match, call = worst.match, worst.match.any
    took, expected, high = (value or 0.0 for value in (worst.transfer_s, worst.expected_s, worst.high_s))
    text = (
        f"{call.operation} of {format_bytes(call.nbytes)} in group {match.group.name} takes "
        f"{format_time(took)} once all have entered, {worst.ratio:.2f} times the expected "
        f"{format_time(expected)} (band up to {format_time(high)})"
    )
    if len(slow) > 1:
        judged = sum(kind.ratio is not None for kind in kinds)
        text += f"; {len(slow)} of {judged} kinds of calls are slower than their band"
    return [DumpFinding("slow", (), match.group.name, match.sequence, call.operation, text)]
