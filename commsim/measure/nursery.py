"""A process that has loaded torch and forks ranks: a rank is there in a tenth of a second instead of several.

It touches no GPU and begins no thread, since CUDA must not be inherited by a fork.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import IO, Any

from commsim.errors import MeasurementError

_LOOK_S = 0.05  # between two looks at what has ended
_BORN_S = 120.0  # to load torch from a cold disk
_LONGEST_S = 60.0  # that one wait for the nursery may take
_FAILED = 70


class Nursery:
    """The parent's side: `start` gives a process; all of them end with `close`."""

    def __init__(self) -> None:
        env = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"} | os.environ  # read as torch is loaded
        self._connection, theirs = Pipe()
        words = [sys.executable, "-m", "commsim.measure.nursery", str(theirs.fileno())]
        self._process = subprocess.Popen(
            words,
            env=env | {"COMMSIM_LAUNCHER": str(os.getpid())},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of the terminal reaches the launcher alone
        )
        theirs.close()
        self._ended: dict[int, int] = {}
        self._born: list[int] = []
        self.gone = False

    def start(self, env: Mapping[str, str], text: str, stdout: int | None = None) -> Born:
        """A rank that has `text` on its standard input; its standard output goes to `stdout`, else into a pipe."""
        out: tuple[int, ...] = () if stdout is not None else os.pipe()
        err = os.pipe()
        try:
            self._send({"env": dict(env), "text": text}, [stdout if stdout is not None else out[1], err[1]])
            until = time.monotonic() + _BORN_S
            while not self._born:
                if self.gone or time.monotonic() > until:
                    raise MeasurementError("no rank could be started: torch cannot be loaded")
                self._listen(1.0)
            pid = self._born.pop(0)
        except BaseException:
            for descriptor in (*out[:1], err[0]):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (*out[1:], err[1]):
                os.close(descriptor)
        return Born(self, pid, os.fdopen(out[0], "rb", 0) if out else None, os.fdopen(err[0], "rb", 0))

    def signal(self, pid: int, number: int) -> None:
        """Signals a process that has not been waited for yet."""
        with suppress(MeasurementError):
            self._send({"signal": number, "pid": pid}, [])

    def status(self, pid: int, patience_s: float = 0.0) -> int | None:
        """How a process ended, below 0 the signal that killed it; None as long as it runs."""
        until = time.monotonic() + patience_s
        while pid not in self._ended and not self.gone:
            left = until - time.monotonic()
            if not self._listen(min(max(0.0, left), _LONGEST_S)) and left <= 0:
                return None
        return self._ended.get(pid, -signal.SIGKILL)  # they die with the nursery

    def close(self) -> None:
        """Ends the nursery and whom it still holds."""
        self._connection.close()
        self._process.wait()

    def _send(self, request: Mapping[str, Any], descriptors: list[int]) -> None:
        try:
            self._connection.send(request)
            for descriptor in descriptors:
                send_handle(self._connection, descriptor, None)
        except OSError:
            raise MeasurementError("the process that starts the ranks has ended") from None

    def _listen(self, patience_s: float) -> bool:
        """Takes in what the nursery says; False where it says nothing for so long."""
        if not self._connection.poll(patience_s):
            return False
        try:
            pid, status = self._connection.recv()
        except (EOFError, OSError):
            self.gone = True
            return True
        if status is None:
            self._born.append(pid)
        else:
            self._ended[pid] = status
        return True


class Born:
    """A process of a nursery, with as much of subprocess.Popen as the launcher asks for."""

    stdin = None

    def __init__(self, nursery: Nursery, pid: int, stdout: IO[bytes] | None, stderr: IO[bytes]) -> None:
        self._nursery, self.pid, self.stdout, self.stderr = nursery, pid, stdout, stderr

    def poll(self) -> int | None:
        """The exit status, None as long as the process runs."""
        return self._nursery.status(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status; subprocess.TimeoutExpired after so many seconds."""
        status = self._nursery.status(self.pid, float("inf") if timeout is None else timeout)
        if status is None:
            raise subprocess.TimeoutExpired("a rank", timeout or 0.0)
        return status

    def terminate(self) -> None:
        """Asks it to end."""
        self._nursery.signal(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Ends it."""
        self._nursery.signal(self.pid, signal.SIGKILL)


def _serve(connection: Connection) -> None:
    """Forks whom the other side asks for and says who has ended, until the other side hangs up."""
    alive: set[int] = set()
    while True:
        for pid in list(alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                alive.remove(pid)
                connection.send((pid, os.waitstatus_to_exitcode(status)))
        if not connection.poll(_LOOK_S if alive else None):
            continue
        try:
            request = connection.recv()
        except EOFError:
            break
        if "signal" in request:
            if request["pid"] in alive:
                os.kill(request["pid"], request["signal"])
            continue
        descriptors, parent = [recv_handle(connection) for _ in range(2)], os.getpid()
        pid = os.fork()
        if pid == 0:
            connection.close()
            _be(request, descriptors, parent)
        alive.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send((pid, None))
    for pid in alive:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _be(request: Mapping[str, Any], descriptors: list[int], parent: int) -> None:
    """What a forked process does from its birth to its end."""
    try:
        from commsim.measure.rank_end import end_process
        from commsim.measure.torch_runner import main

        os.setsid()
        for descriptor, number in zip(descriptors, (1, 2), strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(request["env"] | {"COMMSIM_LAUNCHER": str(parent)})
        sys.stdin = io.StringIO(request["text"])
        end_process(main())
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stderr.flush()
        os._exit(_FAILED)


def main() -> int:
    """Entry point of the nursery: loads torch, then serves the connection whose number is its argument."""
    import gc

    import torch._dynamo  # which optimizers load when they are made
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401 - training steps load all three, for seconds

    from commsim.measure import torch_runner  # noqa: F401 - which ranks find loaded
    from commsim.measure.rank_end import die_with_parent

    die_with_parent()
    gc.freeze()  # what is loaded is never collected, so that ranks go on sharing its memory
    connection = Connection(int(sys.argv[1]))
    with suppress(ConnectionError):  # the other side is gone
        _serve(connection)
    return 0


if __name__ == "__main__":
    os._exit(main())
