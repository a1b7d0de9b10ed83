"""The healthy time of a test, and how much of each kind of part it needs: from NCCL's predictor, or the least of it.

A cluster of 1,024 nodes has 17,000 suspects, too many to simulate each for each test. So a table is derived for each
power of two of nodes: one of them at a quarter of its rate makes a call so many times as slow, and a quarter of that is
the load, the share of the healthy rate that a healthy call takes. What any share does then is max(1, load / share).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import exp, log, log2
from typing import TYPE_CHECKING, Protocol

import numpy as np

from commsim.collectives.semantics import busbw_factor
from commsim.doctor.cluster import HostCluster
from commsim.doctor.group_test import RingShape
from commsim.doctor.suspect import PartKind
from commsim.topology.kinds import Float64
from commsim.units import GIB, GIGA

if TYPE_CHECKING:
    from commsim.topology.graph import Topology
    from commsim.topology.spec import FaultSpec

SHARE = 0.25
"""The share at which tables are derived: a fault that every test feels that uses the part."""

_EXACT = 32  # nodes up to which a healthy time is predicted as it is; above, between powers of two

RING = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
"""What tests of our choice run with, so that all of them use the same cards in the same way."""


class Forward(Protocol):
    """What a healthy machine does."""

    scope_spread: float
    """Standard deviation of ln(measured / expected) that all tests of a scope share on a healthy machine."""

    shape_spread: float
    """The same of what all tests of a shape share beside it."""

    knows_machine: bool
    """Whether times are a machine's, not only those of tests among themselves."""

    def scale(self, shape: RingShape) -> tuple[object, ...]:
        """What the tests have in common that share `scope_spread`."""

    def expected_s(self, shape: RingShape) -> float:
        """Seconds of a healthy test."""

    def full(self, shape: RingShape) -> Float64:
        """Loads of a node, a card, a GPU's link and a leaf that take part, by `PartKind`."""


@dataclass
class Unknown:
    """No machine: healthy tests of a scope, collective and size have one bus bandwidth, and each part the least."""

    scope_spread: float = 3.0  # a factor of 20 either way: the first tests say it
    shape_spread: float = 0.15  # bus bandwidths of two and of eight GPUs of an HGX H100 differ by 18 %
    knows_machine: bool = False

    def scale(self, shape: RingShape) -> tuple[object, ...]:
        """Scope, collective and size; from 1 GiB on times are those of the bytes (`ring_size`)."""
        return shape.scope, shape.collective, min(shape.nbytes, int(GIB))

    def expected_s(self, shape: RingShape) -> float:
        """Seconds at a bus bandwidth of 1 GB/s."""
        ranks = ranks_together(shape)
        return shape.nbytes * (busbw_factor(shape.collective, ranks) if ranks > 1 else 1.0) / GIGA

    def full(self, shape: RingShape) -> Float64:
        """NVLink inside hosts, cards else."""
        inside = shape.scope == "inside" or shape.hosts == 1
        return np.array([0.0, 0.0, 1.0, 0.0] if inside else [1.0, 1.0, 0.0, 1.0])


