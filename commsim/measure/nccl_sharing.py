"""Several NCCL ranks on one GPU.

NCCL refuses two ranks on one device ("Duplicate GPU detected") unless told otherwise. Until 2.30.2 a rank can claim a
host of its own (NCCL_HOSTID, src/misc/utils.cc) and talks through sockets. From 2.30.3 NCCL_MULTI_RANK_GPU_ENABLE
allows it (experimental in NCCL's documentation; two ranks per GPU by default, fewer CTAs for more).
"""

from __future__ import annotations

from collections.abc import Mapping

_MULTI_RANK_SINCE = (2, 30, 3)
_CTAS = 8  # of one GPU, shared by its ranks: what public reports use

MEANING = (
    "several ranks share a GPU: choices, step counts and bytes are NCCL's own; times are those of {how} and of ranks "
    "that take turns on the GPU, and say nothing about links between GPUs"
)


def sharing(ranks_per_gpu: int, rank: int, version: tuple[int, ...], env: Mapping[str, str]) -> dict[str, str]:
    """The variables that let a rank share its GPU, for an NCCL version; those that `env` sets stay as they are."""
    if ranks_per_gpu == 1:
        return {}
    if _within_the_gpu(version, env):
        wanted = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": str(max(1, _CTAS // ranks_per_gpu))}
    else:
        wanted = {
            "NCCL_HOSTID": f"commsim-rank-{rank}",
            "NCCL_NET": "Socket",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
        }
    return {name: value for name, value in wanted.items() if name not in env}


def meaning(ranks_per_gpu: int, version: tuple[int, ...], env: Mapping[str, str]) -> str:
    """What times of ranks that share a GPU mean; empty where none do."""
    if ranks_per_gpu == 1:
        return ""
    return MEANING.format(how="copies within it" if _within_the_gpu(version, env) else "sockets through the host")


def _within_the_gpu(version: tuple[int, ...], env: Mapping[str, str]) -> bool:
    """Whether NCCL takes ranks of one GPU for ranks of one host."""
    return version >= _MULTI_RANK_SINCE and env.get("NCCL_MULTI_RANK_GPU_ENABLE", "1") != "0"
