"""The cut that bounds a collective, on the drawing of its machine: the links that have most to carry are hot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commsim.report.topology_plot import plot_topology
from commsim.report.topology_shapes import Heat
from commsim.synthesis.words import why

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.synthesis.limit import CollectiveLimit
    from commsim.synthesis.network import FlowNetwork
    from commsim.topology.graph import Topology


NAMES = ("what no schedule gets round", "other links")


def plot_limit(topology: Topology, network: FlowNetwork, limit: CollectiveLimit) -> Figure:
    """The picture as a Figure: links of the cut, or those that a linear program blames by their share of it."""
    share = np.full(topology.link_src.size, np.nan)
    edges = limit.binding if limit.cut is None else limit.cut.edges
    for edge in edges:
        share[list(network.links[edge])] = 1.0
    return plot_topology(topology, Heat(share, NAMES), f"{limit.collective}: {why(network, limit)}")
