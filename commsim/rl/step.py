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
class StepPhase:
    """Part of a step: seconds on some of the GPUs, named by `place`; `stage` orders phases."""

    name: str
    stage: str  # rollout | scoring | update | sync | transfer | control
    seconds: float
    place: str = TRAINER


@dataclass(frozen=True)
class PhaseSpan:
    """A phase from when to when in a step."""

    phase: StepPhase
    start_s: float

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.start_s + self.phase.seconds


@dataclass(frozen=True)
class RlStep:
    """The phases of a step in their order; ``behind``: the engines work at the answers of the next step meanwhile."""

    phases: tuple[StepPhase, ...]
    behind: bool = False

    @property
    def step_s(self) -> float:
        """From one step to the next."""
        return max((span.end_s for span in self.spans), default=0.0)

    @property
    def spans(self) -> tuple[PhaseSpan, ...]:
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

        Of phases beside each other those of the place count that is through last; where the engines are a step ahead,
        either their part or the trainer's, whichever takes longer.
        """
        spans, ends = self.spans, dict[str, float]()
        for span in spans:
            ends[self._part(span)] = max(ends.get(self._part(span), 0.0), span.end_s)
        longer = max(("rollout", "trainer"), key=lambda part: ends.get(part, 0.0))
        shown = dict.fromkeys((span.phase.name for span in spans), 0.0)
        for stage in dict.fromkeys(span.phase.stage for span in spans):
            some = [span for span in spans if span.phase.stage == stage]
            if self.behind and self._part(some[0]) not in (longer, "sync"):
                continue
            last = max(some, key=lambda span: span.end_s).phase.place
            for span in some:
                shown[span.phase.name] += span.phase.seconds if span.phase.place == last else 0.0
        return shown

    @staticmethod
    def _part(span: PhaseSpan) -> str:
        return span.phase.stage if span.phase.stage in ("rollout", "sync") else "trainer"


def _one_after_the_other(phases: Sequence[StepPhase], start: float) -> Iterator[PhaseSpan]:
    """Spans of phases: neighbours of one stage run beside each other where their places differ."""
    at, stage, free = start, "", dict[str, float]()
    for phase in phases:
        if phase.stage != stage:
            at = max([at, *free.values()])
            stage, free = phase.stage, {}
        begin = free.get(phase.place, at)
        yield PhaseSpan(phase, begin)
        free[phase.place] = begin + phase.seconds
