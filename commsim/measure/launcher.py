"""Starts the ranks of a run on this machine, watches them, and leaves none behind."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from commsim.collectives.semantics import DIVIDED, ROOTED
from commsim.errors import MeasurementError
from commsim.measure.capture import is_captured
from commsim.measure.nursery import Born, Nursery
from commsim.measure.rank_environment import library_environment, log_level
from commsim.measure.rendezvous import PASS, Place
from commsim.measure.run import Run
from commsim.units import GIB, format_bytes

GRACE_S = 5.0
"""How long the others may take to say what they saw when a rank has stopped, before they are stopped too."""

_TERMINATE_S = 1.0
_POLL_S = 0.2
_LAST_WORDS = 12
_OWN_PORTS_FROM = 20000  # few services are below the ports that Linux gives out, 32768 and up, and above this
_PORTS_TRIED = 20


@dataclass(frozen=True)
class Host:
    """Where a rank is started: words before the command (``ip netns exec ...``), and its own environment."""

    prefix: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Child:
    rank: int
    process: subprocess.Popen[bytes] | Born
    reason: str = ""
    cause: str = ""  # what torch or NCCL logged as the reason, before a stack of frames
    noise: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_WORDS))

    def hear(self, line: str) -> None:
        """Keeps a line of standard error."""
        if line.startswith("commsim: "):
            self.reason = line.removeprefix("commsim: ")
        elif line.strip():
            self.noise.append(line)
            if not self.cause and (cause := _CAUSES.search(line)):
                self.cause = cause[1].strip()[:300]


def require_torch() -> None:
    """Raise a MeasurementError where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MeasurementError("measuring needs torch: pip install 'commsim[measure]'")


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens on.

    Where there is one, a port that the system gives nobody who asks for any: until a rank listens there, seconds pass
    in which other processes open connections.
    """
    with suppress(OSError, ValueError):
        lowest_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        for port in random.SystemRandom().sample(range(_OWN_PORTS_FROM, lowest_given), _PORTS_TRIED):
            with socket.socket() as probe, suppress(OSError):
                probe.bind((address, port))
                return port
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def check_port(port: int, address: str = "127.0.0.1") -> None:
    """Raise a MeasurementError if a port is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as fault:
            raise MeasurementError(f"port {port} cannot be used: {fault.strerror}; choose another --port") from None


def check_memory(run: Run, memory_bytes: int | None = None) -> None:
    """Raise a MeasurementError if the arrays of a row, all ranks being here, cannot fit into this machine's memory."""
    if run.backend != "gloo":
        return
    if memory_bytes is None:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    calls = [(point.task, point.size, run.world_size) for point in run.points()]
    calls += [(job.task, job.size, len(job.ranks)) for item in run.jobs for job in item.jobs]
    for task, size, ranks in calls:
        holders = 1 if task.collective in ROOTED & DIVIDED else ranks  # others hold a block each
        if (least := holders * size) > memory_bytes:
            raise MeasurementError(
                f"{task.collective} of {format_bytes(size)} on {ranks} ranks holds at least "
                f"{format_bytes(least)}, and this machine has {memory_bytes / GIB:.1f} GiB; "
                "take smaller sizes, such as workload.0.sizes='8 B .. 64 MiB x2'"
            )


def launch(
    run: Run,
    show: Callable[[str], None],
    *,
    hosts: Sequence[Host] = (),
    address: str = "127.0.0.1",
    port: int | None = None,
    nursery: Nursery | None = None,
) -> None:
    """Runs a run on ranks of this machine until all have finished; `show` gets every line of the table.

    A nursery, where there is one, forks the ranks. A run that cannot go on raises MeasurementError with what each rank
    said. No rank is left when this returns.
    """
    require_torch()
    places = list(hosts) or [Host()] * run.world_size
    if port is None:
        port = free_port() if not hosts else 29500  # a namespace of its own has all ports free
    elif not hosts:
        check_port(port)
    children: list[_Child] = []
    with interrupts():
        try:
            for rank, host in enumerate(places):
                children.append(_start(run, rank, host, address, port, nursery))
            _watch(children, show)
        finally:
            _end(children)


_CAUSES = re.compile(
    r"(Watchdog caught collective operation timeout: .*|NCCL WARN .*|CUDA error: .*|CUDA out of memory.*"
    r"|nccl(?:System|Internal|Remote|UnhandledCuda)Error.*)"
)
"""By which torch and NCCL begin what they log of a process that they are about to end."""


def capture_here(run: Run, show: Callable[[str], None], **where: Any) -> None:
    """Has NCCL say its choices before a run, on ranks of their own; where it does not, `show` gets the reason."""
    capture = run.capturing()
    if is_captured(Path(run.out), capture.capture):
        return
    try:
        try:
            launch(capture, show, **where)
        except MeasurementError:
            launch(replace(capture, capture_graphs=False), show, **where)
    except MeasurementError as error:
        show(f"# warning: NCCL's choices are not captured: {str(error).splitlines()[0]}")


def capture_beside(run: Run, place: Place, show: Callable[[str], None], nursery: Nursery | None = None) -> None:
    """The same as one rank of torchrun or srun: a process beside this one is the rank of the pass."""
    fault = ""
    for graphs in (True, False):
        name = "capture" if graphs else "capture again"
        if not (fault := beside(replace(run.capturing(), capture_graphs=graphs), place, name, nursery)):
            return
    if place.rank == 0:
        show(f"# warning: NCCL's choices are not captured: {fault}")


