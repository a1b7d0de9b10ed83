"""Which rank is where, from the lines of a log by which nccl-tests says so before each of its tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_RANKS = 1 << 20
_RANK = re.compile(
    r"Rank\s+(\d{1,8})\s+(?:Group\s+(\d{1,8})\s+)?Pid\s+\d{1,10}\s+on\s+(\S{1,100})\s+device\s+(\d{1,4})\s"
)
_START = re.compile(r"nThread\s+\d{1,5}\s+nGpus\s+\d{1,5}\b")
_MARK = re.compile(r"^# commsim doctor: (\{.*\})\s*$")


@dataclass
class RunSection:
    """The lines of one run of nccl-tests in a log, from `line` on.

    `ranks`: rank to its communicator's number, host and device; `mark`: what a script of ours wrote before the run.
    """

    line: int
    lines: list[str] = field(default_factory=list)
    ranks: dict[int, tuple[int, str, int]] = field(default_factory=dict)
    mark: str = ""


def run_sections(text: str) -> Iterator[RunSection]:
    """The runs of a log, one after the other; a log of one run is one section."""
    section, mark, begun = RunSection(1), "", False
    for number, line in enumerate(text.splitlines(), 1):
        if marked := _MARK.match(line):
            mark = marked[1]
            continue
        if _START.search(line):
            if begun:
                yield section
                section = RunSection(number)
            begun, section.mark, mark = True, mark, ""
        if (rank := _RANK.search(line)) and len(section.ranks) < MOST_RANKS:
            section.ranks.setdefault(int(rank[1]), (int(rank[2] or 0), rank[3], int(rank[4])))
        section.lines.append(line)
    section.mark = section.mark or mark
    yield section
