"""What network plugins of clouds set in NCCL's environment where the job does not.

* aws-ofi-nccl sets NCCL_PROTO=simple from 1.6.0 on p3dn, p4d and p4de (src/platform-aws.c); with H100, H200 and B200,
  on one node too, it sets the chunks of NVLSTree and, from 1.11.0 on, of NVLS, and from 1.16.0 the buffer of P5 and P6
  and its tuner. Its source of 2026 sets the buffer of p4d as well; a curve of that year moves as with 4 MiB, so it is
  left out, as are B300 and GB200, of which there is no curve over EFA;
* gIB's set_nccl_env.sh sets the chunk of NVLS; the path that it allows NICs is one of its own PCIe tree, which no
  preset describes;
* with GPUDirect-TCPXO NCCL does not start where the variables of its nccl-env-profile.sh are others (the guest
  configuration's POLICY_ENFORCED): of the protocols Simple, in later profiles LL128 as well;
* GPUDirect-TCPX: those of GKE's nccl-config.yaml for A3 High.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from datetime import date

from commsim.nccl.parameters import MATCH_MODE, network_of
from commsim.nccl.version import NEWEST, Version
from commsim.topology.graph import Topology

PLUGINS = {
    "aws-ofi-nccl": "aws-ofi-nccl",
    "gib": "gIB",
    "tcpxo": "GPUDirect-TCPXO",
    "tcpx": "GPUDirect-TCPX",
}
"""The plugins by the word for ``fabric.plugin`` of a machine, and their own names."""

_EFA_V1 = re.compile(r"\b[VA]100\b")
_EFA_V2 = re.compile(r"\b(?:H[12]00|B200)\b")
_SIMPLE_SINCE = date(2023, 3, 31)  # aws-ofi-nccl 1.6.0, the first with src/platform-aws.c, was tested with NCCL 2.17.1
_CHUNK = {"NCCL_NVLS_CHUNKSIZE": "524288"}
_BUFFER = {"NCCL_BUFFSIZE": "8388608"}
_TUNER = {"NCCL_TUNER_PLUGIN": "libnccl-ofi-tuner.so"}
_EFA_V2_SETS = (
    # An output of aws-ofi-nccl of that month says so, and nothing of the next one.
    (date(2024, 4, 1), {"NCCL_NVLSTREE_MAX_CHUNKSIZE": "524288"}),
    (date(2024, 8, 1), _CHUNK),  # 1.11.0, the first output with both
    (date(2025, 6, 1), _BUFFER | _TUNER),  # 1.16.0, whose notes say so
)
_TUNER_NODES = 3  # with fewer the tuner has no say (`commsim.nccl.tuner_ofi`)
_TUNERS_SINCE: Version = (2, 19, 0)  # the first NCCL that loads a tuner plugin
_LL128_SINCE = date(2025, 7, 1)  # between a user's curve of April without and Google's one profile of that year
_FEW_NICS = {"NCCL_CROSS_NIC": "0", "NCCL_NET_GDR_LEVEL": "PIX"}


def variables(plugin: str, gpu: str, nodes: int, day: date | None = None) -> dict[str, str]:
    """What a plugin (`PLUGINS`) of a day sets on nodes with a GPU of that model; None: today's plugin."""
    if plugin == "aws-ofi-nccl" and _EFA_V2.search(gpu):
        its = {k: v for since, its in _EFA_V2_SETS if _from(since, day) for k, v in its.items()}
        return {k: v for k, v in its.items() if nodes >= _TUNER_NODES or k not in _TUNER}
    if plugin == "gib":
        return _CHUNK
    if nodes == 1:  # what follows is set when a connection to another node is made, or by a job over nodes
        return {}
    if plugin == "aws-ofi-nccl" and _EFA_V1.search(gpu) and _from(_SIMPLE_SINCE, day):
        return {"NCCL_PROTO": "Simple"}
    if plugin == "tcpxo":
        choice = {"NCCL_PROTO": "Simple,LL128"}
        if not _from(_LL128_SINCE, day):
            choice = {"NCCL_ALGO": "Ring,Tree", "NCCL_PROTO": "Simple"}
        return choice | {"NCCL_MIN_NCHANNELS": "4", "NCCL_NVLS_ENABLE": "0"} | _BUFFER | _FEW_NICS
    if plugin == "tcpx":
        channels = {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "8"}
        return {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"} | channels | _FEW_NICS
    return {}


def of_machine(topology: Topology, version: Version = NEWEST) -> dict[str, str]:
    """What the plugin of a machine (its ``fabric.plugin``) sets for NCCL of a version; its tuner where it has a say."""
    if topology.plugin not in PLUGINS or len({(g.gpu, g.ranks_per_node, g.nics_per_node) for g in topology.groups}) > 1:
        return {}
    from commsim.nccl.tuner_ofi import why_not  # of which most machines have none

    env = variables(topology.plugin, topology.gpu.model, topology.nodes)
    if version < _TUNERS_SINCE or why_not(topology, env):
        return {name: value for name, value in env.items() if name not in _TUNER}
    return env


def with_plugin(topology: Topology, version: Version, env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job on a machine: what it sets itself, and what the machine's plugin sets besides."""
    return of_machine(topology, version) | dict(env)


def for_groups(topology: Topology, version: Version, env: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """The same for groups of a job's ranks, also those inside a node, and `plugin_note`; each asks its own tuner."""
    others = {**_TUNER, **env}  # named here, so that it does not count as set by the machine
    set_by = {name: value for name, value in of_machine(topology, version).items() if name not in others}
    if topology.network == "slingshot":  # who matches messages is a matter of the whole job
        by_nic = network_of(topology, env) == "slingshot"
        others[MATCH_MODE] = set_by[MATCH_MODE] = "hardware" if by_nic else "software"
    return dict(env) | set_by, plugin_note(topology, version, others)


def plugin_note(topology: Topology, version: Version = NEWEST, env: Container[str] = ()) -> str | None:
    """A line on what the machine's plugin sets besides the job's own variables; None where it sets nothing."""
    added = [f"{name}={value}" for name, value in of_machine(topology, version).items() if name not in env]
    if not added:
        return None
    return f"{PLUGINS[topology.plugin]} sets {', '.join(added)} (fabric.plugin: none leaves this out)"


def _from(since: date, day: date | None) -> bool:
    return day is None or day >= since
