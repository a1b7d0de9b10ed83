"""How far apart GPUs of a node may be to write to each other's memory; those farther apart meet in that of a host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commsim.nccl.environment import PATHS, path_level, whole

if TYPE_CHECKING:
    from commsim.nccl.version import Version
    from commsim.topology.graph import Topology

LEVEL_SINCE = (2, 9, 0)
"""Through an Intel host 2.8.3 lets GPUs of one socket write to each other, 2.20.3 no longer; taken as from here on."""

_BROADWELL = re.compile(r"broadwell|E[57]-\d+ ?v4", re.I)


def peer_level(topology: Topology, version: Version, env: dict[str, str]) -> int:
    """The farthest path (index into `PATHS`) over which two GPUs of a node write to each other's memory.

    NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, else by the host: across sockets of AMD's, not through hosts of Intel's and
    Arm's (src/graph/paths.cc, ncclTopoCheckP2p). GPUs whose driver does not let them (`Gpu.peer_to_peer`) have NVLink
    at most. ScenarioError for a level that NCCL does not know.
    """
    if whole(env, "NCCL_P2P_DISABLE") == 1:
        return PATHS.index("LOC")
    level = path_level(env, "NCCL_P2P_LEVEL", _default(topology, version))
    return level if topology.gpu.peer_to_peer else min(level, PATHS.index("NVB"))


def _default(topology: Topology, version: Version) -> str:
    cpu = topology.cpu
    if cpu.arch == "arm64":
        return "PXB"
    if cpu.vendor != "intel" or cpu.arch != "x86_64":
        return "SYS"
    return "PHB" if version < LEVEL_SINCE and not _BROADWELL.search(cpu.model) else "PXB"