@dataclass
class Predicted:
    """A machine that `commsim` describes, a preset."""

    machine: str
    nics: int
    scope_spread: float = 0.1  # most healthy machines are nearer to their prediction (docs/accuracy-verdicts.md)
    shape_spread: float = 0.05
    knows_machine: bool = True
    _times: dict[RingShape, float] = field(default_factory=dict)
    _full: dict[RingShape, Float64] = field(default_factory=dict)

    def expected_s(self, shape: RingShape) -> float:
        """Seconds as predicted; of many hosts, by the bus bandwidths of the powers of two around."""
        if shape.scope == "inside":
            shape = replace(shape, hosts=1)
        if shape.hosts <= _EXACT or (shape.hosts & (shape.hosts - 1)) == 0:
            return self._at(shape)
        low = 1 << (shape.hosts.bit_length() - 1)
        ends = []
        for hosts in (low, 2 * low):
            end = replace(shape, hosts=hosts)
            ends.append(log(self._at(end) / busbw_factor(shape.collective, ranks_together(end))))
        part = log2(shape.hosts / low)
        return exp(ends[0] * (1 - part) + ends[1] * part) * busbw_factor(shape.collective, ranks_together(shape))

    def scale(self, shape: RingShape) -> tuple[object, ...]:
        """The scope: collectives and sizes are predicted."""
        return (shape.scope,)

    def _at(self, shape: RingShape) -> float:
        if shape not in self._times:
            # Rings across hosts are alike, and those that share a card take turns.
            turns = max(1, shape.gpus // self.nics) if shape.scope == "across" else 1
            alike = replace(shape, gpus=1) if shape.scope == "across" else shape
            self._times[shape] = turns * ring_time(self._topology(shape.hosts), alike)
        return self._times[shape]

    def full(self, shape: RingShape) -> Float64:
        """From a power of two of hosts with one at `SHARE`; of rings across hosts, from the first."""
        shape = replace(shape, hosts=1) if shape.scope == "inside" else shape
        hosts = 1 << (shape.hosts.bit_length() - 1)
        nbytes = shape.nbytes if shape.hosts <= _EXACT else max(1 << 20, shape.nbytes // shape.hosts * hosts)
        gpus = 1 if shape.scope == "across" else shape.gpus
        few = RingShape(shape.scope, hosts, gpus, shape.collective, nbytes >> 20 << 20)
        if few not in self._full:
            from commsim.topology.faults import degraded

            topology = self._topology(max(hosts, 2))
            healthy = ring_time(topology, few)
            loads = [0.0] * len(PartKind)
            for kind, fault in faults_of(topology, 0).items():
                slower = ring_time(degraded(topology, [fault]), few) / healthy
                loads[kind] = SHARE * slower if slower > 1.0 + 1e-9 else 0.0
            loads[PartKind.LEAF] = loads[PartKind.NODE]
            self._full[few] = np.array(loads)
        return self._full[few]

    def _topology(self, nodes: int) -> Topology:
        from commsim.topology.presets import load_preset

        return load_preset(self.machine, nodes=nodes)


def ranks_together(shape: RingShape) -> int:
    """Ranks of a communicator of a test."""
    return {"across": shape.hosts, "inside": shape.gpus, "all": shape.hosts * shape.gpus}[shape.scope]


def faults_of(topology: Topology, node: int) -> dict[PartKind, FaultSpec]:
    """A fault of each kind at a node, at `SHARE` of the rate: all cards, the first card, the first GPU's link."""
    from commsim.topology.kinds import LinkKind
    from commsim.topology.spec import FaultSpec

    gpu = topology.rank_vertex[int(topology.node_first_rank[node])]
    near = np.flatnonzero((topology.link_src == gpu) & (topology.link_kind == LinkKind.NVLINK))
    faults = {
        PartKind.NODE: FaultSpec(node=node, bandwidth_factor=SHARE),
        PartKind.NIC: FaultSpec(nic=(node, 0), bandwidth_factor=SHARE),
    }
    if near.size:
        ends = (topology.vertex_name[int(gpu)], topology.vertex_name[int(topology.link_dst[near[0]])])
        faults[PartKind.LINK] = FaultSpec(link=ends, bandwidth_factor=SHARE)
    return faults


def ring_time(topology: Topology, shape: RingShape, nodes: tuple[int, ...] = ()) -> float:
    """Seconds of the slowest communicator of a test on nodes of a topology (by default the first)."""
    from commsim.nccl.predict import Options, Predictor

    first = topology.node_first_rank
    of = [int(first[node]) for node in nodes or range(shape.hosts)]
    gpus = range(shape.gpus)
    groups: list[list[int]]
    if shape.scope == "across":
        each = topology.ranks_per_node
        groups = [[at + (gpu + shape.shift * (i == 1)) % each for i, at in enumerate(of)] for gpu in gpus]
    elif shape.scope == "inside":
        groups = [[at + gpu for gpu in gpus] for at in of]
    else:
        groups = [[at + gpu for at in of for gpu in gpus]]
    options = Options(env=dict(RING) if shape.collective == "all_reduce" else {})
    seconds = [Predictor(topology, options, ranks=group).predict(shape.collective, shape.nbytes) for group in groups]
    return max(each.time_s for each in seconds)


def forward_of(machine: str | None, cluster: HostCluster) -> Forward:
    """NCCL's predictor on a described machine; without one, that every part is as much as is needed.

    TopologyError for a machine that is not there, or is another one than the cluster's hosts.
    """
    if machine is None:
        return Unknown()
    from commsim.errors import TopologyError
    from commsim.topology.presets import load_preset

    topology = load_preset(machine, nodes=2)
    if (topology.ranks_per_node, topology.nics_per_node) != (cluster.gpus, cluster.nics):
        raise TopologyError(
            f"{machine} has {topology.ranks_per_node} GPUs and {topology.nics_per_node} cards per node, "
            f"the hosts {cluster.gpus} and {cluster.nics}; set gpus and nics"
        )
    return Predicted(machine, topology.nics_per_node)
