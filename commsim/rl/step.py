"""A step of reinforcement learning: phases on the GPUs of the engines, of the trainer and of the models that score.

A synchronous step does one after the other. One step behind, engines answer the next prompts with the weights of
before while the trainer learns from the answers of before: the longer of the two is the step, and both meet when
weights go over. Phases of different GPUs run beside each other where nothing orders them: scoring models score, actor
and critic learn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ENGINES = "engines"
TRAINER = "trainer"


@dataclass(frozen=True)
class Phase:
    """Part of a step: seconds on some of the GPUs, named by `place`; `stage` orders phases."""

    name: str
    stage: str  # rollout | scoring | update | sync | transfer
    seconds: float
    place: str = TRAINER


@dataclass(frozen=True)
class Span:
    """A phase from when to when in a step."""

    phase: Phase
    start_s: float

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.start_s + self.phase.seconds


@dataclass(frozen=True)
class RlStep:
    """The phases of a step in their order; ``behind``: the engines work at the answers of the next step meanwhile."""

    phases: tuple[Phase, ...]
    behind: bool = False

    @property
    def step_s(self) -> float:
        """From one step to the next."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Every phase with its start; where engines are behind, those of the two steps that run at the same time."""
        if not self.behind:
            return tuple(_one_after_the_other(self.phases, 0.0))
        rollout = [p for p in self.phases if p.stage == "rollout"]
        sync = [p for p in self.phases if p.stage == "sync"]
        rest = [p for p in self.phases if p.stage not in ("rollout", "sync")]
        beside = [*_one_after_the_other(rollout, 0.0), *_one_after_the_other(rest, 0.0)]
        return (*beside, *_one_after_the_other(sync, max((span.end_s for span in beside), default=0.0)))

    def seconds(self, stage: str) -> float:
        """Of all phases of a stage, each by itself."""
        return sum(p.seconds for p in self.phases if p.stage == stage)

    def shown(self) -> dict[str, float]:
        """By phase the seconds that the step is longer for it; they add up to the step.

        Of phases beside each other the longest place counts; the engines' or the trainer's part, whichever is shorter,
        counts nothing where they are a step apart.
        """
        shown: dict[str, float] = {}
        spans = self.spans
        if self.behind:
            ends = {
                on: max((s.end_s for s in spans if (s.phase.stage == "rollout") == on and s.phase.stage != "sync"), default=0.0)
                for on in (True, False)
            }
            longer = ends[True] >= ends[False]
            spans = tuple(s for s in spans if s.phase.stage == "sync" or (s.phase.stage == "rollout") == longer)
        at = 0.0
        for span in sorted(spans, key=lambda s: s.end_s):
            more = max(span.end_s - max(at, span.start_s), 0.0)
            at = max(at, span.end_s)
            shown[span.phase.name] = shown.get(span.phase.name, 0.0) + more
        return shown


def _one_after_the_other(phases: Sequence[Phase], start: float) -> Iterator[Span]:
    """Spans of phases: neighbours of one stage run beside each other where their places differ."""
    at, stage, free = start, "", dict[str, float]()
    for phase in phases:
        if phase.stage != stage:
            at = max([at, *free.values()])
            stage, free = phase.stage, {}
        begin = free.get(phase.place, at)
        yield Span(phase, begin)
        free[phase.place] = begin + phase.seconds
