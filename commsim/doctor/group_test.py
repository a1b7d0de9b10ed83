"""A test of some hosts at once: as slow as the slowest of what it uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from commsim.doctor.cluster import HostCluster
from commsim.doctor.suspect import PartKind, Suspects
from commsim.topology.kinds import Float64, Int64
from commsim.units import GIB

Scope = Literal["across", "inside", "all"]
"""``across``: a ring for each place of a GPU, one GPU of every host in each, so that no NVLink is used; ``inside``: a
ring in every host; ``all``: one ring of all."""

SPLIT = {"across": "MOD", "inside": "DIV"}


@dataclass(frozen=True)
class RingShape:
    """What sets the healthy time of a test."""

    scope: Scope
    hosts: int
    gpus: int
    collective: str
    nbytes: int
    shift: int = 0


@dataclass(frozen=True)
class GroupTest:
    """An all_reduce, or another collective, of some `hosts` (numbers, in the order of the ring) with some `gpus` each.

    `shift`: of two hosts, how many places further on the GPUs of the second are, so that its card i meets another one.
    """

    scope: Scope
    hosts: tuple[int, ...]
    gpus: tuple[int, ...]
    nbytes: int
    collective: str = "all_reduce"
    shift: int = 0

    def gpus_of(self, place: int, of: int) -> tuple[int, ...]:
        """The GPUs of the host at a place of the ring, of hosts of `of` GPUs, in the order of their rings."""
        return tuple((gpu + self.shift) % of for gpu in self.gpus) if place == 1 else self.gpus

    @property
    def shape(self) -> RingShape:
        """What sets its healthy time."""
        return RingShape(self.scope, len(self.hosts), len(self.gpus), self.collective, self.nbytes, self.shift)

    @property
    def crosses(self) -> bool:
        """Whether it uses the network."""
        return self.scope != "inside" and len(self.hosts) > 1

    @property
    def split(self) -> str:
        """``NCCL_TESTS_SPLIT`` of nccl-tests; empty for one communicator of all ranks."""
        if self.scope == "all" or len(self.gpus) == 1 or len(self.hosts) == 1:
            return ""
        return f"{SPLIT[self.scope]} {len(self.gpus)}"


def ring_size(hosts: int) -> int:
    """Bytes of an all_reduce whose time is that of its bytes: 1 GiB, from 128 hosts on 8 MiB for each."""
    return max(int(GIB), hosts << 23)


def streams_out(cluster: HostCluster, hosts: tuple[int, ...]) -> Int64:
    """How many neighbours of a ring of hosts leave each leaf, (leaves,)."""
    leaf = cluster.leaf[list(hosts)]
    onward = np.roll(leaf, -1)
    return np.bincount(leaf[leaf != onward], minlength=cluster.leaves)


def loads(test: GroupTest, suspects: Suspects, full: Float64, oversubscription: float = 1.0) -> Float64:
    """The share of each suspect's healthy rate that a healthy run of the test takes, (E,).

    A suspect at a share s of its rate makes the test load / s times as slow, where that is above 1. `full` (places,):
    the loads of a node, a card and a GPU's link that take part. The uplinks of a leaf carry as many streams of a ring
    as neighbours of it are under different leaves, and are made for one of every host.
    """
    cluster = suspects.cluster
    hosts = len(cluster.hosts)
    # Row and column -1 are those of leaves, which have no host, and of nodes, which have no part.
    gpus = np.zeros((hosts + 1, cluster.gpus + 1), bool)
    cards = np.zeros((hosts + 1, cluster.nics + 1), bool)
    for place, host in enumerate(test.hosts if test.shift else test.hosts[:1]):
        rows = [host] if test.shift else list(test.hosts)
        own = list(test.gpus_of(place, cluster.gpus))
        gpus[np.ix_(rows, own)] = True
        cards[np.ix_(rows, [*(cluster.nic_of(gpu) for gpu in own), -1])] = True
    of_card = (suspects.place == PartKind.NODE) | (suspects.place == PartKind.NIC)
    used = np.where(of_card, cards[suspects.host, np.where(of_card, suspects.part, 0)], False)
    link = suspects.place == PartKind.LINK
    used[link] = gpus[suspects.host[link], suspects.part[link]]
    load = np.where(used, full[suspects.place], 0.0)
    if not test.crosses:
        load[suspects.place != PartKind.LINK] = 0.0
        return load
    at = np.flatnonzero(suspects.place == PartKind.LEAF)
    if at.size:
        share = streams_out(cluster, test.hosts) / cluster.leaf_hosts * oversubscription
        rail = np.atleast_1d(cards[:-1].any(0))[suspects.part[at]]
        load[at] = np.where(rail, share[suspects.leaf[at]] * full[PartKind.NODE], 0.0)
    return load
