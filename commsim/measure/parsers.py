"""Measured curves from a file of any form: CSV tables, nccl-tests text and JSON, NCCL's inspector, OSU, PARAM."""

from __future__ import annotations

import io
import stat
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from commsim.measure.assemble import Wanted, curves_of, error
from commsim.measure.csv_tables import MEASURED_COLUMNS, PLAIN_COLUMNS, read_measured_csv, read_result_csv
from commsim.measure.json_logs import read_json
from commsim.measure.nccl_log import read_log
from commsim.measure.osu_log import is_osu, read_osu
from commsim.measure.records import RESULT_COLUMNS, Curve, collective_name
from commsim.measure.run_folder import TABLE, is_header, read_run

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_HEADER_WITHIN_LINES = 10_000
_PACKED = {b"\x1f\x8b": "gzip", b"PK": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def read_measured(
    path: Path, *, collective: str | None = None, n_ranks: int | None = None, likely_ranks: int | None = None
) -> list[Curve]:
    """Every curve in `path`, at least one.

    `collective` and `n_ranks` state what the file does not; in a file of several collectives, `collective`
    selects. `likely_ranks`: those of the machine, for tables that hold bus bandwidths alone. Raises LogFormatError with
    file and line where nothing can be read.
    """
    wanted = Wanted(None if collective is None else collective_name(collective), n_ranks, likely_ranks)
    if collective is not None and wanted.collective is None:
        raise error(path, 0, f"found the collective {collective!r}, expected a name such as all_reduce")
    try:
        if path.is_dir():
            path = _table_of(path)
        with _opened(path) as raw:
            path = _as_called(path)
            start = raw.read(4096)
            raw.seek(0)
            for magic, name in _PACKED.items():
                if start.startswith(magic):
                    raise error(path, 1, f"{name} data, expected text; unpack it first")
            encoding = "utf-16" if start.startswith(_UTF16) else "utf-8-sig"
            with io.TextIOWrapper(raw, encoding=encoding, errors="replace") as text:
                return _read(text, path, wanted)
    except OSError as fault:
        raise error(path, 0, f"cannot be read: {fault.strerror or fault}") from None


DASH = Path("-")
"""Stands for standard input."""

STDIN = Path("stdin")
"""What its curves are called after."""

_MOST_STREAMED = 64 << 20


def _as_called(path: Path) -> Path:
    """What the curves of a path are called after: standard input and process substitution have no names."""
    if path == DASH:
        return STDIN
    return Path(f"pipe {path.name}") if path.parent.name == "fd" and path.name.isdigit() else path


def _opened(path: Path) -> BinaryIO:
    """A file, or what a pipe holds, which can be read again from its start; LogFormatError for devices and floods."""
    if path != DASH:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return path.open("rb")
        if not stat.S_ISFIFO(mode):
            raise error(path, 0, "found a device, expected a file or a pipe")
    if path == DASH:
        content = sys.stdin.buffer.read(_MOST_STREAMED + 1)
    else:
        with path.open("rb") as stream:
            content = stream.read(_MOST_STREAMED + 1)
    if len(content) > _MOST_STREAMED:
        raise error(path, 0, f"found more than {_MOST_STREAMED >> 20} MiB in a pipe, expected a log; name a file")
    return io.BytesIO(content)


def _table_of(folder: Path) -> Path:
    """The table in a folder that `commsim run` or `commsim measure` wrote."""
    for name in ("result.csv", TABLE):
        if (folder / name).is_file():
            return folder / name
    raise error(folder, 0, f"a folder without result.csv or {TABLE}, expected a run folder, a CSV table or a log")


def _read(stream: TextIO, path: Path, wanted: Wanted) -> list[Curve]:
    first = next((line for line in islice(_pieces(stream), _HEADER_WITHIN_LINES) if line.strip()), "")
    separator = max(",;\t", key=first.count)
    header = [name.strip().strip('"') for name in first.split(separator)]
    if set(RESULT_COLUMNS[:4]) | {"time_us"} <= set(header):
        stream.seek(0)
        return [c for c in read_result_csv(stream, path) if wanted.collective in (None, c.collective)]
    if is_header(header):
        stream.seek(0)
        return curves_of(read_run(stream, path), path, wanted)
    if "size_bytes" in header and (set(MEASURED_COLUMNS) | set(PLAIN_COLUMNS)) & set(header) != {"size_bytes"}:
        stream.seek(0)
        return curves_of(read_measured_csv(stream, path, separator), path, wanted)
    if first.lstrip().startswith(("{", "[{")):
        stream.seek(0)
        return curves_of(read_json(stream, path), path, wanted)
    if "size_bytes" in header:
        raise error(
            path, 1, f"a CSV table with size_bytes but none of {', '.join((*PLAIN_COLUMNS, *MEASURED_COLUMNS[1:]))}"
        )
    stream.seek(0)
    other = _announces_osu(stream)
    stream.seek(0)
    return curves_of((read_osu if other else read_log)(stream, path), path, wanted)


def _pieces(stream: TextIO) -> Iterator[str]:
    """Lines, those that are long in pieces."""
    return iter(lambda: stream.readline(4096), "")


def _announces_osu(stream: TextIO) -> bool:
    """Whether a table of OSU or PARAM begins before one of nccl-tests, in the first lines of a text."""
    for _ in range(_HEADER_WITHIN_LINES):
        line = stream.readline(16_384)
        if not line or ("algbw" in line and "busbw" in line and "COMMS-RES" not in line):
            return False
        if is_osu(line):
            return True
    return False
