"""How links were used, by link and kind; what a run waits for; how long something is sent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.engine.critical import StretchKind
from commsim.engine.family import Totals
from commsim.engine.program import Float64
from commsim.engine.simulate import Outcome
from commsim.topology.graph import Topology
from commsim.topology.kinds import LINK_NAMES, LinkKind

MOST_LINKS = 10_000
"""Links listed by name; a machine of 100,000 GPUs has half a million."""

MOST_WALKED = 200_000
"""Messages up to which the critical path is walked for the bottleneck: it takes a second run."""


@dataclass(frozen=True)
class KindUse:
    """All links of one kind that carried something.

    ``busy_share``: mean share of the makespan for which they were held; ``busiest``: the name of the link held longest
    and its share.
    """

    kind: str
    links: int
    nbytes: int
    busy_share: float
    busiest: str
    busiest_share: float


@dataclass(frozen=True)
class LinkUse:
    """One link: its name, kind, bytes carried, seconds held and the share of the makespan that is."""

    link: str
    kind: str
    nbytes: int
    busy_s: float
    busy_share: float


@dataclass(frozen=True)
class Use:
    """How one run used the network.

    ``exposed_s``: time in which something is sent and nothing computed. ``bottleneck`` in words. ``links``: those held
    longest, at most `MOST_LINKS` of the ``links_used``.
    """

    time_s: float
    exposed_s: float
    bottleneck: str
    kinds: tuple[KindUse, ...]
    links: tuple[LinkUse, ...]
    links_used: int
    part: str = ""  # of what the links are, where one part stood for all


def kind_name(topology: Topology, link: int) -> str:
    """What the link's kind is called."""
    return LINK_NAMES[LinkKind(int(topology.link_kind[link]))]


def usage(outcome: Outcome | Totals, topology: Topology) -> list[KindUse]:
    """Use by kind of link, the busiest kind first, equals by name; links that carried nothing do not count."""
    link, nbytes, busy = outcome.link, outcome.link_bytes, outcome.link_busy_s
    kinds: dict[str, list[int]] = {}
    for place in np.flatnonzero(nbytes):
        kinds.setdefault(kind_name(topology, int(link[place])), []).append(int(place))
    span = outcome.makespan_s or 1.0
    rows = []
    for kind, places in kinds.items():
        top = max(places, key=lambda place: busy[place])
        rows.append(
            KindUse(
                kind=kind,
                links=len(places),
                nbytes=int(nbytes[places].sum()),
                busy_share=float(busy[places].mean()) / span,
                busiest=topology.link_name(int(link[top])),
                busiest_share=float(busy[top]) / span,
            )
        )
    return sorted(rows, key=lambda row: (-round(row.busiest_share, 9), row.kind))


def network_use(outcome: Outcome | Totals, topology: Topology) -> Use:
    """How a run used the network, its busiest links by name; a collective alone hides behind nothing."""
    link, nbytes, busy = outcome.link, outcome.link_bytes, outcome.link_busy_s
    used = np.flatnonzero(nbytes)
    first = used[np.argsort(-busy[used], kind="stable")][:MOST_LINKS]
    span = outcome.makespan_s or 1.0
    sending_s = covered_s(outcome.start_s, outcome.end_s) if isinstance(outcome, Outcome) else outcome.makespan_s
    return Use(
        time_s=outcome.makespan_s,
        exposed_s=sending_s,
        bottleneck=bottleneck(outcome, topology),
        kinds=tuple(usage(outcome, topology)),
        links=tuple(
            LinkUse(
                link=topology.link_name(int(link[i])),
                kind=kind_name(topology, int(link[i])),
                nbytes=int(nbytes[i]),
                busy_s=float(busy[i]),
                busy_share=float(busy[i]) / span,
            )
            for i in first
        ),
        links_used=int(used.size),
        part=outcome.part,
    )


def limiting_link(outcome: Outcome | Totals, topology: Topology) -> tuple[int, float]:
    """The link that limits a run and the share of the makespan for which it is held; (-1, 0.0) if nothing is sent.

    Of the links held longest, to a hundredth, the one with most bytes for its bandwidth: those behind a slow link on
    one way are held as long as it is.
    """
    link, nbytes, busy = outcome.link, outcome.link_bytes, outcome.link_busy_s
    if not busy.size or outcome.makespan_s == 0.0:
        return -1, 0.0
    inside = link < topology.link_bandwidth.size
    own_s = np.where(inside, nbytes / topology.link_bandwidth[np.where(inside, link, 0)], busy)
    longest = np.flatnonzero(busy >= 0.99 * busy.max())
    at = int(longest[np.argmax(own_s[longest])])
    return int(link[at]), float(busy[at]) / outcome.makespan_s


def bottleneck(outcome: Outcome | Totals, topology: Topology) -> str:
    """What a run waits for, in words: ``97 % transfer, most of it over node0.nic0 -> leaf0 (NIC)``.

    Read from the critical path where FIFO links were simulated, up to `MOST_WALKED` messages; else the busiest link.
    """
    if isinstance(outcome, Totals) or outcome.level != "event" or outcome.messages > MOST_WALKED:
        at, held = limiting_link(outcome, topology)
        if at < 0:
            return "nothing to send"
        return f"{topology.link_name(at)} ({kind_name(topology, at)}) carries data for {100 * held:.0f} % of the time"
    path = outcome.critical_path()
    if not path.part.size:
        return "nothing to send"
    part, link, share = path.bottleneck()
    text = f"{share:.0%} {StretchKind(part).name.lower()}".replace("%", " %")
    if link < 0:
        return text
    return f"{text}, most of it over {topology.link_name(link)} ({kind_name(topology, link)})"


def covered_s(start: Float64, end: Float64) -> float:
    """Seconds that some of the intervals cover.

    >>> covered_s(np.array([0.0, 2.0, 4.0]), np.array([1.0, 5.0, 6.0]))
    5.0
    """
    if not start.size:
        return 0.0
    order = np.argsort(start, kind="stable")
    starts, reach = start[order], np.maximum.accumulate(end[order])
    gap = np.append(True, starts[1:] > reach[:-1])
    last = np.append(np.flatnonzero(gap)[1:] - 1, starts.size - 1)
    return float((reach[last] - starts[gap]).sum())
