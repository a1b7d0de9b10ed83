"""The journal of a sweep: a header and one JSON line per finished point, appended as points finish.

Whatever ends a sweep, the journal holds every line that was written whole; a torn last line is cut off when the
sweep goes on. So a rerun computes only what is missing, and no point is there twice.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import commsim
from commsim.errors import CommsimError
from commsim.planner.workers import PointAnswer

FORMAT = 1


class Journal:
    """A journal open for appending, by one process at a time. `done` are the numbers of the points it holds."""

    def __init__(self, path: Path, identity: str, points: int, restart: bool = False, name: str = "") -> None:
        self.path, self._name = path, name
        self._header = {"commsim_sweep": FORMAT, "identity": identity, "points": points}
        self.done: set[int] = set()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stream: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        except OSError as fault:
            raise CommsimError(f"{path}: cannot be written: {fault.strerror or fault}") from None
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._stream.close()
            raise CommsimError(f"{path}: another sweep is writing it, expected it to end first") from None
        try:
            self._open(restart)
        except BaseException:
            self._stream.close()
            raise

    def _open(self, restart: bool) -> None:
        if restart:
            self._stream.truncate(0)
        end = 0
        header: dict[str, Any] | None = None
        for line in self._stream:
            record = _record(line)
            if record is None:
                break
            if header is None:
                header = record
                _check_header(self.path, header, self._header)
            else:
                self.done.add(record["number"])
            end += len(line)
        self._stream.truncate(end)
        self._stream.seek(end)
        if header is None:
            self._stream.write(_line(self._header | {"commsim": commsim.__version__, "name": self._name}))
            self._stream.flush()

    def append(self, answers: list[PointAnswer]) -> None:
        """Adds the answers that are not there yet; they survive the end of this process."""
        lines = []
        for answer in answers:
            if answer.number not in self.done:
                self.done.add(answer.number)
                lines.append(_line(vars(answer)))
        self._stream.write(b"".join(lines))
        self._stream.flush()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        try:
            os.fsync(self._stream.fileno())
        finally:
            self._stream.close()


def read_journal(path: Path) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """The header of a journal, and its points as they were written; a torn last line is not among them."""

    def records() -> Iterator[dict[str, Any]]:
        with path.open("rb") as stream:
            next(stream)
            for line in stream:
                record = _record(line)
                if record is None:
                    return
                yield record

    try:
        with path.open("rb") as stream:
            header = _record(next(stream, b""))
    except OSError as fault:
        raise CommsimError(f"{path}: cannot be read: {fault.strerror or fault}") from None
    if header is None or header.get("commsim_sweep") != FORMAT:
        raise CommsimError(f"{path}: found no header of a sweep's journal on line 1")
    return header, records()


def _check_header(path: Path, header: dict[str, Any], expected: dict[str, Any]) -> None:
    if header.get("commsim_sweep") != FORMAT:
        raise CommsimError(f"{path}: found no header of a sweep's journal on line 1; --restart begins it anew")
    if header.get("identity") != expected["identity"]:
        raise CommsimError(
            f"{path}: it belongs to another sweep (the file, an override or commsim changed since); "
            "--restart begins it anew, --out takes another folder"
        )


def _line(record: dict[str, Any]) -> bytes:
    return (json.dumps(record, allow_nan=False) + "\n").encode()


def _record(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and ("number" in record or "commsim_sweep" in record) else None
