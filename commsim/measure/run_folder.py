"""The folder of a run on real ranks: ``measured.csv``, one line per finished row, and ``run.json``, its conditions.

A row is on the disk before the next one is measured, and the file never ends in half a row, so that a run that was cut
short, for whatever reason, has lost nothing and can go on.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from commsim.errors import MeasurementError
from commsim.files import write_atomically
from commsim.measure.assemble import error
from commsim.measure.capture import CHOICES, read_object
from commsim.measure.csv_tables import csv_records, table_row
from commsim.measure.rows import LogTable
from commsim.measure.run import Key

_PLACE_COLUMNS = ("time_us", "algbw_GBps", "busbw_GBps", "wrong", "mean_us", "p95_us", "min_us", "max_us")

COLUMNS = (
    "collective",
    "n_ranks",
    "size_bytes",
    "count",
    "dtype",
    "redop",
    "root",
    *(f"oop_{name}" for name in _PLACE_COLUMNS),
    *(f"ip_{name}" for name in _PLACE_COLUMNS),
    "algorithm",
    "iterations",
    "repeat",
    "sent_bytes",
    "expected_sent_bytes",
)
"""``oop`` is out of place, ``ip`` in place, as in nccl-tests. Times of torch's calls are medians over the iterations of
the slowest rank; times of libnccl are means over iterations and ranks, as nccl-tests prints them, and ``min`` and
``max`` those of the fastest and of the slowest rank. ``sent_bytes`` is the payload that each rank sent in one call, in
rank order, with blanks between, and ``expected_sent_bytes`` the same by `traffic.expected_sent`; both are left
blank where they are not known."""


def is_header(names: list[str]) -> bool:
    """Whether these are the columns of a run; those of before 2026-11-23 lack the last one."""
    return names in (list(COLUMNS), list(COLUMNS[:-1]))


TABLE, CONDITIONS, TRAINING, JOBS = "measured.csv", "run.json", "training.json", "jobs.json"
SCHEMA_VERSION = 1

SAME = ("gpu", "driver", "nccl", "cuda", "torch", "cpu", "hosts", "env", "nccl_conf", "power_cap_w", "plugins")
"""What of the conditions must be as it was for rows to stand beside each other in one table."""

_WITHOUT_MEANING = re.compile(r"\w*DEBUG\w*|TORCH_CPP_LOG_LEVEL|TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC")


class RunFolder:
    """The rows of a run as they are appended, by one process; `finished` holds the keys of those already there.

    `conditions` are those of the run now: an earlier one under others is not gone on with.
    """

    def __init__(self, folder: Path, fingerprint: str, conditions: dict[str, Any] | None = None) -> None:
        self._now = json.loads(json.dumps(conditions or {}))
        self.path = folder / TABLE
        self.finished: set[Key] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as fault:
            raise MeasurementError(f"{self.path}: cannot be written: {fault.strerror}") from None
        with ExitStack() as on_fault:
            on_fault.callback(os.close, self._descriptor)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise MeasurementError(f"{self.path}: another run is writing it; use another --out") from None
            self._take_up(fingerprint)
            on_fault.pop_all()

    def _take_up(self, fingerprint: str) -> None:
        """Reads what an earlier run of the same run left, and cuts off a line that it could not finish."""
        if os.fstat(self._descriptor).st_size == 0:
            self._append(",".join(COLUMNS) + "\n")
            return
        before = read_conditions(self.path.parent)
        if before.get("fingerprint") != fingerprint:
            raise MeasurementError(
                f"{self.path.parent} holds another run ({before.get('name', 'unknown')!r}, of other sizes, ranks or "
                "options); use another --out, or --fresh to start over"
            )
        if other := _differences(before, self._now):
            raise MeasurementError(
                f"{self.path.parent} holds rows that were measured under other conditions ({'; '.join(other)}); "
                "use another --out, or --fresh to start over"
            )
        text = self.path.read_bytes()
        whole = text.rfind(b"\n") + 1
        os.ftruncate(self._descriptor, whole)
        for record in csv.DictReader(io.StringIO(text[:whole].decode())):
            self.finished.add(_key(record, self.path))

    def _append(self, line: str) -> None:
        """Adds a line and waits until it is on the disk; on a fault the file ends where it ended before."""
        before = os.lseek(self._descriptor, 0, os.SEEK_END)
        rest = line.encode()
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except OSError as fault:
            os.ftruncate(self._descriptor, before)
            raise MeasurementError(
                f"{self.path}: cannot be written: {fault.strerror}; the {len(self.finished)} finished rows are in it"
            ) from None

    def add(self, row: dict[str, Any]) -> None:
        """Appends one row, a value per name of `COLUMNS` (blank where there is none)."""
        texts = {name: _text(row.get(name)) for name in COLUMNS}
        self._append(",".join(texts.values()) + "\n")
        self.finished.add(_key(texts, self.path))

    def write_conditions(self, conditions: dict[str, Any]) -> None:
        """Writes ``run.json`` anew."""
        self._write(CONDITIONS, conditions)

    def add_item(self, name: str, record: dict[str, Any]) -> None:
        """Writes a file of items, `TRAINING` or `JOBS`, anew, with one more."""
        self._write(name, {"items": [*self.items(name), record]})

    def _write(self, name: str, document: dict[str, Any]) -> None:
        text = json.dumps({"schema_version": SCHEMA_VERSION} | document, indent=2) + "\n"
        write_atomically(self.path.parent / name, text)

    def items(self, name: str) -> list[dict[str, Any]]:
        """The items that are in a file already."""
        path = self.path.parent / name
        try:
            return list(json.loads(path.read_text(encoding="utf-8"))["items"])
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError):
            raise MeasurementError(f"{path}: cannot be read; use another --out, or --fresh") from None

    def close(self) -> None:
        """Lets another run have the folder."""
        os.close(self._descriptor)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is not as it was, each in a few words."""
    pairs = [(name, before.get(name), now[name]) for name in SAME if name != "env" and name in now]
    was, is_ = before.get("env", {}), now.get("env", {})
    if "env" in now and isinstance(was, dict):
        names = [name for name in sorted(was | is_) if not _WITHOUT_MEANING.fullmatch(name)]
        pairs += [(name, was.get(name), is_.get(name)) for name in names]
    return [f"{name} was {_brief(old)}, is {_brief(new)}" for name, old, new in pairs if old != new]


