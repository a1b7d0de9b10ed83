"""What a pipeline schedule is: for every stage the order of its forwards and backwards, and what follows from it.

What it is not: it holds no seconds of communication; `commsim.training.simulate` runs the same orders with streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from commsim.errors import ScheduleError

Float64 = npt.NDArray[np.float64]

Kind = Literal["F", "B", "I", "W"]
"""Forward; whole backward; backward of the input only; backward of the weights only (zero bubble's split of B)."""


class Action(NamedTuple):
    """One thing that a stage does for one micro-batch; ``chunk`` is which of its model chunks."""

    kind: Kind
    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True, eq=False)
class Order:
    """A schedule: ``actions[stage]`` in the order in which the stage does them.

    ``routes[micro_batch]`` lists the (stage, chunk) pairs that a micro-batch's forward passes, first to last; its
    backward takes them in reverse. ``chunks`` model chunks lie on every stage. ``joint[stage]``: forwards that are one
    block with the backward after them: it begins when both can, and what they made leaves when both have ended.
    """

    name: str
    stages: int
    micro_batches: int
    chunks: int
    actions: tuple[tuple[Action, ...], ...]
    routes: tuple[tuple[tuple[int, int], ...], ...]
    joint: tuple[frozenset[Action], ...] = ()

    def is_joint(self, stage: int, action: Action) -> bool:
        """Whether an action is a forward of such a block."""
        return bool(self.joint) and action in self.joint[stage]

    def block(self, stage: int, at: int) -> tuple[Action, ...]:
        """The actions that begin with the one at a position: it alone, none after the first of a joint block."""
        mine = self.actions[stage]
        if at and self.is_joint(stage, mine[at - 1]):
            return ()
        return mine[at : at + 1 + self.is_joint(stage, mine[at])]

    @cached_property
    def places(self) -> list[dict[tuple[int, int], int]]:
        """Per micro-batch: (stage, chunk) -> position on its route."""
        known: dict[tuple[tuple[int, int], ...], dict[tuple[int, int], int]] = {}
        for route in self.routes:
            known.setdefault(route, {place: i for i, place in enumerate(route)})
        return [known[route] for route in self.routes]

    def needs(self, stage: int, action: Action) -> list[tuple[int, Action]]:
        """The (stage, action) pairs that must have ended before an action; a W needs its own I."""
        kind, m, chunk = action
        route, at = self.routes[m], self.places[m][stage, chunk]
        if kind == "W":
            return [(stage, Action("I", m, chunk))]
        if kind == "F":
            return [(route[at - 1][0], Action("F", m, route[at - 1][1]))] if at else []
        own = [(stage, Action("F", m, chunk))]
        if at + 1 == len(route):
            return own
        after, further = route[at + 1]
        return [*own, (after, Action(self.backward_kind(after, m, further), m, further))]

    def goes_to(self, stage: int, action: Action) -> int | None:
        """The stage that what an action made goes to; None when it stays."""
        if action.kind == "W":
            return None
        route, at = self.routes[action.micro_batch], self.places[action.micro_batch][stage, action.chunk]
        to = at + 1 if action.kind == "F" else at - 1
        if not 0 <= to < len(route) or route[to][0] == stage:
            return None
        return route[to][0]

    def backward_kind(self, stage: int, micro_batch: int, chunk: int) -> Kind:
        """Whether a stage does a micro-batch's backward whole (B) or split (I)."""
        return "B" if Action("B", micro_batch, chunk) in self._whole[stage] else "I"

    @cached_property
    def _whole(self) -> list[frozenset[Action]]:
        return [frozenset(a for a in mine if a.kind == "B") for mine in self.actions]


class PipelineTimes(NamedTuple):
    """When everything happened: per stage the starts and ends of its actions, in its order."""

    start_s: list[Float64]
    end_s: list[Float64]

    @property
    def makespan_s(self) -> float:
        """The end of the last action."""
        return float(max(end.max(initial=0.0) for end in self.end_s))

    @property
    def bubble(self) -> float:
        """Idle time over busy time of the stage that is busy longest: (p-1)/m when all is equal."""
        busy = max(float((end - start).sum()) for start, end in zip(self.start_s, self.end_s, strict=True))
        return self.makespan_s / busy - 1.0


def run(order: Order, seconds: Callable[[int, Action], float], send_s: float = 0.0) -> PipelineTimes:
    """Every action as early as its stage and what it needs allow; ``send_s`` between different stages.

    ScheduleError when the stages wait for each other.
    """
    ended: dict[tuple[int, Action], float] = {}
    at, clock = [0] * order.stages, [0.0] * order.stages
    starts, ends = ([list[float]() for _ in range(order.stages)] for _ in range(2))
    waiting: dict[tuple[int, Action], list[int]] = {}
    ready = list(range(order.stages))
    while ready:
        stage = ready.pop()
        mine = order.actions[stage]
        while at[stage] < len(mine):
            action = mine[at[stage]]
            block = order.block(stage, at[stage])
            needed = [need for one in block for need in order.needs(stage, one) if need != (stage, action)]
            missing = next((need for need in needed if need not in ended), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                break
            arrived = max((ended[s, a] + send_s * (s != stage) for s, a in needed), default=0.0)
            clock[stage] = max(clock[stage], arrived)
            for one in block:
                starts[stage].append(clock[stage])
                clock[stage] += seconds(stage, one)
                ends[stage].append(clock[stage])
            for one in block:
                ended[stage, one] = clock[stage]
                ready += waiting.pop((stage, one), [])
            at[stage] += len(block)
    stuck = [stage for stage in range(order.stages) if at[stage] < len(order.actions[stage])]
    if stuck:
        action = order.actions[stuck[0]][at[stuck[0]]]
        raise ScheduleError(
            f"{order.name}: stage {stuck[0]} waits for ever before {action.kind} of micro-batch {action.micro_batch}"
        )
    return PipelineTimes([np.array(s) for s in starts], [np.array(e) for e in ends])


def order_of(name: str, stages: int, micro_batches: int, actions: Sequence[Sequence[Action]], chunks: int = 1) -> Order:
    """An Order whose micro-batches all pass chunk 0 of every stage, then chunk 1 of every stage, and so on."""
    route = tuple((stage, chunk) for chunk in range(chunks) for stage in range(stages))
    return Order(name, stages, micro_batches, chunks, tuple(map(tuple, actions)), (route,) * micro_batches)
