"""What must be known of a machine to read a measurement, without anything that names it or its owner."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

_KEPT = re.compile(
    r"(NCCL|CUDA|UCX|FI|OFI|PYTORCH|GLOO|TORCH_NCCL)_[A-Za-z0-9_]*|(OMP_NUM|MKL_NUM|TORCH_CPP_LOG)[A-Z0-9_]*"
)
_NAMES_A_HOST = re.compile(r"NCCL_(HOSTID|DEBUG_FILE|COMM_ID|OOB_NET_IFNAME|RAS_ADDR|\w+_DUMP_FILE)|GLOO_DEVICE_HOST.*")
_CONFIGURATION = ("~/.nccl.conf", "/etc/nccl.conf")  # NCCL_CONF_FILE stands in for the first; src/misc/param.cc, 2.27.7


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that libraries and threads read; of a path only the last part, nothing that names a host."""
    return {
        name: value.rsplit("/", 1)[-1]
        for name, value in sorted((os.environ if env is None else env).items())
        if _KEPT.fullmatch(name) and not _NAMES_A_HOST.fullmatch(name)
    }


def nccl_configuration(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of NCCL's own files, which it reads where the environment has none; the first file wins."""
    named = (os.environ if env is None else env).get("NCCL_CONF_FILE", "")
    settings: dict[str, str] = {}
    for path in (named or _CONFIGURATION[0], _CONFIGURATION[1]):
        for line in text_of(os.path.expanduser(path)).splitlines():  # noqa: PTH111 - a home that does not exist stays
            name, sign, value = line.partition("=")
            if sign and not line.startswith("#"):
                settings.setdefault(name, value)
    return environment(settings)


def host_digest(more: str = "") -> str:
    """What tells hosts of one run apart and names none; NCCL_HOSTID makes a host of its own, as it does for NCCL."""
    boot = text_of("/proc/sys/kernel/random/boot_id")
    identity = platform.node() + boot + os.environ.get("NCCL_HOSTID", "") + more
    return hashlib.sha256(identity.encode()).hexdigest()[:8]


def rank_conditions(host: str) -> dict[str, Any]:
    """What one rank runs on, but for its GPU; `host` is its digest."""
    import torch

    return {
        "host": host,
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 0,
        "cores_of_rank": cores_of_process(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release().split("-")[0],
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "scheduling": _scheduling(),
        "env": environment(),
    }


def run_conditions(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The conditions of a run: what all ranks share, lists of what there is where they differ, and the hosts.

    The environment is merged by variable.
    """
    hosts = [rank["host"] for rank in ranks]
    merged: dict[str, Any] = {"hosts": len(set(hosts)), "ranks_per_host": max(hosts.count(h) for h in hosts)}
    merged["load_average"] = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    for name in dict.fromkeys(name for rank in ranks for name in rank):
        if name == "env":
            variables = sorted({variable for rank in ranks for variable in rank["env"]})
            merged["env"] = {v: _shared([rank["env"].get(v) for rank in ranks]) for v in variables}
        elif name != "host":
            merged[name] = _shared([rank.get(name) for rank in ranks])
    return merged


def _shared(values: list[Any]) -> Any:
    """The value that all ranks have, or the list of the different ones in the order of the ranks."""
    different = [value for i, value in enumerate(values) if value not in values[:i]]
    return different[0] if len(different) == 1 else different


def cores_of_process() -> str:
    """The cores that the kernel lets this process use, such as ``0-15,64-79``; empty where it does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    numbered = enumerate(sorted(os.sched_getaffinity(0)))
    spans = [[core for _, core in run] for _, run in groupby(numbered, lambda pair: pair[1] - pair[0])]
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans)


def _scheduling() -> str:
    """How the kernel schedules this process, such as ``other, nice 0`` or ``rr 5``: a busy machine delays the first."""
    if not hasattr(os, "sched_getscheduler"):
        return ""
    name = {os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr"}.get(os.sched_getscheduler(0))
    return f"{name} {os.sched_getparam(0).sched_priority}" if name else f"other, nice {os.nice(0)}"


def cpu_model() -> str:
    """The name of the processor, or of its architecture where it has none."""
    match = re.search(r"^model name\s*:\s*(.+)$", text_of("/proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def text_of(path: str | Path) -> str:
    """A file's text, empty where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
