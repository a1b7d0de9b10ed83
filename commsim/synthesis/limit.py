"""The least time of a collective at full bandwidth on a network, whatever the algorithm, and why.

All blocks of all_gather, broadcast, gather and what mirrors them: maximum flows, exact. Exchanges between pairs: a
maximum concurrent flow. all_reduce: spreading and adding at once; the sum of both phases where cuts say that it is the
least, else a linear program. Where a program would take too long, cuts: no schedule is quicker, none need be as quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from commsim.collectives.semantics import CHAINED, COLLECTIVES, DIVIDED, PAIRWISE, ROOTED, SCATTERING
from commsim.errors import ScheduleError
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.parts import border, exchange_cut, flows_of, gossip_cut
from commsim.synthesis.tree_limit import FlowCut, TreeLimit, spread_limit
from commsim.topology.kinds import Float64, Int64

if TYPE_CHECKING:
    from commsim.synthesis.symmetry import Symmetry

By = Literal["flow", "program", "cut"]
"""What a limit rests on; a cut may lie below what any schedule reaches."""

Effort = Literal["flow", "program"]
"""``flow``: what takes milliseconds; ``program``: linear programs too, seconds."""


MOST_UNKNOWNS = 60_000
"""Unknowns up to which a linear program is solved: some ten seconds."""


MOST_ALIKE = 1024
"""Ranks up to which it is asked which of them are alike."""


@dataclass(frozen=True)
class CollectiveLimit:
    """Seconds that a collective takes at least: ``latency_s``, and ``per_byte_s`` for each byte of nccl-tests' size.

    ``by`` says how it was found; ``cut`` what binds, if it is one; ``binding`` the edges that a linear program blames.
    """

    collective: str
    per_byte_s: Fraction | float
    latency_s: float
    by: By
    cut: FlowCut | None = None
    binding: tuple[int, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether schedules come as near to it as one likes, for large sizes."""
        return self.by != "cut"

    def bandwidth_s(self, nbytes: int) -> float:
        """Seconds at full bandwidth."""
        return float(self.per_byte_s * nbytes)

    def seconds(self, nbytes: int) -> float:
        """The larger of both."""
        return max(self.latency_s, self.bandwidth_s(nbytes))


def limit_of(
    network: FlowNetwork,
    collective: str,
    *,
    root: int = 0,
    blocks: Sequence[int] | None = None,
    demand: Float64 | None = None,
    effort: Effort = "program",
    latency: bool = True,
) -> CollectiveLimit:
    """The limit of a collective among the ranks of a network; its size is the nccl-tests size.

    ``blocks``: bytes of each rank's block, where they are not equal; then the size is their sum. ``demand`` (n, n):
    bytes from each rank to each other, in place of what the collective sends; then a byte of the size is a byte of
    demand. Without `latency` no ways are searched for. ScheduleError for an unknown collective or root.
    """
    if collective not in COLLECTIVES:
        raise ScheduleError(f"unknown collective {collective!r}, expected one of {', '.join(sorted(COLLECTIVES))}")
    if not 0 <= root < network.n:
        raise ScheduleError(f"root {root} is not one of the ranks 0..{network.n - 1}")
    late = 0.0
    if latency:
        from commsim.synthesis.latency import latency_limit_s

        late = latency_limit_s(network, collective, root)
    if network.n == 1 or collective == "barrier":
        return CollectiveLimit(collective, Fraction(0), late, "flow")
    if demand is not None or collective in PAIRWISE:
        return _exchange(network, collective, demand, late, effort)
    if collective == "all_reduce":
        return _all_reduce(network, late, effort)
    return _trees(network, collective, root, blocks, late, effort)


def _trees(
    network: FlowNetwork, collective: str, root: int, blocks: Sequence[int] | None, late: float, effort: Effort
) -> CollectiveLimit:
    turned = collective in SCATTERING or collective == "reduce"
    on = network.reversed() if turned else network
    weights = [1] * network.n if blocks is None else list(blocks)
    if collective in CHAINED:
        weights = [int(r == root) for r in range(network.n)]
    if len(weights) != network.n or min(weights) < 0 or not any(weights):
        raise ScheduleError(f"found blocks {weights[:8]}, expected {network.n} of 0 bytes or more, not all of 0")
    sinks = [root] if collective in ROOTED & DIVIDED else list(range(network.n))
    by: By = "flow"
    tree = spread_limit(on, weights, sinks)
    if tree.rate == 0:
        return CollectiveLimit(collective, Fraction(0), late, by)
    cut = None if tree.cut is None else _turned(tree.cut, turned)
    limit = CollectiveLimit(collective, 1 / (tree.rate * network.unit), late, by, cut)
    return _unbalanced(on, weights, sinks, limit, effort) if len(sinks) > 1 and not _passes_all_on(on) else limit


def _passes_all_on(network: FlowNetwork) -> bool:
    """Whether what vertices without a rank take in is enough for all that they give out: then they need not copy."""
    passing = network.rank_of < 0
    return bool((network.taken_in >= network.given_out)[passing].all())


