"""What NCCL's RAS says of a running job: ``ncclras -f json`` and the text of ``ncclras``.

Formats: src/ras/client_support.cc of NCCL 2.30.7 (jsonWriteRankData, rasClientRunComms). A report holds how many
collectives of each kind every rank has launched, and no times; the text names the ranks of the smaller groups alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TextIO

from commsim.dumps.call import CallGroup, Count, Dump, fault, text_of, whole
from commsim.measure.records import collective_name

KIND = "ncclras"
_MOST_CHARACTERS = 64 << 20
_MOST_RANKS = 1 << 20
_MOST_COUNTS = 500_000

_COMMUNICATOR = re.compile(r"#(\d{1,9}-\d{1,9}) \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)$")
_COUNTS = re.compile(r"\s+Communicator ranks have different (\w{1,20}) operation counts$")
_SEVERAL = re.compile(r"\s+(\d{1,7}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)$")
_ONE = re.compile(
    r"\s+Rank (\d{1,10})(?: has (?:launched up to operation (\d{1,18})|(not launched any operations)|status (\w{1,12}))"
    r"| reported ([^-]{1,80}?))? -- (.{0,200})$"
)


def read_ras_json(stream: TextIO, path: Path) -> Dump:
    """The counts and the troubles of a report in JSON."""
    text = stream.read(_MOST_CHARACTERS + 1)
    if len(text) > _MOST_CHARACTERS:
        raise fault(path, f"found more than {_MOST_CHARACTERS >> 20} MiB, expected a report of ncclras")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        raise fault(path, f"found no JSON: {str(error)[:100]}; expected a report of ncclras -f json", line) from None
    listed = document.get("communicators") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise fault(path, "found no list of communicators, expected a report of ncclras -f json")
    groups, counts = [], []
    for one in listed:
        if not isinstance(one, dict):
            continue
        name = text_of(one.get("hash"), 40)
        groups.append(CallGroup(name))
        for rank in _objects(one.get("ranks")):
            counts += _counts_of(rank, name)
        for rank in _objects(one.get("missing_ranks")):
            counts += _missing(rank, name)
        if len(counts) > _MOST_COUNTS:
            raise fault(path, f"found more than {_MOST_COUNTS:,} counts; ask for one communicator")
    return _dump(path, groups, counts, ())


def read_ras_text(stream: TextIO, path: Path) -> Dump:
    """The counts and the troubles of the text for people."""
    groups: dict[str, CallGroup] = {}
    counts: list[Count] = []
    group, kind, operation, launched = "", "", "", 0
    for number, whole_line in enumerate(iter(lambda: stream.readline(4096), ""), start=1):
        line = whole_line.rstrip("\r\n")
        if not line.isprintable():
            continue
        if number > _MOST_COUNTS:
            raise fault(path, f"found more than {_MOST_COUNTS:,} lines, expected a report of ncclras", number)
        if (head := _COMMUNICATOR.match(line)) is not None:
            group, kind, operation = head[2], head[3], ""
            groups.setdefault(group, CallGroup(group, f"#{head[1]}"))
        elif (of := _COUNTS.match(line)) is not None:
            operation = collective_name(of[1]) or of[1]
        elif (several := _SEVERAL.match(line)) is not None and group and operation:
            launched = int(several[2] or 0)
            counts.append(Count(-1, group, operation, launched, f"{several[1]} ranks"))
        elif (one := _ONE.match(line)) is not None and group:
            counts.append(_named(one, group, kind, operation, launched))
    notes = () if counts else ("the report says of no communicator that anything is wrong",)
    return _dump(path, list(groups.values()), counts, notes)


def _dump(path: Path, groups: list[CallGroup], counts: list[Count], notes: tuple[str, ...]) -> Dump:
    ranks = tuple(sorted({c.rank for c in counts if c.rank >= 0}))
    return Dump(path, KIND, (), groups, counts, ranks, notes=notes)


def _named(one: re.Match[str], group: str, kind: str, operation: str, launched: int) -> Count:
    """A rank that the text names under a communicator."""
    rank, place = min(int(one[1]), _MOST_RANKS), one[6].strip()
    if kind == "INCOMPLETE":
        return Count(rank, group, "", 0, place, "its process did not answer")
    if kind == "ERROR":
        return Count(rank, group, "", 0, place, f"it reported {(one[5] or 'an error').strip()}")
    if one[4] or not operation:
        return Count(rank, group, "", 0, place, f"its status is {one[4] or 'another one'}")
    own = 0 if one[3] else int(one[2]) if one[2] else launched
    return Count(rank, group, operation, own, place)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value[:_MOST_RANKS] if isinstance(one, dict)] if isinstance(value, list) else []


def _process(rank: dict[str, Any]) -> str:
    return f"GPU {whole(rank.get('cuda_dev'))} of process {whole(rank.get('pid'))} on {text_of(rank.get('host'))}"


def _counts_of(rank: dict[str, Any], group: str) -> list[Count]:
    number, launched = whole(rank.get("rank"), _MOST_RANKS), rank.get("collective_counts")
    if number is None:
        return []
    status = rank.get("status")
    status = status if isinstance(status, dict) else {}
    process, trouble = _process(rank), ""
    if status.get("abort_flag") is True:
        trouble = "it is aborting"
    elif whole(status.get("async_error")) not in (0, 7, None):  # ncclSuccess, ncclInProgress (nccl.h)
        trouble = f"it has the error {whole(status.get('async_error'))} (ncclResult_t)"
    elif whole(status.get("init_state")) not in (0, None):
        trouble = "it has not finished initialising"
    counts = [Count(number, group, "", 0, process, trouble)] if trouble else []
    for name, value in list(launched.items())[:64] if isinstance(launched, dict) else ():
        known, times = collective_name(text_of(name)), whole(value)
        if known not in (None, "send_recv") and times is not None:
            counts.append(Count(number, group, str(known), times, process))
    return counts


def _missing(rank: dict[str, Any], group: str) -> list[Count]:
    number, status = whole(rank.get("rank"), _MOST_RANKS), rank.get("status")
    if number is None:
        return []
    dead = isinstance(status, dict) and status.get("considered_dead") is True
    return [
        Count(number, group, "", 0, _process(rank), "its process is dead" if dead else "its process did not answer")
    ]
