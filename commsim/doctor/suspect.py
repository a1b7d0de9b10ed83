"""What may be slow: every host's network, each of its cards and GPU links, the uplinks of every leaf switch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from commsim.doctor.cluster import HostCluster
from commsim.topology.kinds import Int64


class PartKind(IntEnum):
    """Kinds of suspects."""

    NODE = 0  # all cards of a host
    NIC = 1  # one card, its cable, its port
    LINK = 2  # the NVLinks of one GPU, or the GPU itself
    LEAF = 3  # the uplinks of a leaf switch


@dataclass(frozen=True, eq=False)
class Suspects:
    """All suspects of a cluster as columns (E,): `place`, `host` (-1: a leaf switch has none), `part`, `leaf`.

    `part`: which card, which GPU, which rail of a leaf switch (-1: all); `leaf`: which leaf switch, else -1.
    """

    cluster: HostCluster
    place: Int64
    host: Int64
    part: Int64
    leaf: Int64

    def name(self, at: int) -> str:
        """What a person would look for."""
        host = self.cluster.hosts[self.host[at]] if self.host[at] >= 0 else ""
        part = int(self.part[at])
        match PartKind(int(self.place[at])):
            case PartKind.NODE:
                return f"{host}: its network" if self.cluster.nics > 1 else f"{host}: its network card, cable or port"
            case PartKind.NIC:
                return f"{host}: network card {part}, its cable or port"
            case PartKind.LINK:
                return f"{host}: GPU {part} or its NVLinks"
            case _:
                rail = f" of rail {part}" if part >= 0 else ""
                return f"leaf switch {self.leaf[at]}{rail}: its uplinks"


def suspects_of(cluster: HostCluster) -> Suspects:
    """Every host; cards and GPU links where a host has several; leaf switches where there are several."""
    hosts = np.arange(len(cluster.hosts))
    nics = cluster.nics if cluster.nics > 1 else 0
    links = cluster.gpus if cluster.gpus > 1 else 0
    leaves = np.arange(cluster.leaves) if cluster.leaves > 1 else np.zeros(0, np.int64)
    rails = np.arange(cluster.nics) if cluster.rails else np.array([-1])
    counts = [hosts.size, hosts.size * nics, hosts.size * links, leaves.size * rails.size]
    nothing = np.full(counts[3], -1)
    host = np.concatenate([hosts, np.repeat(hosts, nics), np.repeat(hosts, links), nothing])
    part = [np.full(hosts.size, -1), np.tile(np.arange(nics), hosts.size), np.tile(np.arange(links), hosts.size)]
    return Suspects(
        cluster,
        place=np.repeat([int(place) for place in PartKind], counts),
        host=host,
        part=np.concatenate([*part, np.tile(rails, leaves.size)]),
        leaf=np.concatenate([np.full(sum(counts[:3]), -1), np.repeat(leaves, rails.size)]),
    )
