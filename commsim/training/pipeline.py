"""What a pipeline schedule is: for every stage the order of its forwards and backwards, and what follows from it.

What it is not: it holds no seconds of communication; `commsim.training.simulate` runs the same orders with streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
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


class BlockPlace(NamedTuple):
    """A block of a stage's actions, their numbers among those of all stages, and the numbers of what it needs: of its
    own stage, and of others."""

    stage: int
    block: tuple[Action, ...]
    own: list[int]
    near: list[int]
    far: list[int]


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
        if not self.joint:
            return mine[at : at + 1]
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

    def goes_to(self, stage: int, action: Action) -> int | None:
        """The stage that what an action made goes to; None when it stays."""
        if action.kind == "W":
            return None
        route, at = self.routes[action.micro_batch], self.places[action.micro_batch][stage, action.chunk]
        to = at + 1 if action.kind == "F" else at - 1
        if not 0 <= to < len(route) or route[to][0] == stage:
            return None
        return route[to][0]

    @cached_property
    def first(self) -> list[int]:
        """The number of each stage's first action among the actions of all stages, and the number of these."""
        return [0, *accumulate(map(len, self.actions))]

    @cached_property
    def peers(self) -> list[int | None]:
        """Of each action, by its number, the stage that what it made goes to; None when it stays."""
        return [self.goes_to(stage, action) for stage, mine in enumerate(self.actions) for action in mine]

    @cached_property
    def needed(self) -> list[list[int]]:
        """Of each action the numbers of those that must have ended before it, -1 for one that there is not.

        A forward follows that of the stage before, a backward (B, or I) its forward and the backward of the stage
        after, a W its own I.
        """
        actions = [(stage, *action) for stage, mine in enumerate(self.actions) for action in mine]
        number = {action: n for n, action in enumerate(actions)}
        before: list[list[int]] = []
        for stage, kind, m, chunk in actions:
            route, at = self.routes[m], self.places[m][stage, chunk]
            if kind == "W":
                before.append([number.get((stage, "I", m, chunk), -1)])
            elif kind == "F":
                before.append([number.get((route[at - 1][0], "F", m, route[at - 1][1]), -1)] if at else [])
            else:
                before.append([number.get((stage, "F", m, chunk), -1)])
                if at + 1 < len(route):
                    after, further = route[at + 1]
                    split = number.get((after, "I", m, further), -1)
                    before[-1].append(number.get((after, "B", m, further), split))
        return before

    @cached_property
    def turns(self) -> list[BlockPlace]:
        """All actions, block by block, each after what it needs; a ScheduleError where stages wait for each other."""
        at, ended = [0] * self.stages, [False] * (self.first[-1] + 1)  # the last one, -1, never ends
        made, needs = list[BlockPlace](), self.needed
        waiting: dict[int, list[int]] = {}
        ready = list(range(self.stages))
        while ready:
            stage = ready.pop()
            mine, first, after = self.actions[stage], self.first[stage], self.first[stage + 1]
            while at[stage] < len(mine):
                block = self.block(stage, at[stage])
                begin = first + at[stage]
                own = list(range(begin, begin + len(block)))
                near, far = list[int](), list[int]()
                missing = None
                for one in own:
                    for n in needs[one]:
                        if n == begin:
                            continue
                        (near if first <= n < after else far).append(n)
                        if missing is None and not ended[n]:
                            missing = n
                if missing is not None:
                    waiting.setdefault(missing, []).append(stage)
                    break
                made.append(BlockPlace(stage, block, own, near, far))
                for n in own:
                    ended[n] = True
                    ready += waiting.pop(n, ())
                at[stage] += len(block)
        stuck = [stage for stage in range(self.stages) if at[stage] < len(self.actions[stage])]
        if stuck:
            action = self.actions[stuck[0]][at[stuck[0]]]
            raise ScheduleError(
                f"{self.name}: stage {stuck[0]} waits for ever before {action.kind} of micro-batch {action.micro_batch}"
            )
        return made

    @cached_property
    def awaited(self) -> list[list[int]]:
        """Of each action the numbers of those of other stages that the block needs which begins with it."""
        far: list[list[int]] = [[] for _ in range(self.first[-1])]
        for place in self.turns:
            far[place.own[0]] = place.far
        return far


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
    return run_of(order, [seconds(stage, one) for stage, mine in enumerate(order.actions) for one in mine], send_s)


def run_of(order: Order, seconds: Sequence[float], send_s: float = 0.0) -> PipelineTimes:
    """As `run`, of the seconds of all actions by their number."""
    starts, ends, ended = [0.0] * len(seconds), [0.0] * len(seconds), [0.0] * len(seconds)
    clock = [0.0] * order.stages
    for stage, _, own, near, far in order.turns:
        now = clock[stage]
        for n in near:
            now = max(now, ended[n])
        for n in far:
            now = max(now, ended[n] + send_s)
        for n in own:
            starts[n] = now
            now += seconds[n]
            ends[n] = now
        for n in own:
            ended[n] = now
        clock[stage] = now
    cuts = order.first[1:-1]
    return PipelineTimes(np.split(np.array(starts), cuts), np.split(np.array(ends), cuts))


def order_of(name: str, stages: int, micro_batches: int, actions: Sequence[Sequence[Action]], chunks: int = 1) -> Order:
    """An Order whose micro-batches all pass chunk 0 of every stage, then chunk 1 of every stage, and so on."""
    route = tuple((stage, chunk) for chunk in range(chunks) for stage in range(stages))
    return Order(name, stages, micro_batches, chunks, tuple(map(tuple, actions)), (route,) * micro_batches)
