"""Which shipped machine a log may be of: presets with its GPU, told apart by hosts, NICs and the network that it names.

Two presets that build the same nodes and network for the job of a log are one candidate: the log cannot tell them
apart, nor does its prediction. Measured times choose no machine: a broken one would be taken for a smaller one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from commsim.accuracy.gpu_name import gpu_name, is_gpu
from commsim.accuracy.log_facts import LogFacts
from commsim.errors import TopologyError
from commsim.topology.graph import Topology
from commsim.topology.kinds import Bool, LinkKind
from commsim.topology.presets import Preset, list_presets, load_preset
from commsim.units import parse_bandwidth

SERVER = 16
"""Most GPUs of a server (DGX-2): a preset of more is a rack of hosts that NVLink joins."""

_COMPARED_NODES = 64
"""Most nodes by which two networks are compared."""

_EXAMPLES = ("torus-", "testbed-", "ethernet-hosts", "loopback")
"""Presets that show a shape and stand for no machine with GPUs that one can have."""

# Host names that tell whose machine it is. AWS: "Amazon EC2 instance hostname types" (IP name); HPE Cray EX: "Component
# Names (xnames)" of the CSM documentation, and nid, the alias of a node there, whose network is Slingshot.
_HOSTS = (
    (re.compile(r"ip(-\d{1,3}){4}\b"), ("efa", "efa_v1"), "hosts have the names that AWS gives"),
    (re.compile(r"x\d{4,5}c\ds\d{1,2}b\dn\d$"), ("slingshot",), "hosts have the names of HPE Cray EX"),
    (re.compile(r"nid\d{5,6}$"), ("slingshot",), "hosts have the names of HPE Cray EX"),
)
_VERBS = ("infiniband", "roce")
_PLUGIN_NETWORKS = {
    "AWS Libfabric": ("efa", "efa_v1", "slingshot"),
    "gIB": ("roce",),
    "IB": _VERBS,
    "FasTrak": ("tcpx",),
}
"""Networks by the names under which NCCL's plugins give themselves out."""


@dataclass(frozen=True)
class LikelyMachine:
    """A preset with the nodes and GPUs of a job, `alike` those that build the same, and what speaks for it."""

    preset: Preset
    nodes: int
    gpus_per_node: int
    reasons: tuple[str, ...] = ()
    alike: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the preset."""
        return self.preset.name

    @property
    def whole(self) -> bool:
        """Whether every GPU of a node is used."""
        return self.gpus_per_node == self.preset.gpus_per_node

    @property
    def words(self) -> str:
        """The job on it: ``2 nodes of 8 x H100 SXM5``."""
        nodes = f"{self.nodes} node{'s' * (self.nodes > 1)} of {self.gpus_per_node} x {self.preset.gpu}"
        return nodes if self.whole else f"{nodes} ({self.gpus_per_node} of {self.preset.gpus_per_node} in use)"


def candidates(facts: LogFacts) -> list[LikelyMachine]:
    """Machines that a log may be of, the likeliest first; none where no preset has its GPU so."""
    fitting = [c for preset in list_presets() for c in _shapes(preset, facts)]
    groups = _groups(fitting)
    reasons: list[str] = []
    for reason, fits in _hints(facts):
        left = [group for group in groups if any(fits(c.preset) for c in group)]
        if left and len(left) < len(groups):
            groups, reasons = left, [*reasons, reason]
        if facts.nodes != 1:
            groups = [[c for c in group if not left or fits(c.preset)] for group in groups]
    if facts.nic_gbps is not None and not facts.one_node:
        groups = [g for g in groups if any(abs(c.preset.nic_bandwidth / _rate(facts.nic_gbps) - 1) < 0.01 for c in g)]
    merged = [_one(group, tuple(reasons)) for group in groups]
    return sorted(merged, key=lambda c: (not c.whole, -_nics_as_said(c, facts), c.name))


def closest(facts: LogFacts, most: int = 3) -> list[Preset]:
    """Presets with the log's chip, or of its family of names, for a refusal."""
    from difflib import SequenceMatcher

    name = gpu_name(facts.gpu)
    words = " ".join(name) if name else facts.gpu

    def far(preset: Preset) -> float:
        return -SequenceMatcher(None, words.lower(), preset.gpu.lower()).ratio()

    machines = [p for p in list_presets() if not p.name.startswith(_EXAMPLES)]
    return sorted(machines, key=lambda p: (far(p), p.name))[:most]


def fillers(facts: LogFacts) -> list[LikelyMachine]:
    """Machines that the ranks of a log without a GPU fill whole, in the order of their names."""
    fitting = [c for p in list_presets() if not p.name.startswith(_EXAMPLES) for c in _filled(p, facts)]
    return [_one(group, ()) for group in _groups([c for c in fitting if c.whole and c.nodes * c.gpus_per_node > 1])]


