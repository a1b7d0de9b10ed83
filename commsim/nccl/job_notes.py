"""What the user of a job should know before its first call: settings without effect, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator

from commsim.nccl.environment import BUFFERS, MEMORY_ENV, OF_REGISTERED, unheeded, whole
from commsim.nccl.machine import GDR, MEMORY, far_nics, node_rate
from commsim.nccl.nodes import Kind, Nodes
from commsim.nccl.parameters import COPY_LIMIT, MATCH_MODE, MATCHED_BY_PROCESSOR
from commsim.nccl.search import SIMPLE_ORDER_GBPS
from commsim.nccl.version import ASSUMED, NEWEST, OLDEST, Version, format_version
from commsim.topology.graph import Topology

TUNER_PLUGIN = "NCCL_TUNER_PLUGIN"

KNOWN_SINCE: dict[str, Version] = {"hopper": (2, 15, 1), "blackwell": (2, 25, 1)}
"""Releases whose build and tables first name a generation: sm_90, sm_100 (makefiles/common.mk, src/graph/tuning.cc)."""

NO_VERSION = f"no NCCL version given: {format_version(ASSUMED)} is assumed"
"""The note of a job that states no version."""


def job_notes(
    topology: Topology, stated: Version | None, env: dict[str, str], nodes: Nodes, registered: str
) -> Iterator[str]:
    """Notes on the settings of a job on some nodes: the version it states, its variables, its registered buffers."""
    system, version = nodes.system, stated or ASSUMED
    if stated is None:
        yield NO_VERSION
    elif not OLDEST <= version <= (*NEWEST[:2], 999):
        yield (
            f"NCCL {format_version(version)} is outside the versions modelled "
            f"({format_version(OLDEST)} to {format_version(NEWEST)}): the nearest one is used"
        )
    for generation in dict.fromkeys(group.gpu.generation for group in topology.groups):
        since = KNOWN_SINCE.get(generation, OLDEST)
        if stated is not None and version < since:
            yield (
                f"NCCL {format_version(version)} is older than {generation.capitalize()}, for which NCCL is built "
                f"from {format_version(since)} on: the times are guesses"
            )
    if env.get("NCCL_COLLNET_ENABLE") == "1" and not system.collnet:
        yield (
            "NCCL_COLLNET_ENABLE=1 has no effect: it needs several nodes of up to 8 GPUs and a fabric whose "
            "switches reduce (in_network_reduction: true)"
        )
    if TUNER_PLUGIN in env:
        from commsim.nccl.tuner_ofi import why_not

        if reason := why_not(topology, env):
            yield f"{TUNER_PLUGIN} has no effect: {reason}"
    yield from unheeded(env)
    if COPY_LIMIT in env and nodes.kinds[0].parameters.network.name != MATCHED_BY_PROCESSOR:
        yield (
            f"{COPY_LIMIT} has no effect: it needs several nodes on Slingshot whose messages a processor matches "
            f"({MATCH_MODE}: software)"
        )
    for name in BUFFERS:
        if whole(env, name) == 0:
            yield f"{name}=0 asks for buffers of no bytes, by which nothing could be sent: the default is taken"
    if registered == "none":
        for name in sorted(name for name in env if name in OF_REGISTERED):
            times = " on times" if name in MEMORY_ENV else ""
            yield f"{name} has no effect{times} without library.registered: buffer or window"
    if system.nodes > 1 and system.tree.inter_gbps <= SIMPLE_ORDER_GBPS:
        yield (
            f"NCCL {format_version(version)} finds no trees on these nodes (its log: could not find a path "
            "for pattern 1) and has one channel, rings too; another version may find them"
        )
    staged = any(far_nics(kind.topology, env) for kind in nodes.kinds)
    if staged and GDR in env:
        yield (
            f"{GDR}={env[GDR]} keeps the NICs from the memory of the GPUs: data cross PCIe twice, "
            "through the host's memory, whose own rate is not in the times"
        )
    elif staged and any(_by_memory(kind) for kind in nodes.kinds):
        yield (
            "GPUs and NICs meet in the root of the host, where NCCL leaves GPUDirect RDMA off: data pass the host's "
            f"memory ({GDR}: SYS in library.env turns it on)"
        )


def _by_memory(kind: Kind) -> bool:
    """Whether the memory of the host is what limits the NICs of nodes that no fault keeps from GPUDirect RDMA."""
    return kind.topology.node_gdr is None and node_rate(kind.machine, kind.parameters)[1] == MEMORY
