"""What a run costs: GPU-hours at a price, and the fabric's share of its purchase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.planner.question import Cluster
from commsim.topology.graph import Topology
from commsim.topology.kinds import VertexKind

HOURS_A_YEAR = 8760.0


@dataclass(frozen=True)
class Cost:
    """A run: seconds, GPU-hours and dollars, and the tokens for one dollar (0 without a price).

    ``fabric_usd`` is the part of NICs and switches; ``ideal_seconds`` what it takes without failures.
    """

    seconds: float
    gpu_hours: float
    usd: float
    tokens_per_usd: float
    fabric_usd: float = 0.0
    ideal_seconds: float = 0.0

    @property
    def days(self) -> float:
        """Days of wall-clock time."""
        return self.seconds / 86_400


def fabric_hour_usd(topology: Topology, prices: Cluster) -> float:
    """Dollars of one hour of the NICs and the network's switches, those inside nodes not counted, written off."""
    nics = topology.nodes * topology.nics_per_node
    switches = int(np.sum(topology.vertex_kind == VertexKind.SWITCH))
    return (nics * prices.nic_usd + switches * prices.switch_usd) / (prices.years * HOURS_A_YEAR)


def run_cost(topology: Topology, prices: Cluster, tokens: float, tokens_per_s: float, goodput: float = 1.0) -> Cost:
    """The cost of training on so many tokens at a rate of which a share `goodput` is kept."""
    ideal = tokens / tokens_per_s
    seconds = ideal / goodput
    hours = seconds / 3600
    fabric_hour = fabric_hour_usd(topology, prices)
    usd, fabric = hours * (topology.world_size * prices.gpu_hour_usd + fabric_hour), hours * fabric_hour
    return Cost(seconds, hours * topology.world_size, usd, tokens / usd if usd else 0.0, fabric, ideal)