def _brief(value: Any) -> str:
    return "not set" if value in (None, "") else str(value)[:60]


def discard(folder: Path) -> None:
    """Removes the rows, the conditions and the choices of an earlier run; other files stay."""
    for name in (TABLE, CONDITIONS, TRAINING, JOBS, CHOICES):
        (folder / name).unlink(missing_ok=True)


def read_conditions(folder: Path) -> dict[str, Any]:
    """What ``run.json`` says; empty where it is missing or cannot be read."""
    return read_object(folder / CONDITIONS)


def read_run(stream: TextIO, path: Path) -> list[LogTable]:
    """The rows of a ``measured.csv``, one table per collective, ranks and algorithm; repeats follow each other."""
    stored = read_conditions(path.parent)
    conditions = {name: str(stored[name]) for name in _SHOWN if stored.get(name) not in (None, "")}
    env = stored.get("library_env")
    tables: dict[tuple[str, str, str], LogTable] = {}
    for record in csv_records(stream, path):
        key = record["collective"], record["n_ranks"], record["algorithm"]
        if key not in tables:
            tables[key] = LogTable(
                line=record.line,
                collective=key[0],
                n_ranks=record.integer("n_ranks"),
                conditions=conditions | ({"algorithm": key[2]} if key[2] else {}),
                env={str(name): str(value) for name, value in env.items()} if isinstance(env, dict) else {},
            )
        tables[key].rows.append(table_row(record))
    if not tables:
        raise error(path, 1, "a run without finished rows")
    return list(tables.values())


_SHOWN = ("name", "backend", "network", "torch", "nccl", "gpu", "cpu", "hosts", "mode", "commsim")


def _key(record: dict[str, str], path: Path) -> Key:
    try:
        root, size, repeat = (int(record[name]) for name in ("root", "size_bytes", "repeat"))
        return record["collective"], record["dtype"], record["redop"], root, size, repeat, record["algorithm"]
    except (KeyError, ValueError, TypeError):
        raise MeasurementError(f"{path}: is not the table of a run; use another --out, or --fresh") from None


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.9g}" if isinstance(value, float) else str(value)
