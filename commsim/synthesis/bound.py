"""What no schedule on a topology beats: the exact bound where it is quick to find, cuts where it is not.

A bound counts links of the host at the rates of their wires; the limit that `commsim synthesize` prints counts them as
the machine lists them, net of protocol, since that is what its schedules run on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from commsim.bounds import LowerBound, lower_bound_s, wires
from commsim.collectives.semantics import PAIRWISE
from commsim.errors import CommsimError
from commsim.synthesis.limit import CollectiveLimit, Effort, limit_of
from commsim.synthesis.machine import adds_somewhere, machine_network
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.words import why
from commsim.topology.graph import Topology
from commsim.topology.kinds import LinkKind
from commsim.units import format_bandwidth, format_time

MOST_LINKS = 6_000
"""Links of a topology up to which a table asks for flows: 64 nodes of 8 GPUs, some hundredths of a second."""
MOST_UNKNOWNS = 12_000
"""Ranks times links up to which an explanation takes a linear program: some seconds."""

_FEW = 64
"""Ranks up to which the other figure of an all_reduce takes a program: tenths of a second where ranks are alike."""

_SAME = 1e-9
"""Share within which a linear program and a cut are the same."""

_ALIKE = 1.001
"""Up to this ratio bounds at raw and at listed rates are told as one."""


@dataclass(frozen=True)
class BoundQuestion:
    """A collective of some ranks of a topology, and who may add and copy beside them; ``root`` counts the ranks."""

    collective: str
    root: int = 0
    ranks: tuple[int, ...] | None = None
    in_network: bool = False
    hosts_add: bool = False


@dataclass(frozen=True, eq=False)
class QuickBound:
    """Seconds below which a collective cannot end, for any size: the largest of all cuts and, where it is known, flows.

    ``limit`` is None where the machine is too large for flows, or has too many links.
    """

    topology: Topology
    question: BoundQuestion
    limit: CollectiveLimit | None
    network: FlowNetwork | None

    def cuts(self, nbytes: int) -> LowerBound:
        """The quick cuts: latency, ports, NICs and bisection."""
        q = self.question
        acts = q.in_network or q.hosts_add
        return lower_bound_s(q.collective, nbytes, self.topology, in_network=acts, root=q.root, ranks=q.ranks)

    def seconds(self, nbytes: int) -> float:
        """The bound of one size."""
        cuts = self.cuts(nbytes).seconds
        return cuts if self.limit is None else max(cuts, self.limit.bandwidth_s(nbytes))

    def exact(self, nbytes: int) -> bool:
        """Whether schedules come as near to the bound of one size as one likes, as pipelines of small pieces do."""
        near = self.limit is not None and self.limit.bandwidth_s(nbytes) >= self.seconds(nbytes) * (1 - _SAME)
        return near and self.limit is not None and self.limit.exact

    def words(self, nbytes: int) -> str:
        """What the bound of a size is, in a sentence without its end."""
        cuts, seconds = self.cuts(nbytes), self.seconds(nbytes)
        if seconds <= cuts.latency_s:
            return f"the quickest way to the farthest rank takes {format_time(cuts.latency_s)}"
        if self.limit is None or self.network is None:
            return f"{_cut_at(cuts)}; the machine is too large for an exact bound here"
        if self.limit.bandwidth_s(nbytes) < seconds * (1 - _SAME):
            return f"{_cut_at(cuts)}; an exact bound takes a linear program"
        sort = "exact bound" if self.limit.exact else "cut" if self.limit.cut is not None else "a linear program"
        listed, rates = self.listed(nbytes)
        note = ""
        if rates:
            command = "synthesize --in-network" if self._adding(nbytes, listed) else "synthesize"
            note = f"; {format_time(listed)} net of {rates}, as `{command}` counts"
        return f"{sort}: {why(self.network, self.limit)}{note}"

    def listed(self, nbytes: int) -> tuple[float, str]:
        """Seconds of a size at the rates that the machine lists, and which link is listed otherwise than its wires.

        The second is empty, and the first the bound, where both are alike. A bound counts links of the host at the
        rates of their wires, so that no measurement falls below it; what a machine lists is net of protocol.
        """
        seconds = self.seconds(nbytes)
        if self.limit is None:
            return seconds, ""
        network, limit = _at_listed_rates(self.topology, self.question)
        listed = limit.bandwidth_s(nbytes)
        rates = _other_rates(self.topology, network, limit) if listed > _ALIKE * seconds else ""
        return (listed, rates) if rates else (seconds, "")

    def _adding(self, nbytes: int, listed: float) -> bool:
        """Whether what it is at listed rates is less because switches may add."""
        q = self.question
        return q.in_network and listed < quick_bound(self.topology, replace(q, in_network=False)).listed(nbytes)[0]


def _other_rates(topology: Topology, network: FlowNetwork, limit: CollectiveLimit) -> str:
    """A link that binds whose wires carry more than the machine lists, with both rates; empty where none does."""
    edges = limit.binding if limit.cut is None else limit.cut.edges
    links = np.array([network.links[edge][0] for edge in edges], np.int64)
    raw, listed = wires(topology, links), topology.link_bandwidth[links]
    other = np.flatnonzero(raw != listed)
    if not other.size:
        return ""
    at = int(other[0])
    name = "socket links'" if topology.link_kind[links[at]] == LinkKind.HOST else "PCIe's"
    return f"{name} protocol ({format_bandwidth(float(listed[at]))} of {format_bandwidth(float(raw[at]))})"


def _cut_at(cuts: LowerBound) -> str:
    halves = cuts.bisection_s >= cuts.bandwidth_s
    return "cut between the halves of the machine" if halves else f"cut at {cuts.bandwidth_at}"


@lru_cache(maxsize=8)
def _at_listed_rates(topology: Topology, question: BoundQuestion) -> tuple[FlowNetwork, CollectiveLimit]:
    """The network and the limit with links of the host net of protocol."""
    network = _network(topology, question, at_wires=False)
    acts = (network.copies | network.adds).any()
    few = question.collective == "all_reduce" and network.n <= _FEW and not acts
    effort: Effort = "program" if few else "flow"
    return network, limit_of(network, question.collective, root=question.root, effort=effort, latency=False)


@lru_cache(maxsize=8)
def quick_bound(topology: Topology, question: BoundQuestion) -> QuickBound:
    """The bound for a table: milliseconds, so no linear program."""
    limit, network = None, None
    if topology.link_src.size <= MOST_LINKS and question.collective != "barrier":
        try:
            network = _network(topology, question, at_wires=True)
            limit = limit_of(network, question.collective, root=question.root, effort="flow", latency=False)
        except CommsimError:  # cut off from each other: whoever asks for times says so
            network = limit = None
    return QuickBound(topology, _truthful(topology, question), limit, network)


def sharpened(bound: QuickBound, nbytes: int | None = None) -> QuickBound:
    """The bound with a linear program where one decides, at one size or any, and is quick; else the bound itself."""
    network, limit = bound.network, bound.limit
    if limit is None or network is None or limit.exact or network.n * network.edges > MOST_UNKNOWNS:
        return bound
    if nbytes is not None and bound.question.collective not in PAIRWISE:
        # Ways to and from one rank after the other reach every rank: no program finds more than so many times a cut.
        most = 2 * network.n * limit.bandwidth_s(nbytes)
        if most <= bound.cuts(nbytes).latency_s:
            return bound
    try:
        full = limit_of(network, bound.question.collective, root=bound.question.root, latency=False)
    except CommsimError:
        return bound
    if full.cut is None and float(full.per_byte_s) <= float(limit.per_byte_s) * (1 + _SAME):
        full = replace(full, cut=limit.cut)  # the program finds no more than a cut, which says why
    return replace(bound, limit=full)


def _network(topology: Topology, q: BoundQuestion, *, at_wires: bool) -> FlowNetwork:
    ranks: Sequence[int] | None = q.ranks
    acts = q.in_network and q.collective not in PAIRWISE
    return machine_network(topology, ranks, in_network=acts, hosts_add=q.hosts_add, at_wires=at_wires)


def _truthful(topology: Topology, q: BoundQuestion) -> BoundQuestion:
    """The question where what adds may do so wherever it is, which is all that the quick cuts know of."""
    return replace(q, in_network=q.in_network and adds_somewhere(topology))
