"""How links were used, by link and kind; what a run waits for; time in which communication is exposed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commsim.engine.critical import StretchKind
from commsim.engine.family import Totals
from commsim.engine.program import Float64, Int64
from commsim.engine.simulate import Outcome
from commsim.topology.kinds import LINK_NAMES, LinkKind

if TYPE_CHECKING:
    from commsim.topology.graph import Topology


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


def link_name(topology: Topology, link: int) -> str:
    """The link's ends by name, such as ``node0/gpu0 -> node0/nvswitch``; beyond the topology, a thread block."""
    if link >= topology.link_src.size:
        return f"thread block {link - topology.link_src.size}"
    src, dst = int(topology.link_src[link]), int(topology.link_dst[link])
    return f"{topology.vertex_name[src]} -> {topology.vertex_name[dst]}"


def kind_name(topology: Topology, link: int) -> str:
    """What the link's kind is called; beyond the topology, a thread block."""
    return LINK_NAMES[LinkKind(int(topology.link_kind[link]))] if link < topology.link_kind.size else "thread block"


def usage(outcome: Outcome | Totals, topology: Topology) -> list[KindUse]:
    """Use by kind of link, the busiest kind first, equals by name; links that carried nothing do not count."""
    link, nbytes, busy = _columns(outcome)
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
                busiest=link_name(topology, int(link[top])),
                busiest_share=float(busy[top]) / span,
            )
        )
    return sorted(rows, key=lambda row: (-round(row.busiest_share, 9), row.kind))


def _columns(outcome: Outcome | Totals) -> tuple[Int64, Int64, Float64]:
    nbytes, busy = outcome.link_bytes, outcome.link_busy_s
    link = getattr(outcome, "link", None)
    return (np.arange(nbytes.size) if link is None else link.astype(np.int64)), nbytes, busy


def network_use(outcome: Outcome | Totals, topology: Topology, *, most: int = MOST_LINKS) -> Use:
    """How a run used the network, with the ``most`` busiest links by name; a collective alone hides behind nothing."""
    link, nbytes, busy = _columns(outcome)
    used = np.flatnonzero(nbytes)
    first = used[np.argsort(-busy[used], kind="stable")][:most]
    span = outcome.makespan_s or 1.0
    times = (
        (outcome.start_s, outcome.end_s)
        if isinstance(outcome, Outcome)
        else (np.zeros(1), np.full(1, outcome.makespan_s))
    )
    return Use(
        time_s=outcome.makespan_s,
        exposed_s=exposed_s(times, (np.zeros(0), np.zeros(0))),
        bottleneck=bottleneck(outcome, topology),
        kinds=tuple(usage(outcome, topology)),
        links=tuple(
            LinkUse(
                link=link_name(topology, int(link[i])),
                kind=kind_name(topology, int(link[i])),
                nbytes=int(nbytes[i]),
                busy_s=float(busy[i]),
                busy_share=float(busy[i]) / span,
            )
            for i in first
        ),
        links_used=int(used.size),
        part=getattr(outcome, "part", ""),
    )


def limiting_link(outcome: Outcome | Totals, topology: Topology) -> tuple[int, float]:
    """The link that limits a run and the share of the makespan for which it is held; (-1, 0.0) if nothing is sent.

    Of the links held longest, to a hundredth, the one with most bytes for its bandwidth: those behind a slow link on
    one way are held as long as it is.
    """
    link, nbytes, busy = _columns(outcome)
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
        return f"{link_name(topology, at)} ({kind_name(topology, at)}) carries data for {100 * held:.0f} % of the time"
    path = outcome.critical_path()
    if not path.part.size:
        return "nothing to send"
    part, link, share = path.bottleneck()
    text = f"{share:.0%} {StretchKind(part).name.lower()}".replace("%", " %")
    if link < 0:
        return text
    return f"{text}, most of it over {link_name(topology, link)} ({kind_name(topology, link)})"


def exposed_s(communication: tuple[Float64, Float64], computation: tuple[Float64, Float64]) -> float:
    """Seconds in which something is communicated and nothing computed; each argument: starts and ends.

    >>> exposed_s((np.array([0.0, 2.0]), np.array([1.0, 5.0])), (np.array([0.5]), np.array([3.0])))
    2.5
    """
    # |A minus B| = |A or B| - |B|.
    both = tuple(np.append(a, b) for a, b in zip(communication, computation, strict=True))
    return covered(*both) - covered(*computation)


def covered(start: Float64, end: Float64) -> float:
    """The length of the union of intervals, from their starts and ends."""
    if not start.size:
        return 0.0
    order = np.argsort(start, kind="stable")
    starts, reach = start[order], np.maximum.accumulate(end[order])
    gap = np.append(True, starts[1:] > reach[:-1])
    last = np.append(np.flatnonzero(gap)[1:] - 1, starts.size - 1)
    return float((reach[last] - starts[gap]).sum())
