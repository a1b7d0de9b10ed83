"""The question which machine a log is of, where the log does not settle it: ranked answers, or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from commsim.accuracy.from_log import LogMachine, closeness, machine_of, named_machine, only_machine
from commsim.accuracy.log_facts import LogFacts, facts_of, on_nodes
from commsim.accuracy.log_machine import LikelyMachine, candidates, closest, fillers
from commsim.errors import LogFormatError
from commsim.measure.records import Curve

MOST_NAMED = 8
"""Candidates that a question shows."""

Ask = Callable[["Question"], str | None]
"""Asks a person for the name of a machine; None where nobody answers."""


@dataclass(frozen=True, eq=False)
class Question:
    """A curve of which several machines may be, those nearest in time first, and why its log does not settle it."""

    curve: Curve
    facts: LogFacts
    why: str
    every: tuple[tuple[LikelyMachine, float | None], ...]

    @property
    def choices(self) -> tuple[tuple[LikelyMachine, float | None], ...]:
        """Those that are shown."""
        return self.every[:MOST_NAMED]

    def lines(self) -> list[str]:
        """The ranked candidates, one a line."""
        width = max((len(c.name) for c, _ in self.choices), default=0)
        lines = []
        for i, (candidate, factor) in enumerate(self.choices, start=1):
            fit = "cannot be predicted" if factor is None else f"the log is {factor:.2f} times its predicted time"
            lines.append(f"  {i}  {candidate.name:<{width}}  {candidate.words}; {fit}")
        return lines

    def refusal(self, command: str) -> LogFormatError:
        """What is said where nobody answers: the candidates, and the command for each; `command` lacks the machine."""
        where = self.curve.source or self.curve.name
        lines = [
            f"{where}: which machine is this? {self.why}. Candidates, the nearest in time first, which proves nothing "
            "of a log that may be slow:",
            *self.lines(),
            "Say which:",
            *(f"  {command} --on {candidate.name}" for candidate, _ in self.choices),
        ]
        if len(self.every) > len(self.choices):
            rest = len(self.every) - len(self.choices)
            lines.append(f"or --on with another preset ({rest} more fit), or a topology file of it")
        return LogFormatError("\n".join(lines))


def machines_for(curves: Sequence[Curve], on: str | None, ask: Ask, nodes: int | None = None) -> list[LogMachine]:
    """The machine of every curve: as named, as its log or another log of the same GPUs settles it, or as asked.

    `nodes`: how many every log is of, where it does not say. Raises LogFormatError where no preset fits a log, or where
    nobody answers.
    """
    facts = [_stated(curve, nodes) for curve in curves]
    if on is not None:
        return [_named(on, curve, each) for curve, each in zip(curves, facts, strict=True)]
    choices = [_choices(curve, each) for curve, each in zip(curves, facts, strict=True)]
    settled = [only_machine(*pair) for pair in zip(choices, facts, strict=True)]
    of_gpu = {each.gpu: c for each, c in zip(facts, settled, strict=True) if c is not None and c.nodes > 1}
    machines = []
    for curve, each, those, one in zip(curves, facts, choices, settled, strict=True):
        if one is not None:
            machines.append(machine_of(one, each))
            continue
        other = of_gpu.get(each.gpu)
        name = other.name if other is not None and any(other.name in (c.name, *c.alike) for c in those) else None
        if name is None:
            asked = question(curve, each, those)
            name = ask(asked)
            if name is None:
                raise asked.refusal("commsim compare LOG")
        machine = named_machine(name, each)
        machines.append(machine)
        if (shape := next((c for c in those if name in (c.name, *c.alike)), None)) is not None:
            of_gpu.setdefault(each.gpu, shape)
    return machines


def _stated(curve: Curve, nodes: int | None) -> LogFacts:
    with _of(curve):
        return on_nodes(facts_of(curve), nodes)


def _named(on: str, curve: Curve, facts: LogFacts) -> LogMachine:
    with _of(curve):
        return named_machine(on, facts)


@contextmanager
def _of(curve: Curve) -> Iterator[None]:
    """Says of which log a fault is."""
    try:
        yield
    except LogFormatError as error:
        raise LogFormatError(f"{curve.source or curve.name}: {error}") from None


def _choices(curve: Curve, facts: LogFacts) -> list[LikelyMachine]:
    """Candidates of a log; LogFormatError where its ranks and GPUs are of a kind that no preset is."""
    if facts.shared_gpus:
        raise LogFormatError(f"{curve.source}: found {facts.shared_gpus}, expected a GPU for every rank")
    if facts.mixed_gpus:
        raise LogFormatError(f"{curve.source}: found GPUs of several kinds ({facts.mixed_gpus}), expected a scenario")
    return candidates(facts) if facts.gpu else []


def question(curve: Curve, facts: LogFacts, choices: Sequence[LikelyMachine]) -> Question:
    """What is to be asked of a curve; LogFormatError where no preset can be the answer."""
    if not choices and facts.gpu and known_chip(facts):
        near = ", ".join(f"{p.name} ({p.gpus_per_node} x {p.gpu})" for p in closest(facts))
        job = f"{facts.nodes} nodes of {facts.ranks_per_node}" if facts.nodes else f"{facts.ranks} ranks"
        raise LogFormatError(
            f"{curve.source}: no preset is {job} x {facts.gpu}; the closest are {near}. Describe the machine in a "
            "topology file and name it with --on FILE.yaml (docs/guides/extend.md)"
        )
    if facts.ranks is None and not choices:
        raise LogFormatError(
            f"{curve.source}: the log names no GPU and no number of ranks; expected its machine (--on MACHINE, which "
            "commsim topo list shows) and nodes (-n), or a scenario beside it"
        )
    why = _why(facts, choices)
    ranked = [(c, closeness(c, curve)) for c in choices or fillers(facts)]
    ranked.sort(key=lambda pair: (not pair[0].whole, abs(np.log(pair[1])) if pair[1] else np.inf))
    return Question(curve, facts, why, tuple(ranked))


def known_chip(facts: LogFacts) -> bool:
    """Whether the log names a chip, if one that no preset may have."""
    from commsim.accuracy.gpu_name import gpu_name

    return gpu_name(facts.gpu) is not None


def _why(facts: LogFacts, choices: Sequence[LikelyMachine]) -> str:
    """Why a log does not settle its machine."""
    if not facts.gpu:
        return f"The log names no GPU, only {facts.ranks} ranks"
    if not choices:
        return f"The log names the GPU {facts.gpu!r}, which says no model"
    if facts.nodes is None:
        return f"The log names {facts.gpu} on {facts.ranks} ranks, but no hosts"
    if len(choices) == 1:
        return f"The log names {facts.ranks_per_node} x {facts.gpu} on a host, half or less of the only such node"
    if facts.nodes > 1 or choices[0].nodes > 1:
        return f"The log names {facts.gpu} on {facts.nodes} hosts, but not the network between them"
    return f"The log names {facts.ranks} x {facts.gpu}, which may be all GPUs of one kind of node or some of another"
