"""The pipeline schedules: who does what in which order.

>>> [f"{a.kind}{a.micro_batch}" for a in build("1f1b", stages=2, micro_batches=3).actions[0]]
['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import cast

from commsim.errors import InfeasibleError
from commsim.training.columns import Columns, Number
from commsim.training.pipeline import Action, Kind, Order, order_of

V_SHAPED = ("zb_v", "dualpipe_v")
"""Schedules with two chunks on every stage, which micro-batches pass down to the last stage and up again."""


@lru_cache(maxsize=32)
def build(name: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> Order:
    """The schedule of a name in `SCHEDULES`; InfeasibleError says what it cannot do."""
    if name not in SCHEDULES:
        raise InfeasibleError(f"found the unknown pipeline schedule {name!r}, expected one of {', '.join(SCHEDULES)}")
    refuse_misfit(name, stages, micro_batches, virtual_stages)
    if name == "interleaved_1f1b":
        return interleaved_1f1b(stages, micro_batches, virtual_stages)
    return SCHEDULES[name](stages, micro_batches)


def refuse_misfit(name: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> None:
    """InfeasibleError where a schedule cannot run so."""
    message = misfit(name, stages, micro_batches, virtual_stages)
    if message:
        raise InfeasibleError(message)


def misfit(name: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> str | None:
    """Why a schedule cannot run with so many stages, micro-batches and chunks; None when it can."""
    if micro_batches < 1:
        return f"found {micro_batches} micro-batches, expected at least 1"
    if name in V_SHAPED:
        if virtual_stages != 2:
            return f"found virtual_stages={virtual_stages} with {name}, expected 2: stages hold two chunks, down and up"
    elif virtual_stages > 1 and name != "interleaved_1f1b":
        return f"found virtual_stages={virtual_stages} with {name}, expected them only with interleaved_1f1b"
    if (virtual_stages == 1 and name == "interleaved_1f1b") or not wrong_counts(name, stages, micro_batches):
        return None
    if name == "interleaved_1f1b":
        return (
            f"interleaved_1f1b gives every stage its chunks in rounds of {stages} micro-batches: found "
            f"{micro_batches} micro-batches, expected a multiple of {stages}"
        )
    if name == "dualpipe" and stages % 2:
        return f"dualpipe sends micro-batches in from both ends: found pp={stages}, expected an even number"
    even = "an even number of " if name == "dualpipe" else ""
    return f"{name} needs {even}at least {2 * stages} micro-batches, found {micro_batches}"


def wrong_counts(name: str | Columns, stages: Number, micro_batches: Number) -> Number:
    """Where a schedule does not take so many stages and micro-batches: interleaved 1F1B goes in rounds of a micro-batch
    per stage, DualPipe pairs stages, and micro-batches from both ends; it and what is V-shaped fill all chunks."""
    rounds = (name == "interleaved_1f1b") & (micro_batches % stages != 0)
    few = micro_batches < 2 * stages
    unpaired = (name == "dualpipe") & ((stages % 2 != 0) | (micro_batches % 2 != 0))
    return rounds | unpaired | (few & ((name == "dualpipe") | v_shaped(name)))


def v_shaped(name: str | Columns) -> Number:
    """Whether a schedule is one of `V_SHAPED`, or which of a table are."""
    return (name == "zb_v") | (name == "dualpipe_v")


def naive(stages: int, micro_batches: int) -> Order:
    """Model parallelism without a pipeline: a micro-batch is through before the next one starts."""
    one = [Action(kind, m) for m in range(micro_batches) for kind in ("F", "B")]
    return order_of("naive", stages, micro_batches, [one] * stages)


def gpipe(stages: int, micro_batches: int) -> Order:
    """All forwards, then all backwards, last micro-batch first (Huang et al. 2019)."""
    one = [Action("F", m) for m in range(micro_batches)] + [Action("B", m) for m in reversed(range(micro_batches))]
    return order_of("gpipe", stages, micro_batches, [one] * stages)


def one_f_one_b(stages: int, micro_batches: int) -> Order:
    """One forward, one backward after a warm-up (PipeDream-Flush, Narayanan et al. 2021): at most p in flight."""
    return order_of("1f1b", stages, micro_batches, [_alternate(stages - s - 1, micro_batches) for s in range(stages)])


def _alternate(warmup: int, micro_batches: int) -> list[Action]:
    warmup = min(warmup, micro_batches)
    actions = [Action("F", m) for m in range(warmup)]
    for m in range(micro_batches - warmup):
        actions += [Action("F", warmup + m), Action("B", m)]
    return actions + [Action("B", m) for m in range(micro_batches - warmup, micro_batches)]


def interleaved_1f1b(stages: int, micro_batches: int, virtual_stages: int) -> Order:
    """1F1B over v chunks per stage, in rounds of p micro-batches per chunk (Narayanan et al. 2021, section 2.2).

    The order of Megatron-LM's forward_backward_pipelining_with_interleaving.
    """
    p, v = stages, virtual_stages
    if p == 1 or v == 1:
        actions = [_alternate(p - s - 1, micro_batches) for s in range(p)]
        if p == 1:
            actions = [[a for b in actions[0] for a in _all_chunks(b, v)]]
        return order_of("interleaved_1f1b", p, micro_batches, actions, v)
    forward = [Action("F", r + m, c) for r in range(0, micro_batches, p) for c in range(v) for m in range(p)]
    backward = [Action("B", r + m, v - 1 - c) for r in range(0, micro_batches, p) for c in range(v) for m in range(p)]
    actions = []
    for s in range(p):
        warmup = len(forward) if micro_batches == p else min(len(forward), 2 * (p - s - 1) + (v - 1) * p)
        mine = forward[:warmup]
        for f, b in zip(forward[warmup:], backward, strict=False):
            mine += [f, b]
        actions.append(mine + backward[len(forward) - warmup :])
    return order_of("interleaved_1f1b", p, micro_batches, actions, v)


def _all_chunks(action: Action, chunks: int) -> Iterator[Action]:
    for c in range(chunks) if action.kind == "F" else reversed(range(chunks)):
        yield action._replace(chunk=c)


def zb_h1(stages: int, micro_batches: int) -> Order:
    """1F1B with the backward split; stage s puts its W off by s micro-batches and fills the tail with them.

    ZB-H1 of Qi et al. 2023 ("Zero Bubble Pipeline Parallelism", section 2.2): memory of 1F1B, a third of its bubble.
    """
    actions = []
    for s in range(stages):
        mine: list[Action] = []
        weights = iter(range(micro_batches))
        for action in _alternate(stages - s - 1, micro_batches):
            if action.kind == "F":
                mine.append(action)
                continue
            mine.append(Action("I", action.micro_batch))
            if action.micro_batch >= s:
                mine.append(Action("W", next(weights)))
        actions.append(mine + [Action("W", m) for m in weights])
    return order_of("zb_h1", stages, micro_batches, actions)


def zb_v(stages: int, micro_batches: int) -> Order:
    """Two chunks per stage in a V, so that a micro-batch's last forward is its first stage's, whose backward follows.

    ZB-V of Qi et al. 2024 ("Pipeline Parallelism with Controllable Memory", arXiv:2405.15362): memory of 1F1B, and
    stages that are never idle between their first action and their last where F, I and W take as long. The order is
    that of `ScheduleZBVZeroBubble` (torch 2.7, torch/distributed/pipelining/schedules.py).
    """
    actions = [tuple(_zb_v_stage(s, stages, micro_batches)) for s in range(stages)]
    route = sum(_down_and_up(stages), ())
    return Order("zb_v", stages, micro_batches, 2, tuple(actions), (route,) * micro_batches)


def _zb_v_stage(stage: int, p: int, micro_batches: int) -> Iterator[Action]:
    # Kind and chunk.
    phases = ["F0"] * (2 * (p - stage) - 1)
    phases += ["F1", "F0"] * stage
    phases += ["F1", "I1", "W1"] * (p - stage)
    phases += ["F0", "I0", "W0", "F1", "I1", "W1"] * (micro_batches - 2 * p + stage + 1)
    phases += ["I0", "W0", "F1", "I1", "W1"] * (p - stage - 1)
    phases += ["I0", "I1"] * stage
    phases += ["I0", "W0"] * (p - stage)
    phases += ["W1"] * stage + ["W0"] * stage
    done = Counter[str]()
    for phase in phases:
        yield Action(cast("Kind", phase[0]), done[phase], int(phase[1]))
        done[phase] += 1


def dualpipe(stages: int, micro_batches: int) -> Order:
    """Micro-batches from both ends; two copies of the weights (DeepSeek-AI 2024, arXiv:2412.19437, figure 5).

    The eight phases of deepseek-ai/DualPipe (dualpipe.py, `step`). The first half of the micro-batches goes down
    through chunk 0 of the stages, the second half goes up through chunk 1. A forward and the backward of the other
    direction after it are one block, in which each hides what the other exchanges (`overlapped_forward_backward`).
    """
    p, half = stages, micro_batches // 2
    actions = [tuple(_dualpipe_stage(s, p, half, (0, half))) for s in range(p)]
    down, up = _down_and_up(p)
    return Order("dualpipe", p, micro_batches, 2, tuple(actions), (down,) * half + (up,) * half, _blocks(actions))


def dualpipe_v(stages: int, micro_batches: int) -> Order:
    """DualPipe of twice the stages cut in half: what goes down is what comes up, and there is one copy of the weights.

    deepseek-ai/DualPipe (dualpipev.py, `step`), by Sea AI Lab ("DualPipe could be better without the Dual").
    """
    p, m = stages, micro_batches
    actions = [tuple(_dualpipe_stage(s, 2 * p, m, (0, 0))) for s in range(p)]
    return Order("dualpipe_v", p, m, 2, tuple(actions), (sum(_down_and_up(p), ()),) * m, _blocks(actions))


def _down_and_up(stages: int) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """The places of chunk 0 from the first stage to the last, and those of chunk 1 back."""
    return tuple((s, 0) for s in range(stages)), tuple((s, 1) for s in reversed(range(stages)))


def _blocks(actions: Sequence[tuple[Action, ...]]) -> tuple[frozenset[Action], ...]:
    """Of every stage the forwards that are one block with the other chunk's backward after them."""
    return tuple(
        frozenset(a for a, after in pairwise(mine) if a.kind == "F" and after.kind == "B" and after.chunk != a.chunk)
        for mine in actions
    )


