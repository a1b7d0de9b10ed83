"""A row of the result for a size: what the predictors of all libraries share, and a pace beside the machine's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commsim.collectives.schedule import check_root
from commsim.collectives.semantics import REDUCING, ROOTED, WHOLE, busbw_factor
from commsim.scenario.item import Row

if TYPE_CHECKING:
    from commsim.engine.usage import Use
    from commsim.scenario.collective import CollectiveSpec
    from commsim.synthesis.bound import QuickBound
    from commsim.topology.graph import Topology


@dataclass(frozen=True)
class Pace:
    """How many times as long as on the machine itself hops (links, proxies) and launches take."""

    latency: float = 1.0
    launch: float = 1.0


class RowPredictor:
    """Turns a size into a Row for one workload item; `warnings` fills as sizes are predicted.

    `ranks` are those of the machine that take part, in their order; None: all. `in_network`: what is chosen from may
    add and copy in switches that can; `hosts_add`: in host CPUs.
    """

    def __init__(
        self,
        work: CollectiveSpec,
        topology: Topology,
        *,
        in_network: bool = False,
        hosts_add: bool = False,
        ranks: tuple[int, ...] | None = None,
    ) -> None:
        self.work, self.topology, self.ranks = work, topology, ranks
        self.n_ranks = topology.world_size if ranks is None else len(ranks)
        self._in_network, self._hosts_add = in_network, hosts_add
        self.warnings: list[str] = []
        self.provenance = ""
        self.use: Use | None = None  # of the network by the largest size, where links are simulated

    @property
    def bound(self) -> QuickBound:
        """What no schedule beats of what is chosen from, at any size."""
        from commsim.synthesis.bound import BoundQuestion, quick_bound

        root, acting = self.work.root or 0, (self._in_network, self._hosts_add)
        check_root(root, self.n_ranks)
        return quick_bound(self.topology, BoundQuestion(self.work.collective, root, self.ranks, *acting))

    def at_pace(self, pace: Pace) -> None:
        """From now on hops and launches take as much longer."""
        self.topology = replace(self.topology, link_latency=pace.latency * self.topology.link_latency)

    def row(self, size: int, time_s: float, band: tuple[float, float] | None = None) -> Row:
        """A Row of this item's type with its lower bound; the band's ends are factors on the time."""
        work = self.work
        bound_s = self.bound.seconds(size)
        return Row(
            size_bytes=size,
            count=size // (work.item_bytes * (1 if work.collective in WHOLE else self.n_ranks)),
            dtype=work.dtype,
            redop=work.redop if work.collective in REDUCING else "none",
            root=(work.root or 0) if work.collective in ROOTED else -1,
            time_s=time_s,
            algbw=size / time_s if time_s else 0.0,
            busbw=(size / time_s if time_s else 0.0) * busbw_factor(work.collective, self.n_ranks),
            lower_bound_s=bound_s,
            low_s=band and max(time_s * band[0], min(bound_s, time_s)),
            high_s=band and time_s * band[1],
            kernel_s=time_s,
        )

    def parts(self, size: int) -> dict[str, float]:
        """Seconds of each kind of physical cost at one size, the largest first; empty where none are told apart."""
        return {}

    def notes_on(self, rows: Sequence[Row]) -> list[str]:
        """What the user should know of these rows of its own beside `warnings`."""
        return []

    def lost(self, size: int) -> str:
        """What a size loses to the slowest node, where nodes are unlike by a draw and the library's model knows it."""
        return ""

    def doubt(self, size: int) -> None:
        """Adds to the warnings what a size, or its machine, is outside of."""

    def choose(self, size: int) -> tuple[str, ...]:
        """What runs at one size: the algorithm, and the protocol where there is one."""
        row = self(size)
        return (row.algorithm, row.protocol) if row.protocol else (row.algorithm,)

    def timed(self, size: int) -> tuple[float, str, str]:
        """The time of the row of a size, its algorithm and protocol, without the rest of it."""
        row = self(size)
        return row.time_s, row.algorithm, row.protocol

    def seconds(self, size: int) -> float:
        """The time of the row of a size alone."""
        return self.timed(size)[0]

    def __call__(self, size: int) -> Row:
        """The prediction for one size in bytes."""
        raise NotImplementedError
