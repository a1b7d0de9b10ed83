"""How a rank ends: with its launcher, without taking Python apart, and with a fault in one line."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from commsim.errors import CommsimError, MeasurementError
from commsim.measure.gpu import gpus

FAILED = 1


class NoAnswerError(MeasurementError):
    """A rank waited for another longer than allowed. It closes its connections, which the others take for its loss."""


def failure_of(doing: str, error: BaseException) -> MeasurementError:
    """A fault of torch while doing ``doing``, in one line."""
    first, lowered = first_line(error), str(error).lower()
    if gpus().is_out_of_memory(error):
        return MeasurementError(f"{doing}: out of memory ({first[:160]})")
    if any(sign in lowered for sign in ("connection closed", "connection reset", "broken pipe", "socket closed")):
        return MeasurementError(f"{doing}: a rank was lost ({first[:160]})")
    if "timed out" in lowered or "timeout" in lowered:
        return NoAnswerError(f"{doing}: no answer from another rank within the time allowed, --timeout ({first[:160]})")
    return MeasurementError(f"{doing}: {type(error).__name__}: {first[:240]}")


def fault_of(work: Callable[[], object]) -> str | None:
    """Why some work cannot be done, None where it is done."""
    try:
        work()
    except CommsimError as error:
        return str(error)
    return None


def first_line(error: BaseException) -> str:
    """What an error says, as far as it concerns a user."""
    text = re.sub(r"\[[^\]]*/([\w.]+:\d+)\] ", "", str(error).strip())  # gloo begins with a path of its build machine
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    return first.split(" This is typically caused")[0].rstrip(".")


def die_with_parent() -> None:
    """Has Linux kill this process when the launcher dies, however it dies: no rank is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != int(os.environ.get("COMMSIM_LAUNCHER", os.getppid())):
            os._exit(FAILED)  # it died before the line above


def end_process(status: int) -> NoReturn:
    """Ends this process without taking Python apart.

    gloo's threads outlive their group wherever DDP, FSDP or a device mesh still holds it, and now and then one of them
    touches what Python has freed already: SIGABRT after a run without fault (pytorch/pytorch#179291).
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(status)
