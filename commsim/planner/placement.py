"""What a placement costs against the best that is known: nodes leaf by leaf, the GPUs of each in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commsim.scenario.placement import PlacementSpec, by_leaf
from commsim.scenario.predictors import Cache, row_predictor
from commsim.scenario.strict import format_ranks

if TYPE_CHECKING:
    from commsim.scenario.run import Prepared


@dataclass(frozen=True)
class Rival:
    """Another placement of as many ranks, its seconds, and what to write on the command line to have it."""

    what: str
    advice: str
    seconds: float
    overrides: str


@dataclass(frozen=True)
class PlacementCost:
    """A placement of so many of the machine's ranks: its seconds, what limits it, others beside it."""

    ranks: int
    of_ranks: int
    seconds: float
    limit: str
    rivals: tuple[Rival, ...]

    @property
    def best(self) -> Rival:
        """The quickest of the others."""
        return min(self.rivals, key=lambda rival: rival.seconds)


def placement_cost(ready: Prepared, size: int, seconds: float, limit: str, cache: Cache) -> PlacementCost | None:
    """The cost of a scenario's placement for its first item at one size; None where it places nothing.

    It took `seconds`, limited by `limit`. Other nodes are tried only where all nodes of the machine are of one kind.
    """
    where, spec, topology = ready.placed, ready.scenario.placement, ready.topology
    if where is None or spec is None:
        return None
    chosen = np.array(where.nodes)
    words = "the same nodes leaf by leaf", "list these nodes leaf by leaf"
    others = [(*words, by_leaf(topology, chosen))]
    if chosen.size < topology.nodes and len(topology.groups) == 1:
        packed = by_leaf(topology, np.arange(topology.nodes))[: chosen.size]
        others.append(("nodes under as few leaves as can be", "ask for nodes under as few leaves as can be", packed))
    gpus = None if spec.gpus is None else tuple(sorted(spec.gpus))
    rivals = []
    for what, advice, nodes in others:
        placement = PlacementSpec(nodes=tuple(nodes.tolist()), gpus=gpus)
        scenario = ready.scenario.model_copy(update={"placement": placement})
        time_s = row_predictor(scenario, topology, scenario.collectives[0], cache).seconds(size)
        rivals.append(Rival(what, advice, time_s, f"'placement={_flow(placement)}'"))
    return PlacementCost(len(where.ranks), topology.world_size, seconds, limit, tuple(rivals))


def _flow(placement: PlacementSpec) -> str:
    """The placement as YAML on one line."""
    lists = {"nodes": placement.nodes, "gpus": placement.gpus}
    texts = (f"{key}: [{', '.join(map(str, format_ranks(values)))}]" for key, values in lists.items() if values)
    return f"{{{', '.join(texts)}}}"