def _unbalanced(
    on: FlowNetwork, weights: list[int], sinks: list[int], plain: CollectiveLimit, effort: Effort
) -> CollectiveLimit:
    """The limit where some vertex could give out more than it takes in, if it could copy; `plain` lets all copy."""
    passing = (on.rank_of < 0) & (on.taken_in < on.given_out)
    if effort == "flow" or on.copies[passing].all() or (len(sinks) + 1) * on.edges > MOST_UNKNOWNS:
        return replace(plain, by="cut")
    from commsim.synthesis.programs import passed_on_limit

    program = passed_on_limit(on, weights, sinks)
    least = 1 / (program.rate * float(on.unit))
    if least <= float(plain.per_byte_s) * (1 + 1e-9):
        return plain
    return CollectiveLimit(plain.collective, least, plain.latency_s, "program", None, program.binding)


def _turned(cut: FlowCut, turned: bool) -> FlowCut:
    return FlowCut(cut.vertices, cut.edges, cut.inward != turned, cut.share)


def _all_reduce(network: FlowNetwork, late: float, effort: Effort) -> CollectiveLimit:
    name, weights = "all_reduce", [1] * network.n
    acts = bool((network.copies | network.adds).any())
    one = [1] + [0] * (network.n - 1)  # what any rank gives must reach all, and what all give must reach it
    through = min(
        (_turned_limit(spread_limit(n, one), back) for n, back in ((network, False), (network.reversed(), True))),
        key=lambda tree: tree.rate,
    )
    gossip, part = gossip_cut(network)
    least, cut = through.rate, through.cut
    if gossip < least:
        least, cut = gossip, _typical(network, part)
    if not acts:
        phases = spread_limit(network, weights), spread_limit(network.reversed(), weights)
        both = 1 / (1 / phases[0].rate + 1 / phases[1].rate)
        if both == least and _passes_all_on(network) and _passes_all_on(network.reversed()):
            return CollectiveLimit(name, 1 / (both * network.unit), late, "flow", cut)
    unknowns = 2 * (network.n + 1) * network.edges
    symmetry = None
    if effort == "program" and unknowns > MOST_UNKNOWNS // 3:
        unknowns, symmetry = _alike(network, unknowns)
    if effort == "flow" or unknowns > MOST_UNKNOWNS // 3:
        return CollectiveLimit(name, 1 / (least * network.unit), late, "cut", cut)
    from commsim.synthesis.programs import reduce_spread_limit

    program = reduce_spread_limit(network, symmetry)
    by: By = "cut" if acts else "program"
    return CollectiveLimit(name, 1 / (program.rate * float(network.unit)), late, by, None, program.binding)


def _alike(network: FlowNetwork, unknowns: int) -> tuple[int, Symmetry | None]:
    """How many unknowns are left of a program if ranks that are alike are counted once, and the moves that say so."""
    from commsim.synthesis.symmetry import symmetry_of

    symmetry = symmetry_of(network) if network.n <= MOST_ALIKE else None
    return (unknowns, None) if symmetry is None else (unknowns // symmetry.moves, symmetry)


def _turned_limit(tree: TreeLimit, turned: bool) -> TreeLimit:
    return TreeLimit(tree.rate, None if tree.cut is None else _turned(tree.cut, turned))


def _typical(network: FlowNetwork, part: Int64) -> FlowCut:
    """The border of one part where all are alike; else the borders of all, with what they carry together."""
    into, out = flows_of(network, part)
    held = np.unique(part[network.ranks])
    together = Fraction(2 * (held.size - 1))
    inward = int(into.sum()) <= int(out.sum())
    units = (into if inward else out)[held]
    borders = [
        border(network, np.flatnonzero(part == k), inward=inward, share=together / held.size)
        for k in (held[:1] if np.unique(units).size == 1 else held).tolist()
    ]
    if len(borders) == 1:
        return borders[0]
    edges = sorted(edge for one in borders for edge in one.edges)
    return FlowCut(frozenset().union(*(one.vertices for one in borders)), tuple(edges), inward, together)


def _exchange(
    network: FlowNetwork, collective: str, demand: Float64 | None, late: float, effort: Effort
) -> CollectiveLimit:
    n = network.n
    wanted = demand
    if wanted is None and collective == "send_recv":
        wanted = np.roll(np.eye(n), 1, axis=1)
    elif wanted is None:  # what one rank sends to all; of all_to_all_v what all send
        wanted = np.full((n, n), 1 / n if collective == "all_to_all" else 1 / n**2)
    if wanted.shape != (n, n) or (wanted < 0).any():
        raise ScheduleError(f"found demands of shape {wanted.shape}, expected {n} rows of {n} numbers of 0 or more")
    rate, cut = exchange_cut(network, wanted)
    unit = float(network.unit)
    if cut is None:
        return CollectiveLimit(collective, Fraction(0), late, "flow")
    unknowns = int((wanted.sum(axis=1) > 0).sum()) * network.edges
    symmetry = None
    if effort == "program" and unknowns > MOST_UNKNOWNS and demand is None and collective == "all_to_all":
        unknowns, symmetry = _alike(network, unknowns)
    if effort == "flow" or unknowns > MOST_UNKNOWNS:
        return CollectiveLimit(collective, 1 / (rate * unit), late, "cut", cut)
    from commsim.synthesis.programs import exchange_limit

    program = exchange_limit(network, wanted, symmetry)
    reached = program.rate >= rate * (1 - 1e-9)
    return CollectiveLimit(
        collective, 1 / (program.rate * unit), late, "program", cut if reached else None, program.binding
    )
