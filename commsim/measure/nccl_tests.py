"""nccl-tests, where it is installed, in the place of our own ranks: its programs run here, and their tables are read.

One process drives all GPUs of this machine, a thread each (``-t``); over several machines nccl-tests needs MPI, and its
log is read by `commsim compare`.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from commsim.collectives.semantics import NCCL_TESTS
from commsim.errors import CommsimError, MeasurementError
from commsim.files import write_atomically
from commsim.measure.conditions import environment
from commsim.measure.gpu import gpus
from commsim.measure.nccl_log import read_log
from commsim.measure.rows import Group, LogTable
from commsim.measure.run import REGISTRATIONS, Repeat, Run
from commsim.measure.run_folder import RunFolder
from commsim.measure.table import format_row
from commsim.measure.tasks import Task
from commsim.units import format_bytes

_SHORT = {"all_to_all": "alltoall", "send_recv": "sendrecv"}
PROGRAMS = {name: f"{_SHORT.get(name, name)}_perf" for name in NCCL_TESTS}

LOG = "nccl-tests.log"

_TYPES = {"float16": "half", "float32": "float", "float64": "double", "float8_e4m3": "f8e4m3", "float8_e5m2": "f8e5m2"}
_HOST = re.compile(r"(\bPid\s+\d+\s+on)\s+\S+")


def program(collective: str, folder: str) -> Path:
    """The program of nccl-tests for a collective, in a folder or on PATH; MeasurementError where there is none."""
    name = PROGRAMS.get(collective)
    if name is None:
        raise MeasurementError(f"nccl-tests has no {collective} of our counts; take --runner libnccl")
    places = [str(Path(folder) / sub) for sub in ("", "build")] if folder else [os.environ.get("PATH", "")]
    path = shutil.which(name, path=os.pathsep.join(places))
    if path is None:
        where = f"in {folder}" if folder else "on PATH; name its folder with --nccl-tests"
        raise MeasurementError(f"found no {name} {where}")
    return Path(path)


def commands(run: Run, task: Task, folder: str) -> list[list[str]]:
    """The command lines that measure a task: one where its sizes double or the like, else one per size."""
    path = str(program(task.collective, folder))
    sizes = sorted({size for size in (run.actual_size(task, size) for size in task.sizes) if size})
    factors = {b // a if b % a == 0 else 0 for a, b in pairwise(sizes)}
    spans = [(sizes[0], sizes[-1], factors.pop())] if len(factors) == 1 and 0 not in factors else []
    options = ["-t", str(run.world_size), "-g", "1", "-n", str(run.iterations), "-w", str(run.warmup)]
    options += ["-c", str(int(run.check)), "-d", _TYPES.get(task.dtype, task.dtype)]
    options += ["-o", task.redop] if task.reduces else []
    options += ["-r", str(task.root)] if task.rooted else []
    options += ["-G", str(run.graph)] if run.graph else []
    options += ["-R", str(REGISTRATIONS.index(run.register))] if run.register != "none" else []
    each = spans or [(size, size, 2) for size in sizes]
    return [[path, "-b", str(first), "-e", str(last), "-f", str(factor), *options] for first, last, factor in each]


def measure(run: Run, folder: str, show: Callable[[str], None]) -> None:
    """Measures the collectives of a run by nccl-tests into the folder of the run; `show` gets every row.

    Raises MeasurementError where a program is missing or fails; rows that were finished stay.
    """
    lines = {id(task): commands(run, task, folder) for task in run.tasks}
    table = RunFolder(Path(run.out), run.fingerprint())
    try:
        conditions = _conditions(run)
        table.write_conditions(conditions | {"finished": False})
        for repeat in range(run.repeats):
            for task in run.tasks:
                wanted = {point.key for point in run.points() if point.task is task and point.repeat == repeat}
                if wanted <= table.finished:
                    continue
                for command in lines[id(task)]:
                    log = _output(command, run)
                    conditions |= _keep(Path(run.out) / LOG, command, log)
                    for point, row in _rows(log, run, task, repeat):
                        if point.key not in table.finished:
                            table.add(row)
                            show(format_row(row))
        table.write_conditions(conditions | {"finished": True})
    finally:
        table.close()


def _output(command: list[str], run: Run) -> str:
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | run.env,
            timeout=run.timeout_s * max(1, len(run.tasks)) + 600.0,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MeasurementError(f"{Path(command[0]).name} did not end; it was stopped") from None
    except OSError as fault:
        raise MeasurementError(f"{command[0]}: {fault.strerror}") from None
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        last = next((line for line in reversed(lines) if "failure" in line.lower()), lines[-1] if lines else "")
        raise MeasurementError(
            f"{' '.join([Path(command[0]).name, *command[1:]])} ended with status {done.returncode}: {last[:240]}"
        )
    return text


def _keep(path: Path, command: list[str], log: str) -> dict[str, str]:
    """Adds an output to the log of the run, without the name of the host; returns what it says of the library."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    words = " ".join([Path(command[0]).name, *command[1:]])
    nameless = _HOST.sub(r"\1 host", log)
    write_atomically(path, f"{text}$ {words}\n{nameless}")
    match = re.search(r"nccl-tests version\s+([\w.+-]+)", log)
    return {"nccl_tests": match[1]} if match else {}


def _rows(log: str, run: Run, task: Task, repeat: int) -> Iterator[tuple[Repeat, dict[str, Any]]]:
    """The rows of an output, each with its columns in our table."""
    try:
        tables: list[LogTable] = read_log(io.StringIO(log), Path(PROGRAMS[task.collective]))
    except CommsimError as fault:
        raise MeasurementError(f"{PROGRAMS[task.collective]} printed no table: {str(fault).splitlines()[0]}") from None
    for row in (row for table in tables for row in table.rows):
        point = Repeat(task, row.size, repeat)
        in_place = _columns("ip", row.in_place) if "ip" in run.places(task) else {}
        measured = {"count": row.count, **_columns("oop", row.out_of_place), **in_place}
        yield point, point.columns(run) | measured


def _columns(place: str, group: Group) -> dict[str, Any]:
    if group.time_us != group.time_us:  # NaN: a blank
        return {}
    return {
        f"{place}_time_us": group.time_us,
        f"{place}_algbw_GBps": group.algbw,
        f"{place}_busbw_GBps": group.busbw,
        f"{place}_wrong": group.wrong if group.checked else "N/A",
    }


def _conditions(run: Run) -> dict[str, Any]:
    layer = gpus()
    gpu = layer.properties(0).name if layer.available() else ""
    largest = max((size for task in run.tasks for size in task.sizes), default=0)
    return {
        **run.description(),
        "measures": "nccl-tests itself, one process with a thread per GPU: means over the calls and ranks",
        "largest": format_bytes(largest),
        "gpu": gpu,
        "hosts": 1,
        "env": environment(),
    }
