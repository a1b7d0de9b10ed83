"""nccl-tests text logs, read line by line; the header line decides what the columns mean.

Not a fixed-column reader: redop and root come and go between versions, the error column has two names, a
group may be missing, launchers put prefixes before every line, and other programs write between the rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from commsim.measure.assemble import NoRows, error
from commsim.measure.log_run import LogRun
from commsim.measure.rows import ITEMSIZE, NOTHING, Group, LogTable, TableRow, group_is_sound, size_is_sound

_LINE_LIMIT = 16_384  # characters; longer lines are no table rows
_HEADER_WITHIN = 64 * 2**20  # characters: a log whose table starts later than this is taken for something else
_LINES_BEFORE = 1_000_000  # lines without a table
_ROW_LIMIT = 100_000
_TABLE_LIMIT = 1024
_MOST_WRONG = 2.0**63

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_DTYPES = "|".join(sorted(ITEMSIZE, key=len, reverse=True))
_ROW = re.compile(rf"(?<![^\s:>\]|])(\d{{1,20}})\s+(\d{{1,20}})\s+({_DTYPES})(?=\s)")
_HEADER = re.compile(r"\bsize\s+count\s+type\s")
_FAILURE = re.compile(r"(Test (?:NCCL|CUDA) failure.*|(?:CUDA|NCCL) error.*|unhandled .* error.*)", re.IGNORECASE)
_GROUP_COLUMNS = {"time", "cputime", "algbw", "busbw", "#wrong", "error", "i_min", "i_max", "i_p99", "i_cv%"}
_NUMBER_WORD = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


@dataclass
class HeaderColumns:
    """What the header line says: leading columns, groups, how far right of `size` the time columns end."""

    has_redop: bool
    has_root: bool
    groups: list[dict[str, int]]  # name -> index within the group, with "" -> number of columns
    time_ends: list[int]


def read_log(stream: TextIO, path: Path) -> list[LogTable]:
    """The tables of an nccl-tests text log, each with what the log says about its run.

    Raises LogFormatError where no header line or no row can be found; lines that look like rows but do not
    agree with their header or with themselves are counted in `skipped_lines`.
    """
    run, tables, columns = LogRun(), list[LogTable](), None
    failure, binary, debug = "", False, False
    number = early = total = characters = 0
    for number, line in enumerate(_lines(stream), start=1):
        characters += len(line)
        binary, debug = binary or "\0" in line, debug or "NCCL INFO" in line
        if not tables and characters > _HEADER_WITHIN:
            raise error(path, number, "no header line (size count type ... time algbw busbw) in the first 64 MiB")
        if not tables and number > _LINES_BEFORE:
            raise error(path, number, f"no header line (size count type ...) in the first {_LINES_BEFORE:,} lines")
        if "algbw" in line and _HEADER.search(line):
            columns = read_header(line)
            tables.append(_table(run, number, columns))
            if len(tables) > _TABLE_LIMIT:
                raise error(path, number, f"more than {_TABLE_LIMIT:,} tables; expected the log of some tests")
            continue
        if not tables or columns is None:
            if _ROW.search(line):
                early += 1
                if tables:
                    tables[-1].skipped_lines += 1
            else:
                run.listen(line)
            continue
        rows, skipped = read_rows(line, number, columns)
        tables[-1].rows += rows
        tables[-1].skipped_lines += skipped
        total += len(rows)
        if total > _ROW_LIMIT:
            raise error(path, number, f"more than {_ROW_LIMIT:,} rows; expected the log of one test")
        if not rows and not skipped:
            run.listen(line)
            match = _FAILURE.search(line)
            failure = failure or (match[1][:160] if match else "")
    if not tables:
        raise error(path, 1 if number else 0, _no_table(number, early, binary, debug))
    for table in tables:  # NCCL says what it uses when it starts, which may be below the header
        table.conditions = run.network() | table.conditions
    if not any(row.size > 0 for table in tables for row in table.rows):
        lines = sum(table.skipped_lines for table in tables)
        like = "1 line that looks like a row does" if lines == 1 else f"{lines} lines that look like rows do"
        why = f"; {like} not agree with it" if lines else ""
        tables[0].skipped_lines = lines
        reason = f" (the log says: {failure})" if failure else ""
        raise NoRows(path, tables[0], f"a table without rows: the run ended before its first result{why}{reason}")
    return tables


def _no_table(lines: int, early: int, binary: bool, debug: bool) -> str:
    if lines == 0:
        return "an empty file, expected an nccl-tests log"
    if binary:
        return "binary data, expected the text of an nccl-tests log"
    expected = "expected an nccl-tests table with its header line (size count type ... time algbw busbw)"
    if early:
        return f"found {early} lines that look like rows but no readable header line; {expected}"
    if debug:
        return (
            f"found NCCL's debug log and no table; {expected}. What NCCL chose can be read from such a log: "
            "commsim run ... library.graph=FILE"
        )
    return f"found {lines} lines and no header line; {expected}"


def _lines(stream: TextIO) -> Iterator[str]:
    """Lines without colour codes; what exceeds the limit of one line is dropped, so memory stays bounded."""
    while line := stream.readline(_LINE_LIMIT):
        rest = line
        while len(rest) == _LINE_LIMIT and not rest.endswith("\n"):
            rest = stream.readline(_LINE_LIMIT)
        yield _ANSI.sub("", line) if "\x1b" in line else line


def read_header(line: str) -> HeaderColumns | None:
    """The columns that a header line names, or None where it is damaged."""
    match = _HEADER.search(line)
    if match is None:
        return None
    text = line[match.start() :].rstrip()
    names = text.split()
    starts = [i for i, name in enumerate(names) if name in ("time", "cputime")]
    if not starts or names[3 : starts[0]] not in ([], ["redop"], ["root"], ["redop", "root"]):
        return None
    groups: list[dict[str, int]] = []
    for first, end in zip(starts, [*starts[1:], len(names)], strict=True):
        part = names[first:end]
        if part[1:3] != ["algbw", "busbw"] or len(groups) == 2:
            return None
        if end == len(names):  # a timestamp, or columns of other programs, may follow the last group
            part = part[: next((i for i, name in enumerate(part) if name not in _GROUP_COLUMNS), None)]
        groups.append({"": len(part), **{name: i for i, name in enumerate(part)}})
    size_end = len(names[0])
    ends = [m.end() - size_end for m in re.finditer(r"\b(?:cpu)?time\b", text)]
    return HeaderColumns("redop" in names[3 : starts[0]], "root" in names[3 : starts[0]], groups, ends)


def read_rows(line: str, number: int, columns: HeaderColumns) -> tuple[list[TableRow], int]:
    """The rows in one line (two, where two writers met), and how many look like rows but cannot be read."""
    starts = list(_ROW.finditer(line))
    if not starts:
        return [], int(_looks_like_a_row(line))
    rows = []
    for match, following in zip(starts, [*starts[1:], None], strict=True):
        part = line[match.start() : following.start() if following else len(line)]
        rows.append(_row(match, part, number, columns, cut=following is not None or not line.endswith("\n")))
    readable = [row for row in rows if row is not None]
    return readable, len(rows) - len(readable)


def _row(match: re.Match[str], part: str, number: int, columns: HeaderColumns, cut: bool) -> TableRow | None:
    size, count, dtype = int(match[1]), int(match[2]), match[3]
    if not size_is_sound(size, count, dtype):
        return None
    words, redop, root = part.split()[3:], "", None
    if columns.has_redop:
        if words and _NUMBER_WORD.fullmatch(words[0]):
            redop = ""  # a blank cell: old nccl-tests print no operation where nothing is added
        else:
            redop, *words = words or [""]
            if not redop.isalpha():
                return None
    if columns.has_root:
        text, *words = words or [""]
        if not re.fullmatch(r"-?\d{1,7}", text):
            return None
        root = int(text)
    groups = _groups(size, words, part, columns, cut)
    return None if groups is None else TableRow(number, size, count, dtype, redop, root, *groups)


def _groups(size: int, words: list[str], part: str, columns: HeaderColumns, cut: bool) -> tuple[Group, Group] | None:
    """Both column groups; None where the row cannot be trusted. A group that the line cuts short is blank."""
    width = columns.groups[0][""]
    first = _group(size, words[:width], columns.groups[0], cut and len(words) <= width)
    if first is None:
        return None
    if len(columns.groups) == 1 or len(words) <= width:
        if len(columns.groups) == 2 and _is_second(part, words[0], columns):
            return NOTHING, first  # tests without out-of-place results leave the first group blank
        return first, NOTHING
    rest = words[width : width + columns.groups[1][""]]
    second = _group(size, rest, columns.groups[1], cut and len(words) <= 2 * width)
    return first, second if second is not None else NOTHING


def _group(size: int, words: list[str], names: dict[str, int], cut: bool) -> Group | None:
    if len(words) < names[""] or (cut and names[""] == 3 and len(words) == 3):
        return None
    numbers = [_number(word) for word in words[:3]]
    error_at = names.get("#wrong", names.get("error"))
    checked = None if error_at is None else words[error_at] != "N/A"
    wrong = _number(words[names["#wrong"]]) if "#wrong" in names else 0.0
    group = Group(numbers[0], numbers[1], numbers[2], checked, int(min(wrong, _MOST_WRONG)) if wrong > 0 else 0)
    if size == 0:
        return group
    return group if group_is_sound(size, group, coarse_time="e" in words[0]) else None


def _number(word: str) -> float:
    return float(word) if _NUMBER_WORD.fullmatch(word) else math.nan


def _is_second(part: str, time: str, columns: HeaderColumns) -> bool:
    """Whether the only group of a row stands under the second time column."""
    match = re.search(rf"(?<=\s){re.escape(time)}(?=\s)", part)
    if match is None:
        return False
    end = match.end() - len(part.split(maxsplit=1)[0])
    return abs(end - columns.time_ends[1]) < abs(end - columns.time_ends[0])


def _looks_like_a_row(line: str) -> bool:
    words = [w for w in line.split() if w not in (">", "|")]
    if not words or words[0].startswith("#") or "NCCL" in line or "Rank" in line:
        return False
    numbers = sum(bool(_NUMBER_WORD.fullmatch(w)) for w in words)
    return numbers >= 5 or (numbers >= 1 and all(_NUMBER_WORD.fullmatch(w) or w in ITEMSIZE for w in words))


def _table(run: LogRun, line: int, columns: HeaderColumns | None) -> LogTable:
    n_ranks = run.n_ranks()
    table = LogTable(line, collective=run.collective, n_ranks=n_ranks, ranks_from_lines=n_ranks is not None)
    table.conditions = run.said()
    if columns is not None:
        table.has_redop, table.has_root = columns.has_redop, columns.has_root
    return table
