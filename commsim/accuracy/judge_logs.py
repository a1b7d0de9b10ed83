"""Verdicts on logs without a scenario: each on its machine, with what was concluded and taken, said first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from commsim.accuracy.from_log import source_of
from commsim.accuracy.healthy import beside
from commsim.accuracy.judge import CurveSource, contradicted, pairs
from commsim.accuracy.verdict import Verdict
from commsim.accuracy.which_machine import Ask, machines_for
from commsim.measure.records import Curve


def judge_logs(
    curves: Sequence[Curve], on: str | None, ask: Ask, nodes: int | None = None
) -> tuple[list[tuple[CurveSource, Verdict]], tuple[str, ...]]:
    """Every curve with what predicts it and its verdict, and sentences that come before.

    `on` names the machine; where it is None and a log does not settle it, `ask` does. `nodes`: of the logs, where they
    do not say. Raises LogFormatError where that fails.
    """
    machines = machines_for(curves, on, ask, nodes)
    several = len({machine.said for machine in machines}) > 1
    paired: list[tuple[CurveSource, Verdict]] = []
    said: list[str] = []
    for curve, machine in zip(curves, machines, strict=True):
        source, taken = source_of(curve, machine)
        paired += pairs([source], [curve])
        against = [f"the log contradicts the machine: {line}" for line in contradicted(source, curve)]
        lines = [*against, *machine.said, *(f"taken: {line}" for line in taken)]
        said += [f"{curve.name}: {line}" if several else line for line in lines]
    paired = _beside_each_other(paired, [machine.name for machine in machines])
    # What a person must know first: that the log is of something else.
    unique = list(dict.fromkeys(said))
    return paired, tuple(sorted(unique, key=lambda line: "contradicts" not in line))


def _beside_each_other(
    paired: Sequence[tuple[CurveSource, Verdict]], machines: Sequence[str]
) -> list[tuple[CurveSource, Verdict]]:
    """The verdicts with every part held against those of the other logs of its machine that are as expected."""
    healthy = [verdict.state == "as expected" for _, verdict in paired]

    def others(i: int, name: str) -> list[float]:
        return [
            part.middle
            for j, (_, verdict) in enumerate(paired)
            if j != i and healthy[j] and machines[j] == machines[i]
            for part in verdict.parts
            if part.name == name
        ]

    return [
        (source, replace(verdict, parts=tuple(beside(part, others(i, part.name)) for part in verdict.parts)))
        for i, (source, verdict) in enumerate(paired)
    ]
