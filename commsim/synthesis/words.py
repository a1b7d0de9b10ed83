"""Why a limit is what it is, in a sentence: what must pass which links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from commsim.collectives.semantics import PAIRWISE
from commsim.synthesis.limit import CollectiveLimit
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.tree_limit import FlowCut
from commsim.topology.kinds import VertexKind
from commsim.units import format_bandwidth

_SORTS = {
    frozenset({VertexKind.NIC, VertexKind.SWITCH}): "NIC",
    frozenset({VertexKind.GPU, VertexKind.NVSWITCH}): "NVLink port",
    frozenset({VertexKind.GPU}): "NVLink connection",
    frozenset({VertexKind.SWITCH}): "link between switches",
    frozenset({VertexKind.HOST}): "link between sockets",
}
"""What joins two sorts of vertices; whatever else is a PCIe link."""

_SEVERAL = {"link between switches": "links between switches", "link between sockets": "links between sockets"}
"""The plural, where it has no s at its end."""

_TOLD = 3
"""Stretches of ranks or nodes, and links, that a sentence names."""


def why(network: FlowNetwork, limit: CollectiveLimit) -> str:
    """The cut, or the links that a linear program blames; empty where nothing has to be sent."""
    if limit.cut is not None:
        return cut_words(network, limit.cut, limit.collective)
    if not limit.binding:
        return ""
    # A program blames links in either direction, and no one cut: each link counts once, and their sum says nothing.
    once = {frozenset((int(network.tail[e]), int(network.head[e]))): e for e in limit.binding}
    return f"all routes together, over {_counted(network, list(once.values()))}, carry no more"


def cut_words(network: FlowNetwork, cut: FlowCut, collective: str) -> str:
    """Who must take in or give out what share over which links, of the side of a cut that has fewer ranks."""
    held = [r for r, v in enumerate(network.ranks.tolist()) if v in cut.vertices]
    inward = cut.inward
    if len(held) > network.n - len(held):
        held, inward = [r for r in range(network.n) if r not in set(held)], not inward
    must = f"must {'take in' if inward else 'give out'}"
    over = link_words(network, cut.edges)
    if cut.share > 1 and len(cut.vertices.intersection(network.ranks.tolist())) == network.n:
        must = f"must {'take in' if cut.inward else 'give out'}"
        return (
            f"{_all_parts(network, cut)} together {must} {_share(cut)} the array, to add and to spread it, over {over}"
        )
    if cut.share > 1 and collective == "all_reduce":
        held_by = f"each of {_parts(network, cut)}" if _parts(network, cut) else _ranks(network, held)
        return f"{held_by} {must} {_share(cut)} the array, to add and to spread it, over {over}"
    what = "what a rank sends" if collective in PAIRWISE else "the array"
    return f"{_ranks(network, held)} {must} {_share(cut)} {what} over {over}"


def _parts(network: FlowNetwork, cut: FlowCut) -> str:
    """The nodes or ranks that are alike to the one of a cut, in words."""
    held = [r for r, v in enumerate(network.ranks.tolist()) if v in cut.vertices]
    if len(held) == 1:
        return f"the {network.n} ranks"
    of = network.node[network.ranks]
    nodes = np.unique(of)
    return f"the {nodes.size} nodes" if np.unique(of[held]).size == 1 and nodes.size > 1 else ""


def _all_parts(network: FlowNetwork, cut: FlowCut) -> str:
    """The parts whose borders are one cut, in words: k parts send the array 2 (k - 1) times."""
    parts = int(cut.share) // 2 + 1
    of = {network.n: "ranks", np.unique(network.node[network.ranks]).size: "nodes"}
    return f"the {parts} {of.get(parts, 'parts of the machine')}"


def _share(cut: FlowCut) -> str:
    share = cut.share
    if share == 1:
        return "all of"
    if share.denominator == 1:
        return f"{share.numerator} times"
    return f"{share}" + (" of" if share < 1 else " times") if share.denominator < 100_000 else f"{float(share):.4g} of"


def _ranks(network: FlowNetwork, held: Sequence[int]) -> str:
    """``node 3``, ``nodes 0-3`` where all ranks of nodes are held, else the ranks."""
    of = network.node[network.ranks]
    if not held:
        return "what joins the ranks"
    nodes = sorted(set(of[list(held)].tolist()))
    whole = nodes[0] >= 0 and len(held) == int(np.isin(of, nodes).sum()) and np.unique(of).size > 1
    if whole:
        return f"node{'s' * (len(nodes) > 1)} {_stretches(nodes)}"
    if len(held) == 1:
        return f"rank {held[0]} ({network.vertex[int(network.ranks[held[0]])]})"
    return f"ranks {_stretches(held)}"


def _stretches(numbers: Sequence[int]) -> str:
    """``0-3, 8, 12-15 ...``."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ", ".join(texts[:_TOLD]) + (f" and {len(texts) - _TOLD} more" if len(texts) > _TOLD else "")


def link_words(network: FlowNetwork, edges: Sequence[int]) -> str:
    """How many links of which sort, and what they carry together."""
    total = float(sum(int(network.capacity[e]) for e in edges) * network.unit)
    return f"{_counted(network, edges)} ({format_bandwidth(total)})"


def _counted(network: FlowNetwork, edges: Sequence[int]) -> str:
    """How many links of which sort."""
    sorts = Counter(_sort(network, e) for e in edges)
    several = [
        f"{count} {_SEVERAL.get(name, name + 's')}" if count > 1 else f"one {name}" for name, count in sorts.items()
    ]
    return " and ".join(several[:_TOLD])


def _sort(network: FlowNetwork, edge: int) -> str:
    ends = {VertexKind(int(network.kind[v])) for v in (network.tail[edge], network.head[edge])}
    if not network.links:  # of no topology: nobody says what joins them
        return "link"
    if edge in network.direct:
        return "C2C link"
    return _SORTS.get(frozenset(ends), "PCIe link")
