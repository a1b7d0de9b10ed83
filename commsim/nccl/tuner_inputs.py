"""What the tuner of a version reads of a system: whose graph an algorithm has, and which row of a table holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commsim.nccl.system import Graph, System
    from commsim.nccl.version import Version


def graph_of(system: System, algorithm: str, version: Version) -> Graph | None:
    """The graph that an algorithm is priced by; None where the system has none.

    Before 2.18 both kinds of CollNet are priced by the one graph of CollNet, a chain, and NVLS by that of the ring.
    """
    if version < (2, 18, 0):
        if algorithm == "nvls":
            return system.ring if system.nvls is not None else None
        if algorithm == "collnet_direct":
            return system.collnet_chain
    graphs = {
        "tree": system.tree,
        "pat": system.tree,
        "ring": system.ring,
        "collnet_direct": system.collnet_direct,
        "collnet_chain": system.collnet_chain,
    }
    return graphs.get(algorithm, system.nvls)


def generation(system: System, version: Version) -> int:
    """Row of the tables: 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell.

    Before 2.17 only GPUs that all are of 8.0 (from 2.15 of 9.0) have a row of their own, and every other is as Volta.
    """
    if version < (2, 17, 0):
        if system.mixed_gpus:
            return 0
        return {80: 1, 90: 2 if version >= (2, 15, 0) else 0}.get(system.sm, 0)
    newest = 3 if version >= (2, 25, 0) else 2
    return min(newest, 3 if system.sm >= 100 else 2 if system.sm >= 90 else 1 if system.sm >= 80 else 0)


def column(system: System) -> int:
    """Column of the tables: one node, two, more."""
    return min(system.nodes, 3) - 1