def beside(run: Run, place: Place, name: str, nursery: Nursery | None = None) -> str:
    """Measures a run as one rank of torchrun or srun, in a process beside this one; returns the fault, empty if none.

    The processes of a `name` meet at the next port, or in a corner of their own of the store that torchrun keeps.
    Rows are printed as they come.
    """
    env = os.environ | {PASS: name, "COMMSIM_LAUNCHER": str(os.getpid())}
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        env["MASTER_PORT"] = str(place.port + 1)
    env.setdefault("TORCH_CPP_LOG_LEVEL", log_level(run))
    status, words = _beside(run, env, nursery)
    if status == 0:
        return ""
    lines = [line for line in words.splitlines() if line.strip()]
    last = next((line for line in lines if line.startswith("commsim: ")), lines[-1] if lines else "")
    return last.removeprefix("commsim: ") or f"{place}: ended with status {status}"


def _beside(run: Run, env: Mapping[str, str], nursery: Nursery | None) -> tuple[int, str]:
    """Exit status and standard error of a rank in a process of its own, which writes where this one does."""
    if nursery is None:
        words = [sys.executable, "-m", "commsim.measure.torch_runner"]
        done = subprocess.run(words, input=run.to_json(), env=env, stderr=subprocess.PIPE, text=True, check=False)
        return done.returncode, done.stderr
    sys.stdout.flush()
    born = nursery.start(env, run.to_json(), stdout=sys.__stdout__.fileno() if sys.__stdout__ else 1)
    try:
        with born.stderr:
            errors = born.stderr.read()
        return born.wait(), errors.decode(errors="replace")
    except BaseException:
        born.kill()
        raise


def _start(run: Run, rank: int, host: Host, address: str, port: int, nursery: Nursery | None) -> _Child:
    env = os.environ | library_environment(run, os.environ)
    env |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(run.world_size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "COMMSIM_LAUNCHER": str(os.getpid()),
    }
    env.setdefault("OMP_NUM_THREADS", "1")
    env.setdefault("TORCH_CPP_LOG_LEVEL", log_level(run))
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"):
        env.pop(name, None)
    if not host.prefix and sys.platform == "linux":
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if nursery is not None and not host.prefix:
        return _Child(rank, nursery.start(env | dict(host.env), run.to_json()))
    process = subprocess.Popen(
        [*host.prefix, sys.executable, "-m", "commsim.measure.torch_runner"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env | dict(host.env),
        start_new_session=True,  # an interrupt of the terminal reaches the launcher alone
    )
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.write(run.to_json().encode())
            process.stdin.close()
    return _Child(rank, process)


def _watch(children: list[_Child], show: Callable[[str], None]) -> None:
    """Passes lines on until all ranks are through; stops the others some time after one has failed."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            for stream, take in ((child.process.stdout, show), (child.process.stderr, child.hear)):
                if stream is not None:
                    os.set_blocking(stream.fileno(), False)
                    selector.register(stream, selectors.EVENT_READ, _Lines(stream, take))
        first: _Child | None = None
        until = 0.0
        while True:
            for key, _ in selector.select(_POLL_S):
                if not key.data.read():
                    selector.unregister(key.fileobj)
            codes = [child.process.poll() for child in children]
            if first is None and any(codes):
                first = next(c for c, code in zip(children, codes, strict=True) if code)
                until = time.monotonic() + GRACE_S
            if None not in codes or (first is not None and time.monotonic() > until):
                break
        for key in list(selector.get_map().values()):
            while key.data.read():
                pass
    if first is not None:
        raise MeasurementError(_report(children, first))


class _Lines:
    """One stream of a rank, whose lines `take` gets."""

    def __init__(self, stream: IO[bytes], take: Callable[[str], None]) -> None:
        self.stream, self.take, self.rest = stream, take, b""

    def read(self) -> bool:
        """Takes what is there; False at the end of the stream, or where nothing is there now."""
        try:
            chunk = os.read(self.stream.fileno(), 65536)
        except BlockingIOError:
            return False
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        for line in lines:
            self.take(line.decode(errors="replace"))
        return bool(chunk)


def _report(children: list[_Child], first: _Child) -> str:
    """What happened to every rank, the cause first."""
    lines = []
    killed = {c.rank: -code for c in children if (code := c.process.poll() or 0) < 0}
    for rank, number in killed.items():
        lines.append(f"rank {rank} was killed by signal {number} ({signal.Signals(number).name})")
    by_text: dict[str, list[int]] = {}
    for child in children:
        if text := child.reason.removeprefix(f"rank {child.rank} of {len(children)}: ") or child.cause:
            by_text.setdefault(text, []).append(child.rank)
    lines += [f"{_ranks(ranks)}: {text}" for text, ranks in by_text.items()]
    waiting = [c.rank for c in children if c.process.poll() is None]
    if waiting:
        lines.append(f"{_ranks(waiting)} did not answer any more and had to be stopped")
    if not first.reason and not first.cause:
        ended = [] if first.rank in killed else [f"rank {first.rank} ended with status {first.process.poll()}"]
        lines += [*ended, *([f"last words of rank {first.rank}:", *first.noise] if first.noise else [])]
    lines.append("finished rows are kept; run the same command again to go on")
    return "\n".join(lines)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _end(children: list[_Child]) -> None:
    """Stops every rank that still runs, first kindly."""
    running = [c.process for c in children if c.process.poll() is None]
    for process in running:
        process.terminate()
    until = time.monotonic() + _TERMINATE_S
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, until - time.monotonic()))
        if process.poll() is None:
            process.kill()
    for child in children:
        child.process.wait()
        for stream in (child.process.stdin, child.process.stdout, child.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def interrupts() -> AbstractContextManager[None]:
    """Has SIGTERM and SIGHUP end the run as Ctrl-C does, so that ranks and testbeds are cleared away."""
    return signals(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Has a handler take some signals for as long as the block lasts."""
    before = {}
    try:
        for number in numbers:
            with suppress(ValueError):  # not the main thread
                before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
