"""Who is who: rank <-> position on the axes dp, pp, cp, tp, and the experts' own split of the same ranks.

What is dense is laid out over tp, cp, dp and pp. Experts divide the ranks of a pipeline stage anew, into etp (the
tensor parallelism of one expert), ep and edp (copies of an expert), as Megatron-Core does ("parallel folding",
megatron/core/parallel_state.py, `RankGenerator`): the expert layout takes etp in tp's place, ep and edp in theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from commsim.errors import InfeasibleError
from commsim.training.columns import Number, where

Int64 = npt.NDArray[np.int64]

ORDER = ("tp", "cp", "ep", "dp", "pp")
"""Innermost first: neighbours on tp are neighbours in rank, as the frameworks place them."""

_DENSE = ("tp", "cp", "dp", "pp")
_EXPERT = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
AXES = ("tp", "cp", "dp", "pp", "etp", "ep", "edp")


def default_expert_tp(tp: Number, rest: Number, ep: Number) -> Number:
    """Ranks that share an expert where none are chosen: tp where ep divides the `rest`, cp * dp, else 1."""
    return where(rest % ep == 0, tp, 1)


@dataclass(frozen=True)
class Mesh:
    """Sizes of the axes and the order in which ranks run through them, innermost first.

    ``etp`` None: tp where ep then still divides the stage, else 1. InfeasibleError when ep does not fit.

    >>> mesh = Mesh(dp=2, tp=2, pp=2)
    >>> mesh.groups("tp").tolist()
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    >>> mesh.position(5)
    {'tp': 1, 'cp': 0, 'dp': 0, 'pp': 1}
    """

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int | None = None
    order: tuple[str, ...] = ORDER

    def __post_init__(self) -> None:
        for axis in ("dp", "pp", "cp", "tp", "ep"):
            if getattr(self, axis) < 1:
                raise InfeasibleError(f"found {axis}={getattr(self, axis)}, expected at least 1")
        if sorted(self.order) != sorted(ORDER):
            raise InfeasibleError(f"found the order {', '.join(self.order)}, expected each of {', '.join(ORDER)} once")
        stage = self.tp * self.cp * self.dp
        if stage % (self.expert_tp * self.ep):
            raise InfeasibleError(
                f"found ep={self.ep} with etp={self.expert_tp}, but a pipeline stage has tp*cp*dp = {stage} ranks; "
                f"expected a divisor of {stage // self.expert_tp}: {_near_divisors(stage // self.expert_tp, self.ep)}"
            )
        if self.ep > 1 and (self.coordinates()["pp"] != self.coordinates(tuple(_EXPERT.values()))["pp"]).any():
            raise InfeasibleError(
                f"the order {', '.join(self.order)} puts experts and their layers into different pipeline stages; "
                "expected pp first or last"
            )

    # -- sizes ---------------------------------

    @property
    def expert_tp(self) -> int:
        """Ranks that share one expert."""
        if self.etp is not None:
            return self.etp
        return int(default_expert_tp(self.tp, self.cp * self.dp, self.ep))

    @property
    def expert_dp(self) -> int:
        """Copies of an expert."""
        return self.tp * self.cp * self.dp // (self.expert_tp * self.ep)

    @property
    def world_size(self) -> int:
        """Number of ranks: tp * cp * dp * pp (ep folds into them)."""
        return self.tp * self.cp * self.dp * self.pp

    def size(self, *axes: str) -> int:
        """Ranks of a group that spans the axes."""
        sizes = {"etp": self.expert_tp, "edp": self.expert_dp}
        return math.prod(sizes[axis] if axis in sizes else int(getattr(self, axis)) for axis in axes)

    # -- ranks ---------------------------------

    def _layout(self, axes: tuple[str, ...]) -> list[str]:
        """The axes of the dense or the expert layout in placement order, innermost first."""
        if set(axes) <= set(_DENSE):
            return [axis for axis in self.order if axis in _DENSE]
        if set(axes) <= set(_EXPERT.values()):
            return [_EXPERT[axis] for axis in self.order if axis in _EXPERT]
        raise InfeasibleError(f"found the axes {', '.join(axes)}, expected some of {', '.join(AXES)} of one layout")

    def coordinates(self, axes: tuple[str, ...] = _DENSE) -> dict[str, Int64]:
        """Positions of all ranks on all axes of a layout, each (world_size,)."""
        layout = self._layout(axes)
        shape = tuple(self.size(axis) for axis in reversed(layout))
        columns = np.unravel_index(np.arange(self.world_size), shape)
        return {axis: np.asarray(c, np.int64) for axis, c in zip(reversed(layout), columns, strict=True)}

    def position(self, rank: int) -> dict[str, int]:
        """Where a rank stands on tp, cp, dp and pp, and on the expert axes where there are experts' groups."""
        dense = {axis: int(column[rank]) for axis, column in self.coordinates().items()}
        position = {axis: dense[axis] for axis in _DENSE}
        if self.ep > 1:
            experts = self.coordinates(tuple(_EXPERT.values()))
            position |= {axis: int(experts[axis][rank]) for axis in ("etp", "ep", "edp")}
        return position

    def ranks(self, **positions: Int64) -> Int64:
        """The ranks at many positions; an axis left out is 0."""
        total, stride = np.zeros(1, np.int64), 1
        for axis in self._layout(_DENSE):
            total = total + positions.get(axis, np.zeros(1, np.int64)) * stride
            stride *= self.size(axis)
        return total

    def rank(self, **position: int) -> int:
        """The rank at a position on tp, cp, dp and pp; an axis left out is 0."""
        for axis, at in position.items():
            if not 0 <= at < self.size(axis):
                raise InfeasibleError(f"found {axis} position {at}, expected 0 to {self.size(axis) - 1}")
        return int(self.ranks(**{axis: np.array([at]) for axis, at in position.items()})[0])

    def groups(self, *axes: str) -> Int64:
        """The groups that differ only on the axes, (groups, ranks of one), each in rank order.

        ``groups("dp", "cp")`` is where gradients are summed, ``groups("edp")`` where those of experts are.
        """
        layout = self._layout(axes)
        shape = [self.size(axis) for axis in reversed(layout)]
        ranks = np.arange(self.world_size).reshape(shape)
        own = [i for i, axis in enumerate(reversed(layout)) if axis in axes]
        rest = [i for i in range(len(shape)) if i not in own]
        return np.sort(ranks.transpose(rest + own).reshape(-1, self.size(*axes)), axis=1)

    def groups_of(self, stage: int, *axes: str, ranks: int = 0, every: int = 1) -> Int64:
        """`groups` of one pipeline stage, cut (`parts_of`); the same array whenever it is asked for."""
        return _groups_of(self, stage, axes, ranks, every)

    # -- fitting ---------------------------------

    def product(self) -> str:
        """``tp*pp*cp*dp = 8*4*1*3 = 96``."""
        return f"tp*pp*cp*dp = {self.tp}*{self.pp}*{self.cp}*{self.dp} = {self.world_size}"

    def misfit(self, gpus: int, heads: int = 0) -> str | None:
        """What is wrong with the product on so many GPUs, with the nearest right meshes; None when it fits.

        Of a model with so many `heads`, only meshes whose tp divides them are named.

        >>> Mesh(tp=8, pp=4, dp=3).misfit(128)
        'tp*pp*cp*dp = 8*4*1*3 = 96, but the cluster has 128 GPUs; dp=4 would fit'
        """
        if self.world_size == gpus:
            return None
        return f"{self.product()}, but the cluster has {gpus} GPUs; {self._advice(gpus, heads)}"

    def _advice(self, gpus: int, heads: int) -> str:
        model = self.tp * self.pp * self.cp
        if gpus % model == 0 and heads % self.tp == 0:
            return f"dp={gpus // model} would fit"
        possible = (m for m in self._near(gpus) if heads % m[0] == 0)
        near = sorted(possible, key=lambda m: (self._distance(m), m))[:3]
        if not near:
            return "no mesh near it would fit"
        shown = [f"tp={tp} pp={pp} cp={cp} dp={gpus // (tp * pp * cp)}" for tp, pp, cp in near]
        return f"{' or '.join(shown)} would fit"

    def _near(self, gpus: int) -> Iterator[tuple[int, int, int]]:
        for tp in divisors(gpus, 4096):
            for pp in divisors(gpus // tp, 4096):
                for cp in divisors(gpus // tp // pp, 4096):
                    if (tp != self.tp) + (pp != self.pp) + (cp != self.cp) == 1:
                        yield tp, pp, cp

    def _distance(self, sizes: tuple[int, int, int]) -> float:
        return sum(abs(math.log(new / old)) for new, old in zip(sizes, (self.tp, self.pp, self.cp), strict=True))


@lru_cache(maxsize=1024)
def _groups_of(mesh: Mesh, stage: int, axes: tuple[str, ...], ranks: int, every: int) -> Int64:
    groups = mesh.groups(*axes)
    return parts_of(groups[mesh.coordinates()["pp"][groups[:, 0]] == stage], ranks, every)


def parts_of(groups: Int64, ranks: int = 0, every: int = 1) -> Int64:
    """Groups cut into those of so many `ranks` (0: as many as there are), `every` so many of the ranks.

    >>> parts_of(np.arange(8)[None], 4).tolist(), parts_of(np.arange(8)[None], every=4).tolist()
    ([[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]])
    """
    size = ranks or groups.shape[1] // every
    return np.asarray(groups.reshape(-1, size, every).swapaxes(1, 2).reshape(-1, size), np.int64)


def divisors(number: int, most: int) -> tuple[int, ...]:
    """The divisors of a number up to `most`."""
    return tuple(d for d in range(1, min(number, most) + 1) if number % d == 0)


def _near_divisors(number: int, wanted: int) -> str:
    near = sorted(sorted(divisors(number, number), key=lambda d: abs(math.log(d / max(wanted, 1))))[:3])
    return ", ".join(map(str, near))
