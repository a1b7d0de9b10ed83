"""The best split of a machine's GPUs between the engines and the trainer of an ``rl:`` item.

Every split is run as `commsim run` runs it: engines of several sizes on the trainer's GPUs by turns, or on whole nodes
of their own (of one node: on whole engines), in step with the trainer or one step ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commsim.errors import CommsimError
from commsim.scenario.rl import RlSpec, rl_faults
from commsim.scenario.rl_run import run_rl

if TYPE_CHECKING:
    from commsim.scenario.rl_result import RlItem
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology

Progress = Callable[[str, int, int], None]

TP = (1, 2, 4, 8)
"""GPUs of an engine that are tried, beside those that the item says."""


@dataclass(frozen=True, eq=False)
class RlSplit:
    """A split that was run: what the item would say, and its answer."""

    spec: RlSpec
    item: RlItem

    @property
    def words(self) -> str:
        """``engines of tp 2 on 16 GPUs, one step ahead``."""
        return split_words(self.spec)


@dataclass
class Splits:
    """All splits, the quickest first, and those that do not work, with the reason."""

    ranked: list[RlSplit] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    @property
    def best(self) -> RlSplit:
        """The quickest; CommsimError where none works."""
        if not self.ranked:
            first = f": {self.refused[0][0]}: {self.refused[0][1]}" if self.refused else ""
            raise CommsimError(f"found no split that works{first}")
        return self.ranked[0]


def split_words(spec: RlSpec) -> str:
    """Where the engines of an item are, in words."""
    e = spec.engines
    cut = f"engines of tp {e.tp}" + (f" pp {e.pp}" if e.pp > 1 else "")
    if e.gpus is None:
        return f"{cut} by turns with the trainer"
    return f"{cut} on {e.gpus} GPUs, {'one step ahead' if spec.behind else 'in step'}"


def candidates(spec: RlSpec, topology: Topology) -> Iterator[RlSpec]:
    """The splits that are tried; what the item says of algorithm, mesh and lengths stays as it is."""
    e, world = spec.engines, topology.world_size
    per_node = topology.ranks_per_node
    for tp in sorted({e.tp, *(tp for tp in TP if tp <= min(per_node, world))}):
        sized = e.model_copy(update={"tp": tp})
        yield spec.model_copy(update={"engines": sized.model_copy(update={"gpus": None}), "behind": 0})
        grain = per_node if topology.nodes > 1 else tp
        for gpus in range(grain, world - spec.roles.total, grain):
            if gpus % sized.each == 0:
                for behind in (0, 1):
                    yield spec.model_copy(update={"engines": sized.model_copy(update={"gpus": gpus}), "behind": behind})


def rank_splits(setting: Setting, topology: Topology, spec: RlSpec, progress: Progress | None = None) -> Splits:
    """Every candidate run; of updates that do not fit their GPUs none is ranked."""
    splits, tried = Splits(), list(candidates(spec, topology))
    for number, one in enumerate(tried, 1):
        if progress is not None:
            progress("splits", number, len(tried))
        faults = rl_faults(one, topology, setting.base_dir)
        if faults:
            splits.refused.append((split_words(one), faults[0][1]))
            continue
        try:
            item, _ = run_rl(setting, topology, one)
        except CommsimError as error:
            splits.refused.append((split_words(one), str(error)))
            continue
        if item.trainer_memory_bytes > item.capacity_bytes:
            splits.refused.append((split_words(one), "an update does not fit the trainer's GPUs"))
            continue
        splits.ranked.append(RlSplit(one, item))
    splits.ranked.sort(key=lambda split: (split.item.step_s, split.words))
    return splits
