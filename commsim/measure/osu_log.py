"""Text of the OSU micro-benchmarks and of PARAM's comms.py: a header that names the columns, then a row per size.

OSU: ``# OSU MPI Allreduce Latency Test v7.4``, ``# Size       Avg Latency(us)``, rows of size and time, or MB/s of
10^6 in bandwidth tests; the size is what one rank contributes. PARAM: lines that begin with ``COMMS-RES``, the first of
which names the columns (``size (B)``, ``Latency(us):p50``, ``AlgBW(GB/s)``, ``BusBW(GB/s)``).
"""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import TextIO

from commsim.collectives.semantics import DIVIDED
from commsim.measure.assemble import error
from commsim.measure.records import collective_name
from commsim.measure.rows import NOTHING, Group, LogTable, TableRow, group_is_sound

_LINE_LIMIT = 16_384
_ROW_LIMIT = 100_000
_TITLE = re.compile(r"#?\s*OSU\s+(?:MPI|NCCL|XCCL)(?:-\w+)?\s+([\w -]+?)\s+(?:Latency|Bandwidth|Test)\b")
_HEADER = re.compile(r"#\s*Size\s+(Avg Latency|Latency|Bandwidth)\s*\((us|MB/s)\)", re.IGNORECASE)
_ROW = re.compile(r"\s*(\d{1,18})\s+(\d{1,12}(?:\.\d+)?)\b(.*)")
_PARAM_ROW = re.compile(r"COMMS-RES\S*\s+(.*)")
_NP = re.compile(r"\b(?:mpirun|mpiexec|srun)\b.*?\s(?:-np|-n|--np|--ntasks)[ =](\d{1,7})\b")
_WORLD = re.compile(r"\b(?:world_size|world size|numRanks|num_ranks)\s*[:=]\s*(\d{1,7})\b", re.IGNORECASE)


def is_osu(line: str) -> bool:
    """Whether a line announces such a table."""
    return bool(_HEADER.search(line) or ("COMMS-RES" in line and "BW" in line))


def read_osu(stream: TextIO, path: Path) -> list[LogTable]:
    """The tables of such a text; LogFormatError where it has no row."""
    tables: list[LogTable] = []
    collective, n_ranks = None, None
    columns: list[str] | None = None
    unit = ""
    total = 0
    for number, line in enumerate(iter(partial(stream.readline, _LINE_LIMIT), ""), start=1):
        if match := _NP.search(line) or _WORLD.search(line):
            n_ranks = int(match[1])
        if match := _TITLE.search(line):
            collective = collective_name(match[1].replace("All-to-All", "alltoall"))
        elif match := _HEADER.search(line):
            unit = match[2].lower()
            tables.append(LogTable(number, collective=collective, n_ranks=n_ranks))
            columns = None
        elif "COMMS-RES" in line and "BW" in line:
            columns = _columns(line)
            name = re.search(r"COMMS-RES-(\w+?)-", line)
            tables.append(LogTable(number, collective=collective_name(name[1]) if name else None, n_ranks=n_ranks))
        elif tables and not line.lstrip().startswith("#"):
            row = _param(line, number, columns) if columns else _osu(line, number, unit, tables[-1])
            if row is not None:
                tables[-1].rows.append(row)
                total += 1
            elif re.match(r"\s*(?:COMMS-RES\S*\s+)?\d+\s+[\d.]", line):
                tables[-1].skipped_lines += 1
            if total > _ROW_LIMIT:
                raise error(path, number, f"more than {_ROW_LIMIT:,} rows; expected the log of one test")
    if not any(row.size > 0 for table in tables for row in table.rows):
        raise error(path, tables[0].line if tables else 1, "a table without rows")
    return tables


def _osu(line: str, number: int, unit: str, table: LogTable) -> TableRow | None:
    match = _ROW.match(line)
    if match is None or re.match(r"\s*[A-Za-z_]", match[3]) or not line.endswith("\n"):
        return None
    size, value = int(match[1]), float(match[2])
    arrays = table.n_ranks if table.collective in DIVIDED else 1
    if value <= 0 or size >= 2**62 or arrays is None:
        return None
    time_us, whole = size / value if unit == "mb/s" else value, size * arrays
    if not 0 < time_us < 1e12:
        return None
    return TableRow(number, whole, None, "", "", None, Group(time_us, math.nan, math.nan), NOTHING)


def _columns(line: str) -> list[str]:
    """Names of PARAM's columns; ``p50`` under ``Latency(us)`` is called ``p50``."""
    match = _PARAM_ROW.search(line)
    return [name.strip().lower() for name in re.split(r"\s{2,}|\t+", match[1].strip())] if match else []


def _param(line: str, number: int, columns: list[str]) -> TableRow | None:
    match = _PARAM_ROW.search(line)
    if match is None or not line.endswith("\n"):
        return None
    words = match[1].split()
    if len(words) != len(columns):
        return None
    values = dict(zip(columns, words, strict=True))

    def number_of(*parts: str) -> float:
        name = next((c for c in columns if all(part in c for part in parts)), None)
        try:
            return float(values[name]) if name else math.nan
        except ValueError:
            return math.nan

    size, time_us = number_of("size"), number_of("p50")
    if not (size > 0 and size == int(size) and size < 2**62):
        return None
    group = Group(time_us, number_of("algbw"), number_of("busbw"))
    return TableRow(number, int(size), None, "", "", None, group, NOTHING) if group_is_sound(int(size), group) else None
