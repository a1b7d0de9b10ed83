"""What must be known of a machine to read a measurement, without anything that names it or its owner."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from pathlib import Path
from typing import Any

_KEPT = re.compile(r"(NCCL|GLOO|TORCH_NCCL|CUDA_VISIBLE|OMP_NUM|MKL_NUM|TORCH_CPP_LOG)[A-Z0-9_]*")
_NAMES_A_HOST = re.compile(r"NCCL_(HOSTID|DEBUG_FILE|COMM_ID|OOB_NET_IFNAME)|GLOO_DEVICE_HOST.*")


def environment(env: dict[str, str] | None = None) -> dict[str, str]:
    """The variables that libraries and threads read; of a path only the last part, nothing that names a host."""
    return {
        name: value.rsplit("/", 1)[-1]
        for name, value in sorted((os.environ if env is None else env).items())
        if _KEPT.fullmatch(name) and not _NAMES_A_HOST.fullmatch(name)
    }


def rank_conditions(device: Any) -> dict[str, Any]:
    """What one rank runs on; `host` is a digest that only tells hosts of one run apart."""
    import torch

    boot = _read("/proc/sys/kernel/random/boot_id")
    said: dict[str, Any] = {
        "host": hashlib.sha256((platform.node() + boot).encode()).hexdigest()[:8],
        "cpu": cpu_model(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release().split("-")[0],
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "scheduling": _scheduling(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        said |= {
            "gpu": properties.name,
            "gpu_memory_bytes": properties.total_memory,
            "sm": properties.major * 10 + properties.minor,
            "cuda": torch.version.cuda or "",
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return said


def run_conditions(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The conditions of a run: what all ranks share, lists where they differ, and the number of hosts."""
    hosts = [rank["host"] for rank in ranks]
    merged: dict[str, Any] = {"hosts": len(set(hosts)), "ranks_per_host": max(hosts.count(h) for h in hosts)}
    merged["load_average"] = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    for name in ranks[0]:
        values = list(dict.fromkeys(str(rank.get(name, "")) for rank in ranks))
        if name != "host":
            merged[name] = ranks[0][name] if len(values) == 1 else values
    return merged


def _scheduling() -> str:
    """How the kernel schedules this process, such as ``other, nice 0`` or ``rr 5``: a busy machine delays the first."""
    if not hasattr(os, "sched_getscheduler"):
        return ""
    policy = os.sched_getscheduler(0)
    for name in ("fifo", "rr"):
        if policy == getattr(os, f"SCHED_{name.upper()}"):
            return f"{name} {os.sched_getparam(0).sched_priority}"
    return f"other, nice {os.nice(0)}"


def cpu_model() -> str:
    """The name of the processor, or of its architecture where it has none."""
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
