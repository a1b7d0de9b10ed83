"""Seconds of a collective on groups of ranks: the one way in which a training step asks for communication time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import numpy.typing as npt

from commsim.engine.sharing import LinkLoad
from commsim.gloo.predict import GlooPredictor
from commsim.topology.kinds import Float64

if TYPE_CHECKING:
    from commsim.gloo.parameters import GlooParameters
    from commsim.nccl.memory import CommunicatorMemory
    from commsim.topology.graph import Topology

Ranks = npt.NDArray[np.int64]

CommTime = Callable[[str, float, Ranks], float]
"""(collective, nbytes, groups) -> seconds of one call that somebody waits for; nbytes as in nccl-tests.

Groups are the ranks of one (n,), or of several that call at the same time (groups, n): until the last has ended.
"""


HeldSms = Callable[[str, float, Ranks], int]
"""(collective, nbytes, groups) -> SMs of a GPU that the kernel of one call holds; as of `CommTime`."""

SEND = "send"
"""What `GroupCalls` call a send_recv of a pair of ranks in one direction, from the first to the second."""

_SMALL = 4096
"""Bytes for each rank of the gloo call whose messages show where those of a larger one go."""


class GroupCalls(Protocol):
    """What a library's calls on groups of a machine take, a `CommTime`, and what they put on its links."""

    warnings: list[str]

    def __call__(self, collective: str, nbytes: float, ranks: Ranks) -> float:
        """Seconds of one call; 0 for groups of one."""
        ...

    def load(self, collective: str, nbytes: float, ranks: Ranks) -> LinkLoad:
        """What the call puts on the links of the machine, all groups together."""
        ...

    def communicators(self, rank: int) -> list[CommunicatorMemory]:
        """The memory of the communicators of a rank that have been called."""
        ...

    def sms(self, collective: str, nbytes: float, ranks: Ranks) -> int:
        """SMs of each GPU that the kernel of one call holds."""
        ...

    def fresh(self) -> GroupCalls:
        """The same, with what is known of times, before any call."""
        ...


class OffGpu:
    """The part of `GroupCalls` of calls that hold nothing of a GPU, and are not counted."""

    def communicators(self, rank: int) -> list[CommunicatorMemory]:
        """None: no buffers lie on a GPU."""
        del rank
        return []

    def sms(self, collective: str, nbytes: float, ranks: Ranks) -> int:
        """None: no kernel of theirs runs."""
        del collective, nbytes, ranks
        return 0

    def fresh(self) -> Self:
        """The same."""
        return self


class GlooGroups(OffGpu):
    """`GroupCalls` by gloo's model: a group is a job on as many nodes, with as many GPUs of each.

    ``part(nodes, gpus_per_node)`` builds that part of the machine; a group that has a part of a node's GPUs has that
    part of its NICs, since the groups of the other GPUs use theirs at the same time. ``one_host``: all nodes share one
    computer's cores.
    """

    def __init__(
        self,
        topology: Topology,
        part: Callable[[int, int], Topology],
        parameters: GlooParameters | None = None,
        *,
        one_host: bool = False,
    ) -> None:
        self._topology, self._part, self._parameters, self._one_host = topology, part, parameters, one_host
        self._known: dict[tuple[str, int, int, int], float] = {}
        self._predictors: dict[tuple[int, int], GlooPredictor] = {}
        self.warnings: list[str] = []

    def __call__(self, collective: str, nbytes: float, ranks: Ranks) -> float:
        """As of `GroupCalls`."""
        first = np.atleast_2d(ranks)[0]
        if first.size < 2 or nbytes <= 0:
            return 0.0
        group = shape(first, self._topology.ranks_per_node)
        key = (collective, max(1, round(nbytes)), *group)
        if key not in self._known:
            if group not in self._predictors:
                part = self._part(*group)
                self._predictors[group] = GlooPredictor(part, self._parameters, one_host=self._one_host, mode="single")
            self._known[key] = self._predictors[group].predict(collective, key[1]).time_s
        return self._known[key]

    def load(self, collective: str, nbytes: float, ranks: Ranks) -> LinkLoad:
        """As of `GroupCalls`, by the messages of a small call."""
        from commsim.gloo.schedules import gloo_schedule

        groups = np.atleast_2d(ranks)
        if collective == SEND:
            put, lines = on_routes(self._topology, groups[:, 0], groups[:, 1], np.full(len(groups), nbytes))
        else:
            small = _SMALL * groups.shape[1]
            schedule = gloo_schedule(collective, groups.shape[1], small)
            moved = schedule.src != schedule.dst
            src, dst = groups[:, schedule.src[moved]].ravel(), groups[:, schedule.dst[moved]].ravel()
            each = np.tile(schedule.payload_bytes()[moved] * (nbytes / small), len(groups))
            put, lines = on_routes(self._topology, src, dst, each)
        rate, share = self._topology.link_bandwidth, self._topology.link_share
        if share is not None:  # faults have no effect here
            rate = np.divide(rate, share, out=rate.copy(), where=share > 0)
        return LinkLoad.of(put, lines, rate)


def on_routes(
    topology: Topology, src: Ranks, dst: Ranks, nbytes: Float64
) -> tuple[Float64, Float64]:  # fmt: skip
    """What messages put on the links of their routes: bytes, connections, both (links,); those of a pair are one."""
    pairs, index = np.unique(np.stack([src, dst], axis=1), axis=0, return_inverse=True)
    each = np.bincount(index.reshape(-1), nbytes, len(pairs))
    link, pair = topology.routes(pairs[:, 0], pairs[:, 1]).along()
    size = topology.link_bandwidth.size
    return np.bincount(link, each[pair], size).astype(np.float64), np.bincount(link, minlength=size).astype(np.float64)


def shape(ranks: Ranks, ranks_per_node: int) -> tuple[int, int]:
    """(nodes, ranks of the group on the node that has most of them)."""
    _, counts = np.unique(np.asarray(ranks) // ranks_per_node, return_counts=True)
    return int(counts.size), int(counts.max())