def _dualpipe_stage(stage: int, p: int, half: int, first: tuple[int, int]) -> Iterator[Action]:
    """The actions of one stage; direction 0 is the one whose first stage is nearer; ``first``: the first micro-batch of
    each chunk."""
    near = min(stage, p - 1 - stage)
    far = p // 2 - near - 1
    # Kind and direction. A W is that of the oldest I whose W is open.
    phases = ["F0"] * (2 * far)
    phases += ["F0", "F1"] * (near + 1)
    phases += ["I1", "W", "F1"] * far
    phases += ["F0", "B1", "F1", "B0"] * (half - p + near + 1)
    phases += ["B1", "F1", "B0"] * far
    phases += [f"{kind}{1 - i % 2}" for i, kind in enumerate("B" * (near + 1) + "I" * (near + 1))]
    phases += ["W", "I0"] * far
    forwards, backwards = Counter[int](), Counter[int]()
    weights: deque[Action] = deque()
    for phase in phases:
        if phase == "W":
            yield weights.popleft()
            continue
        chunk = int(phase[1]) ^ (stage >= p // 2)
        done = forwards if phase[0] == "F" else backwards
        action = Action(cast("Kind", phase[0]), done[chunk] + first[chunk], chunk)
        done[chunk] += 1
        yield action
        if action.kind == "I":
            weights.append(action._replace(kind="W"))
    yield from weights


SCHEDULES: dict[str, Callable[[int, int], Order]] = {
    "naive": naive,
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved_1f1b": lambda stages, micro_batches: interleaved_1f1b(stages, micro_batches, 1),
    "zb_h1": zb_h1,
    "zb_v": zb_v,
    "dualpipe": dualpipe,
    "dualpipe_v": dualpipe_v,
}
