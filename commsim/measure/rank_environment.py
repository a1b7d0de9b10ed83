"""What the environment of a rank must hold before NCCL, gloo and torch read it: once, when they begin."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from commsim.errors import MeasurementError
from commsim.measure.run import Run

_SIOCGIFADDR = 0x8915  # Linux include/uapi/linux/sockios.h: the IPv4 address of an interface

_HEARTBEAT_BEYOND_S = 300


def library_environment(run: Run, env: Mapping[str, str]) -> dict[str, str]:
    """The variables of the scenario's library.env; MeasurementError where the environment says something else."""
    clashes = [
        f"found {name}={env[name]} in the environment, expected {value}, which library.env of the scenario says; "
        "unset it, or set it in the scenario"
        for name, value in run.env.items()
        if env.get(name, value) != value
    ]
    if clashes:
        raise MeasurementError("\n".join(clashes))
    return dict(run.env)


def watchdog_environment(run: Run, env: Mapping[str, str]) -> dict[str, str]:
    """What keeps torch's other limits behind the one of the run, so that the watchdog is the one to name the cause.

    TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC (480 in torch 2.13) kills a process whose watchdog waits for CUDA so long.
    TORCH_CPP_LOG_LEVEL: the watchdog logs what it waited for as an error.
    """
    wanted = {
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(int(run.timeout_s) + _HEARTBEAT_BEYOND_S),
        "TORCH_CPP_LOG_LEVEL": log_level(run),
    }
    return {name: value for name, value in wanted.items() if name not in env} if run.backend == "nccl" else {}


def log_level(run: Run) -> str:
    """How much torch says: the watchdog's reason is an error; what gloo says of a fault, the rank says in one line."""
    return "ERROR" if run.backend == "nccl" else "FATAL"


def own_address(toward: str) -> str:
    """The IPv4 address with which this host reaches another one, empty where there is none but loopback's."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((toward, 9))  # a route is looked up, nothing is sent
        address = str(probe.getsockname()[0])
        return "" if address.startswith("127.") else address
    return ""


def interface_of(address: str) -> str:
    """The name of the interface that has an IPv4 address, empty where none has."""
    if sys.platform != "linux":
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                if socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, asked)[20:24]) == address:
                    return name
    return ""


def gloo_interface(every: list[dict[str, Any]], rank: int, env: Mapping[str, str]) -> dict[str, str]:
    """The interface for gloo where it would take loopback: on one of several hosts whose own name means 127.0.1.1.

    `every` holds `host` and `address` of each rank. gloo listens at the address of the host's name (torch's
    ProcessGroupGloo::createDefaultDevice), which Debian and Ubuntu put at 127.0.1.1 in /etc/hosts.
    """
    mine = every[rank]
    others = [one for one in every if one["host"] != mine["host"]]
    if not others or "GLOO_SOCKET_IFNAME" in env or not _name_is_loopback():
        return {}
    reachable = [own_address(one["address"]) for one in others if one["address"]]
    for address in [mine["address"], *reachable]:
        if address and (name := interface_of(address)):
            return {"GLOO_SOCKET_IFNAME": name}
    raise MeasurementError(
        "the name of this host means an address of loopback, and no interface leads to the others; "
        "set GLOO_SOCKET_IFNAME"
    )


def _name_is_loopback() -> bool:
    try:
        return socket.gethostbyname(socket.gethostname()).startswith("127.")
    except OSError:
        return True  # a name that means nothing: gloo falls back to loopback


# Several ranks on one GPU: NCCL refuses them ("Duplicate GPU detected") unless told otherwise. Until 2.30.2 a rank can
# claim a host of its own (NCCL_HOSTID, src/misc/utils.cc) and talks through sockets. From 2.30.3
# NCCL_MULTI_RANK_GPU_ENABLE allows them (experimental in NCCL's documentation; two per GPU by default, fewer CTAs for
# more).
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
