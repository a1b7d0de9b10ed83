"""Several NCCL ranks on one GPU, and NCCL's own log of its choices.

NCCL refuses two ranks on one device ("Duplicate GPU detected") unless told otherwise. Until 2.30.2 each rank can claim
a host of its own (NCCL_HOSTID replaces the host's hash, src/misc/utils.cc), which leaves the socket transport; from
2.30.3 NCCL_MULTI_RANK_GPU_ENABLE allows it within one host (NCCL's documentation of its environment, marked
experimental, with two ranks per GPU by default and fewer CTAs for more).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commsim.files import write_atomically

_MULTI_RANK_SINCE = (2, 30, 3)
_CTAS = 8  # of one GPU, shared by its ranks: what public reports use

DEBUG_LOG, CHOICES = "nccl-debug.log", "nccl_choices.json"

MEANING = (
    "several ranks share a GPU: choices, step counts and bytes are NCCL's own; times are those of {how} and of ranks "
    "that take turns on the GPU, and say nothing about links between GPUs"
)


def sharing(ranks_per_gpu: int, rank: int, version: tuple[int, ...], env: Mapping[str, str]) -> dict[str, str]:
    """The variables that let a rank share its GPU, for an NCCL version; those that `env` sets stay as they are."""
    if ranks_per_gpu == 1:
        return {}
    if version >= _MULTI_RANK_SINCE and env.get("NCCL_MULTI_RANK_GPU_ENABLE", "1") != "0":
        wanted = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": str(max(1, _CTAS // ranks_per_gpu))}
    else:
        wanted = {
            "NCCL_HOSTID": f"commsim-rank-{rank}",
            "NCCL_NET": "Socket",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
        }
    return {name: value for name, value in wanted.items() if name not in env}


def meaning(ranks_per_gpu: int, version: tuple[int, ...]) -> str:
    """What times of ranks that share a GPU mean; empty where none do."""
    if ranks_per_gpu == 1:
        return ""
    return MEANING.format(how="copies within it" if version >= _MULTI_RANK_SINCE else "sockets through the host")


def logging(folder: Path, rank: int) -> dict[str, str]:
    """The variables that make rank 0 log NCCL's graphs, tuning table and choices into the folder of the run."""
    if rank:
        return {}
    return {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,GRAPH,TUNING,ENV",
        "NCCL_DEBUG_FILE": str(folder / DEBUG_LOG),
    }


def write_choices(folder: Path) -> Path:
    """Turns NCCL's log into ``nccl_choices.json``, which names no host, and removes the log.

    The tuning table is in microseconds and GB/s, as NCCL prints it. Raises LogFormatError where the log says nothing.
    """
    from commsim.nccl.debug_log import read_debug_log

    path = folder / DEBUG_LOG
    log = read_debug_log(path)
    said: dict[str, Any] = {
        "version": None if log.version is None else list(log.version),
        "ranks": log.ranks,
        "nodes": log.nodes,
        "coll_channels": log.coll_channels,
        "p2p_channels": log.p2p_channels,
        "table": [
            {"collective": c, "algorithm": a, "protocol": p, "latency_us": e.latency_us, "algbw_GBps": e.algbw_gbps}
            for (c, a, p), e in log.entries.items()
        ],
        "choices": [
            {name: getattr(choice, name) for name in ("collective", "nbytes", "algorithm", "protocol", "channels")}
            for choice in log.selections
        ],
    }
    written = write_atomically(folder / CHOICES, json.dumps(said, indent=2) + "\n")
    path.unlink()
    return written
