"""A network of known rates inside one Linux machine, for as long as a ``with`` block lasts.

Built from network namespaces, veth cables, bridges and token-bucket shapers, which takes root. One testbed at a time
stands on a machine: a lock sees to it, and whoever holds it removes what a crashed one left, by the prefix of names.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from commsim.errors import MeasurementError
from commsim.measure.launcher import Host, signals
from commsim.measure.wiring import INTERFACE, PREFIX, WiringPlan, commands, namespace

_NAMES = Path("/run/netns")
LOCK = Path("/run/commsim-testbed.lock")


def obstacle() -> str | None:
    """Why no testbed can stand on this machine for this user; None if one can."""
    if sys.platform != "linux":
        return "a testbed is made of Linux network namespaces"
    missing = [tool for tool in ("ip", "tc", "bridge") if shutil.which(tool) is None]
    if missing:
        return f"a testbed needs {', '.join(missing)} (package iproute2)"
    if os.geteuid() != 0:
        return "a testbed needs root: network namespaces, bridges and shapers are the kernel's"
    return None


@contextmanager
def standing_testbed(plan: WiringPlan) -> Iterator[list[Host]]:
    """Builds the network of a plan, and gives where ranks start, in their order; removes it whatever happens."""
    if reason := obstacle():
        raise MeasurementError(reason)
    lock = _locked()
    try:
        remove_leftovers()
        for program, lines in commands(plan):
            _batch(program, lines)
        env = {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE}
        hosts = [Host(("ip", "netns", "exec", namespace(node)), env) for node in range(plan.nodes)]
        yield [host for host in hosts for _ in range(plan.ranks_per_node)]
    finally:
        try:
            with signals(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                remove_leftovers()
        finally:
            os.close(lock)


def _locked() -> int:
    """A descriptor that holds the lock of the machine."""
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        raise MeasurementError(
            f"another testbed stands on this machine (process {holder or 'unknown'}); run again when it has ended"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def remove_leftovers() -> list[str]:
    """Ends what runs in namespaces of our prefix and deletes them; returns their names. Call with the lock held."""
    names = sorted(path.name for path in _NAMES.glob(f"{PREFIX}*")) if _NAMES.is_dir() else []
    for name in names:
        _end_processes(name)
        done = subprocess.run(["ip", "netns", "del", name], capture_output=True, text=True, check=False)
        if done.returncode:
            raise MeasurementError(f"the namespace {name} cannot be removed: {done.stderr.strip()}")
    return names


def _end_processes(name: str) -> None:
    """Kills ranks that a crashed run left in a namespace of ours; a namespace lives as long as they do."""
    for _ in range(40):
        done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        pids = [int(word) for word in done.stdout.split()]
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _batch(program: tuple[str, ...], lines: list[str]) -> None:
    if not lines:
        return
    text = "\n".join(lines) + "\n"
    done = subprocess.run([*program], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        fault = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        raise MeasurementError(f"the testbed cannot be built: {' '.join(program)}: {fault}")