def shape_on(preset: Preset, facts: LogFacts) -> LikelyMachine | None:
    """The job of a log on a preset, whatever its GPU; None where the ranks do not fill nodes of it."""
    return next(_filled(preset, facts), None)


def _shapes(preset: Preset, facts: LogFacts) -> Iterator[LikelyMachine]:
    if preset.name.startswith(_EXAMPLES) or not is_gpu(facts.gpu, preset.gpu):
        return
    yield from _filled(preset, facts)


def _filled(preset: Preset, facts: LogFacts) -> Iterator[LikelyMachine]:
    """The job on a preset, if it fits: over racks evenly, or over the hosts that the log names."""
    full, ranks = preset.gpus_per_node, facts.ranks
    if ranks is None:
        return
    if full > SERVER:
        racks = -(-ranks // full)
        if ranks % racks == 0 and (racks == 1 or preset.nics_per_node):
            yield LikelyMachine(preset, racks, ranks // racks)
        return
    each, nodes = facts.ranks_per_node, facts.nodes
    if each is None or nodes is None:
        each = min(full, ranks)
        nodes = ranks // each
    if each <= full and each * nodes == ranks and (nodes == 1 or preset.nics_per_node):
        yield LikelyMachine(preset, nodes, each)


def _hints(facts: LogFacts) -> Iterator[tuple[str, Callable[[Preset], bool]]]:
    """What tells one preset from another, the surest first: a sentence, and which presets it fits."""

    def within(kinds: tuple[str, ...]) -> Callable[[Preset], bool]:
        return lambda preset: preset.network in kinds

    if facts.instance:
        family = facts.instance.lower().split(".")[0]
        yield f"NCCL's plugin runs on {facts.instance}", lambda preset: preset.name == f"aws-{family}"
    if facts.network and facts.network != "ethernet":  # TCP is what every machine falls back to
        kinds = ("efa", "efa_v1") if facts.network == "efa" else (facts.network,)
        yield f"NCCL says that it uses {facts.network}", within(kinds)
    if (name := facts.env.get("NCCL_NET", facts.net_plugin)) in _PLUGIN_NETWORKS:
        yield f"NCCL uses the network {name}", within(_PLUGIN_NETWORKS[name])
    if "NCCL_IB_HCA" in facts.env:
        yield "NCCL_IB_HCA is set", within(_VERBS)
    for pattern, kinds, reason in _HOSTS:
        if pattern.match(facts.host):
            yield reason, within(kinds)


def _rate(gbps: float) -> float:
    return parse_bandwidth(f"{gbps:g} Gb/s")


def _nics_as_said(candidate: LikelyMachine, facts: LogFacts) -> bool:
    return facts.nics is not None and facts.nics == candidate.preset.nics_per_node


def _groups(fitting: list[LikelyMachine]) -> list[list[LikelyMachine]]:
    """Those that build the same for this job, together."""
    built: dict[tuple[object, ...], list[LikelyMachine]] = {}
    for candidate in fitting:
        try:
            built.setdefault(_built(candidate), []).append(candidate)
        except TopologyError:
            continue  # such a job does not fit on it
    return list(built.values())


def _one(group: list[LikelyMachine], reasons: tuple[str, ...]) -> LikelyMachine:
    """A candidate for a group: within one node the one with fewest NICs, else the one with the shortest name."""
    first, *others = sorted(group, key=lambda c: (c.preset.nics_per_node * (c.nodes == 1), len(c.name), c.name))
    return replace(first, reasons=reasons, alike=tuple(sorted(c.name for c in others)))


def _built(candidate: LikelyMachine) -> tuple[object, ...]:
    """What a prediction of the job depends on: within one node whose GPUs NVLink joins, NVLink alone."""
    if candidate.nodes == 1:
        topology = load_preset(candidate.name, nodes=1, gpus_per_node=candidate.gpus_per_node, nics_per_node=0)
        if _joined_by_nvlink(topology):
            return (topology.has_nvswitch, *_links(topology, topology.link_kind == LinkKind.NVLINK))
        return _links(topology, topology.link_kind >= 0)
    topology = load_preset(
        candidate.name, nodes=min(candidate.nodes, _COMPARED_NODES), gpus_per_node=candidate.gpus_per_node
    )
    return (topology.network, topology.plugin, *_links(topology, topology.link_kind >= 0))


def _joined_by_nvlink(topology: Topology) -> bool:
    return all(topology.path_type(0, other) == "NVL" for other in range(1, topology.world_size))


def _links(topology: Topology, those: Bool) -> tuple[bytes, ...]:
    columns = (topology.link_src, topology.link_dst, topology.link_bandwidth, topology.link_latency)
    return tuple(column[those].tobytes() for column in columns)
