"""How far apart GPUs of a node may be to write to each other's memory; those farther apart meet in that of a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.nccl.environment import PATHS, path_level, whole
from commsim.topology.sockets import BROADWELL

if TYPE_CHECKING:
    from commsim.nccl.version import Version
    from commsim.topology.graph import Topology

INTEL_SINCE = (2, 9, 0)
"""Through an Intel host 2.8.3 lets GPUs of one socket write to each other, 2.20.3 no longer; taken as from here on."""

HOSTS_SINCE = (2, 23, 0)
"""From here on not through any host, but for two GPUs of an AMD one: 2.25.1 says so, and the notes of 2.23 quoted in
pytorch/pytorch#142179 name it as new."""


def peer_level(topology: Topology, version: Version, env: dict[str, str]) -> int:
    """The farthest path (index into `PATHS`) over which two GPUs of a node write to each other's memory.

    NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, else by host and version (src/graph/paths.cc, ncclTopoCheckP2p, of 2.8.3,
    2.20.3 and 2.25.1): up to 2.22 across sockets of AMD's, not through hosts of Intel's and Arm's. GPUs whose driver
    does not let them (`Gpu.peer_to_peer`) have NVLink at most. ScenarioError for a level that NCCL does not know.
    """
    if whole(env, "NCCL_P2P_DISABLE") == 1:
        return PATHS.index("LOC")
    level = path_level(env, "NCCL_P2P_LEVEL", _default(topology, version))
    return level if topology.gpu.peer_to_peer else min(level, PATHS.index("NVB"))


def _default(topology: Topology, version: Version) -> str:
    cpu = topology.cpu
    if cpu.arch == "x86_64" and cpu.vendor == "amd":
        return "SYS" if version < HOSTS_SINCE or topology.ranks_per_node <= 2 else "PXB"
    if cpu.arch == "x86_64" and cpu.vendor == "intel" and version < INTEL_SINCE:
        return "PXB" if BROADWELL.search(cpu.model) else "PHB"
    near = cpu.arch == "arm64" or cpu.vendor in ("intel", "zhaoxin")
    return "PXB" if version >= HOSTS_SINCE or near else "SYS"
