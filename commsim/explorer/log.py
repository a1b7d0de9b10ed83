"""A log that was dropped on the page: its verdict, its causes, and its curve to lay over the prediction."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.accuracy.judge import CurveSource, apart, contradicted, judged, pairs
from commsim.accuracy.judge_logs import judge_logs
from commsim.errors import CommsimError, LogFormatError
from commsim.explorer.curve import overlay
from commsim.explorer.state import MACHINE_KEYS, State
from commsim.measure.parsers import read_measured
from commsim.report.plots import comparison_chart
from commsim.report.verdict import answer_line, chance, fit, verdict_table
from commsim.scenario.load import said_by

if TYPE_CHECKING:
    from commsim.accuracy.verdict import Verdict
    from commsim.accuracy.which_machine import Question
    from commsim.explorer.answers import Say
    from commsim.measure.records import Curve
    from commsim.scenario.predictors import Cache

MOST_CURVES = 8
"""Of a log that is judged on the page: each is predicted, and its causes are simulated."""


class _Asked(Exception):  # noqa: N818
    """Nothing is wrong: the log does not say which machine it is of."""

    def __init__(self, question: Question) -> None:
        super().__init__(question.why)
        self.question = question


def log_answer(
    state: State, base_dir: Path, cache: Cache, say: Say, more: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """The verdict on the file at ``more["path"]``.

    ``more["against"]``: empty for the machine that the log names, ``page`` for the scenario of the state, else the
    name of a preset. Where the log does not say, the answer has the machines to choose from.
    """
    del cache
    path, against = Path(more["path"]), str(more.get("against", ""))
    try:
        curves = read_measured(path)
    except CommsimError as error:
        raise LogFormatError(str(error).replace(str(path.parent) + "/", "")) from None
    curves = [curve for curve in curves if curve.kind == "measured"][:MOST_CURVES]
    if not curves:
        raise LogFormatError(f"{path.name}: found no measured curve, expected a log of nccl-tests or a table")
    try:
        paired, said = _paired(state, base_dir, curves, against)
    except _Asked as asked:
        choices = [[c.name, f"{c.name}: {c.words}"] for c, _ in asked.question.choices]
        return {"ask": f"Which machine is this? {asked.question.why}.", "choices": choices, "curves": _curves(curves)}
    return {
        "said": list(said),
        "verdicts": [_verdict(source, verdict, say) for source, verdict in paired],
        "curves": [curve | {"machine": _machine(paired[0][0])} for curve in _curves(curves)],
        "warnings": [],
    }


def _curves(curves: list[Curve]) -> list[dict[str, Any]]:
    return [overlay(curve) for curve in curves]


def _machine(source: CurveSource) -> dict[str, str] | None:
    """The keys of the page that say the machine that a log was judged on; None where they cannot."""
    try:
        values = State.of_document(said_by(source.scenario)).values if source.scenario is not None else {}
    except CommsimError:
        return None
    machine = {key: values.get(key, "") for key in MACHINE_KEYS}
    return machine if machine["on"] else None


def _paired(
    state: State, base_dir: Path, curves: list[Curve], against: str
) -> tuple[list[tuple[CurveSource, Verdict]], tuple[str, ...]]:
    if against == "page":
        from commsim.explorer.answers import scenario_of

        source = CurveSource(Path("the machine of the page"), Path(), None, scenario_of(state, "collective", base_dir))
        return pairs([source], curves), tuple(line for curve in curves for line in contradicted(source, curve))

    def ask(question: Question) -> str | None:
        raise _Asked(question)

    return judge_logs(curves, against or None, ask)


def _verdict(source: CurveSource, verdict: Verdict, say: Say) -> dict[str, Any]:
    """One curve: the sentence, its causes with their probability, the chart and the table of sizes."""
    _, tried = judged(source, verdict, True, lambda done, of: say("causes", done, of))
    comparison = verdict.comparison
    return {
        "answer": answer_line(verdict, tried),
        "state": verdict.state,
        "causes": [[t.cause, chance(t), fit(t)] for t in tried],
        "test": apart(source, verdict, tried),
        "chart": comparison_chart([comparison], comparison.measured.name).to_dict(),
        "text": verdict_table(verdict, tried),
    }
