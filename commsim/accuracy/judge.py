"""Files to verdicts: which are predictions, which are measured curves, and what is to be said of each pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from commsim.accuracy.compare import compare
from commsim.accuracy.verdict import FAR, Verdict, verdict
from commsim.accuracy.whatif import Tried, likely, named, predicted_curve
from commsim.bounds import has_starved_nic
from commsim.errors import CommsimError, LogFormatError
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve
from commsim.scenario.load import load_scenarios
from commsim.scenario.schema import Scenario


@dataclass(frozen=True)
class CurveSource:
    """A predicted curve, or a scenario that can predict one; and the folder it lies in."""

    path: Path
    folder: Path
    curve: Curve | None
    scenario: Scenario | None

    @property
    def is_as_shipped(self) -> bool:
        """Whether it is NCCL's prediction by parameters that are not of this machine alone."""
        if self.scenario is None:
            return False
        library = self.scenario.library
        return library.name == "nccl" and not (self.scenario.params or library.measured)

    def verdict_of(self, predicted: Curve, measured: Curve) -> Verdict:
        """The verdict on a measured curve by what this predicts of it."""
        from commsim.scenario.setting import build_topology

        shipped, bounded = self.is_as_shipped, self.scenario is not None and self.scenario.library.name == "nccl"
        topology = build_topology(self.scenario) if self.scenario is not None and (shipped or bounded) else None
        one_node = shipped and topology is not None and topology.nodes == 1
        bounded = bounded and topology is not None and not has_starved_nic(topology)
        return verdict(compare(predicted, measured), as_shipped=shipped, one_node=one_node, bounded=bounded)

    def collectives(self) -> set[str]:
        """What it predicts."""
        if self.curve is not None:
            return {self.curve.collective}
        return {w.collective for w in self.scenario.collectives} if self.scenario else set()


MOST_TABLES = 128
"""Measured curves that one command judges: each is predicted."""


def sort_files(files: list[Path], likely_ranks: int | None = None) -> tuple[list[CurveSource], list[Curve]]:
    """Predictions, of which there may be none, and measured curves; every file that cannot be read is a fault.

    A file that is given again counts once, with a note. `likely_ranks`: of tables that need them and state none.
    """
    predictions: list[CurveSource] = []
    measured: list[Curve] = []
    faults: list[str] = []
    given = Counter(path.resolve() for path in files)
    for path in {path.resolve(): path for path in files}.values():
        try:
            if path.suffix in (".yaml", ".yml"):
                folder = Path("out") / path.stem
                predictions += [CurveSource(path, folder, None, s) for s in load_scenarios(path)]
                continue
            folder = path if path.is_dir() else path.parent
            beside = folder / "scenario.yaml"
            scenario: Scenario | None = None
            for curve in read_measured(path, likely_ranks=likely_ranks):
                if curve.kind == "measured":
                    again = (f"{path} was given {given[path.resolve()]} times, and counts once",)
                    notes = curve.notes + again * (given[path.resolve()] > 1)
                    measured.append(replace(curve, notes=notes))
                    continue
                if scenario is None and beside.is_file():
                    scenario = next((s for s in load_scenarios(beside) if s.name == curve.name), None)
                predictions.append(CurveSource(path, folder, curve, scenario))
        except CommsimError as error:
            faults.append(str(error))
    if len(measured) > MOST_TABLES and not faults:
        faults = [f"found {len(measured):,} measured tables, expected at most {MOST_TABLES}; give fewer logs at a time"]
    if not faults and not measured:
        faults = ["found predictions only, expected a measured curve as well: a log, a CSV table, or a folder"]
    if faults:
        raise LogFormatError("\n".join(faults))
    return predictions, measured


def contradicted(source: CurveSource, curve: Curve) -> tuple[str, ...]:
    """What the log of a curve says against the scenario that predicts it; nothing where a table alone does."""
    from commsim.accuracy.contradictions import contradictions

    return () if source.scenario is None else tuple(contradictions(source.scenario, curve))


def beyond_fit(source: CurveSource, curve: Curve) -> tuple[str, ...]:
    """What of a curve the fitted parameters that predict it have not seen."""
    if source.scenario is None:
        return ()
    from commsim.scenario import seen
    from commsim.scenario.setting import build_topology

    return tuple(seen.beyond_fit(source.scenario, curve.collective, build_topology(source.scenario)))


def _other_machine(source: CurveSource, curve: Curve) -> str:
    from commsim.accuracy.contradictions import other_machine

    return "" if source.scenario is None else other_machine(source.scenario, curve)


def pairs(predictions: list[CurveSource], measured: list[Curve]) -> list[tuple[CurveSource, Verdict]]:
    """Every measured curve with every prediction of its collective; a curve that fits none is a fault."""
    paired: list[tuple[CurveSource, Verdict]] = []
    faults: list[str] = []
    for curve in measured:
        matching = [p for p in predictions if curve.collective in p.collectives()]
        if not matching:
            held = ", ".join(sorted(set().union(*(p.collectives() for p in predictions)))) or "nothing"
            names = ", ".join(dict.fromkeys(str(p.path) for p in predictions))
            faults.append(f"{curve.source or curve.name} measures {curve.collective}, but {names} predicts {held}")
            continue
        verdicts, reasons = [], []
        for source in matching:
            try:
                line = source.curve
                if line is None and source.scenario is not None:
                    line = predicted_curve(source.scenario, curve.collective, [int(n) for n in curve.size_bytes], curve)
                if line is not None:
                    one = source.verdict_of(line, curve)
                    verdicts.append((source, replace(one, other_machine=_other_machine(source, curve))))
            except CommsimError as error:
                reasons += [str(error), *(f"{curve.name}: {line}" for line in contradicted(source, curve))]
        faults += reasons if not verdicts else []
        paired += verdicts
    if faults:
        raise LogFormatError("\n".join(dict.fromkeys(faults)))
    return paired


def judged(
    source: CurveSource,
    verdict: Verdict,
    what_if: bool,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> tuple[Verdict, list[Tried]]:
    """The verdict with the what-ifs that fit, tried where the curve is not as expected or far from the middle."""
    # A wide band holds much: a curve within it, but far from its middle, is looked at as well.
    near = verdict.state == "as expected" and verdict.distance < FAR
    if not what_if or source.scenario is None or near or verdict.state == "wrong" or verdict.other_machine:
        return verdict, []
    return verdict, likely(source.scenario, verdict.comparison.measured, progress)


def apart(source: CurveSource, verdict: Verdict, tried: Sequence[Tried]) -> str:
    """The test that tells the two likeliest kinds of causes apart, in words; blank where one is named or none does."""
    from commsim.accuracy.causes import what_ifs
    from commsim.accuracy.next_test import next_test

    if source.scenario is None:
        return ""
    kinds: dict[str, str] = {}
    for each in named(tried):
        kinds.setdefault(each.kind, each.cause)
    if len(kinds) < 2:
        return ""
    measured = verdict.comparison.measured
    by_cause = {option.cause: option for option in what_ifs(source.scenario, measured.conditions)}
    first, second = (by_cause[cause] for cause in list(kinds.values())[:2])
    test = next_test(source.scenario, first, second)
    names = f"{first.cause}, and {second.cause}"
    if test is None:
        return f"{measured.name}: no test of nccl-tests tells these apart: {names}"
    return f"{measured.name}: to tell {names} apart: {test.words()}"
