"""The index of a folder of measured logs: ``INDEX_*.csv``, a row per log, the conditions of each in columns.

``docs/guides/validate.md`` describes the columns. A blank means that the source does not state it; `REQUIRED` must be
filled in.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from commsim.errors import LogFormatError, UnitError
from commsim.measure.records import collective_name
from commsim.nccl.parameters import NETWORKS
from commsim.nccl.predict import NCCL_TESTS_ITERATIONS
from commsim.nccl.registered import REGISTERED
from commsim.nccl.version import Version, parse_version
from commsim.units import parse_bandwidth
from study.releases import current_release, log_date

REQUIRED = ("collective", "n_ranks", "machine", "nodes", "gpus_per_node", "launch")
"""Columns without which a log cannot be predicted."""

NVLINK = "nvlink"
"""The network of hosts that are trays of one rack: NVLink joins them, so that NCCL sees a node."""

NETWORK_KINDS = tuple(name for name in NETWORKS if name != "slingshot_software")  # which is Slingshot by an env's word
LAUNCHES = ("process_per_gpu", "thread_per_gpu", "one_process")
_HEALTHY = {"yes": "yes", "true": "yes", "1": "yes", "no": "no", "false": "no", "0": "no", "degraded": "no"}
_MOST_CHARACTERS = 1 << 16
_CELL_CHARACTERS = 4096
_COUNT = re.compile(r"([1-9]\d{0,6})(?:\.0*)?", re.ASCII)
_RATE = re.compile(r"\d{1,6}(?:\.\d{1,6})?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class IndexRow:
    """A row of an index, read: counts as numbers, Gb/s as bytes/s; None where the source states nothing."""

    slug: str
    collective: str
    n_ranks: int
    machine: str
    nodes: int  # hosts
    gpus_per_node: int
    launch: str
    healthy: str = "unknown"
    system: str = ""
    network: str | None = None
    nics_per_node: int | None = None
    nic_bandwidth: float | None = None  # bytes/s
    version: Version | None = None
    iterations: int = NCCL_TESTS_ITERATIONS
    env: dict[str, str] = field(default_factory=dict)
    registered: str = REGISTERED[0]
    notes: tuple[str, ...] = ()  # what was assumed


def index_rows(path: Path) -> Iterator[dict[str, str]]:
    """The cells of every row of an index, by column; separated by commas, semicolons, tabs or bars.

    Optional columns that are missing are blank; `place` is file:line. Raises LogFormatError with the line where the
    file is no such table or lacks a required column.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        head = stream.readline(_MOST_CHARACTERS)
        separator = max(",;\t|", key=head.count)
        stream.seek(0)
        lines = csv.reader(stream, delimiter=separator, skipinitialspace=True)
        try:
            names = [name.strip().lower().replace(" ", "_") for name in next(lines, [])]
            missing = [name for name in ("slug", *REQUIRED) if name not in names]
            if missing:
                raise LogFormatError(
                    f"{path}:1: found the columns {', '.join(names)[:400]}, expected {', '.join(missing)} as well "
                    "(docs/guides/validate.md says how to fill them in)"
                )
            for cells in lines:
                row = {name: cell.strip()[:_CELL_CHARACTERS] for name, cell in zip(names, cells, strict=False)}
                if any(row.values()):
                    slug, place = row.get("slug", "").removesuffix(".csv"), f"{path.name}:{lines.line_num}"
                    yield {**row, "slug": slug, "place": place}
        except csv.Error as fault:
            raise LogFormatError(f"{path}:{lines.line_num}: {fault}") from None


def parse_row(cells: Mapping[str, str]) -> IndexRow:
    """The row that cells say; raises LogFormatError naming file:line and column of the first cell at fault."""
    if not cells["slug"]:
        raise LogFormatError("the row has no slug")
    if not cells["slug"].strip(".") or re.search(r"[/\\\0]", cells["slug"]):
        raise LogFormatError("the slug is no file name")
    for column in REQUIRED:
        if not cells.get(column, ""):
            raise cell_fault(cells, column, "a value (docs/guides/validate.md)")
    collective = collective_name(cells["collective"])
    if collective is None:
        raise LogFormatError(f"unknown collective {cells['collective'][:40]!r}")
    ranks, nodes, per_node = (count(cells, column) or 1 for column in ("n_ranks", "nodes", "gpus_per_node"))
    if ranks != nodes * per_node:
        raise cell_fault(cells, "n_ranks", f"{nodes * per_node}, nodes times gpus_per_node")
    network, version = cells.get("network", "") or None, cells.get("nccl_version", "")
    if network is not None and network not in (*NETWORK_KINDS, NVLINK):
        raise cell_fault(cells, "network", f"one of {', '.join((*NETWORK_KINDS, NVLINK))}")
    if cells["launch"] not in LAUNCHES:
        raise cell_fault(cells, "launch", f"one of {', '.join(LAUNCHES)}")
    registered = cells.get("registered", "") or REGISTERED[0]
    if registered not in REGISTERED:
        raise cell_fault(cells, "registered", f"one of {', '.join(REGISTERED)}")
    rate = cells.get("nic_gbps", "")
    if rate and (not _RATE.fullmatch(rate) or float(rate) == 0):
        raise cell_fault(cells, "nic_gbps", "Gb/s of one NIC, such as 400")
    release, note = _version(cells, version)
    return IndexRow(
        slug=cells["slug"],
        collective=collective,
        n_ranks=ranks,
        machine=cells["machine"],
        nodes=nodes,
        gpus_per_node=per_node,
        launch=cells["launch"],
        healthy=_HEALTHY.get(cells.get("healthy", "").lower(), "unknown"),
        system=cells.get("system", ""),
        network=network,
        nics_per_node=count(cells, "nics_per_node"),
        nic_bandwidth=parse_bandwidth(f"{rate} Gb/s") if rate else None,
        version=release,
        iterations=count(cells, "iterations") or NCCL_TESTS_ITERATIONS,
        env=variables(cells),
        registered=registered,
        notes=(*((note,) if note else ()), *_assumed(cells)),
    )


def count(cells: Mapping[str, str], column: str) -> int | None:
    """The whole number of a cell, None where it is blank."""
    text = cells.get(column, "")
    match = _COUNT.fullmatch(text)
    if text and match is None:
        raise cell_fault(cells, column, "1 to 7 digits above 0")
    return int(match[1]) if match else None


def variables(cells: Mapping[str, str]) -> dict[str, str]:
    """The environment of a row: the column ``env``, ``NAME=value`` separated by semicolons."""
    env: dict[str, str] = {}
    for part in cells.get("env", "").split(";"):
        name, equals, value = part.strip().partition("=")
        if not part.strip():
            continue
        if not equals or not _VARIABLE.fullmatch(name):
            raise cell_fault(cells, "env", f"NAME=value separated by semicolons, not {part.strip()[:40]!r}")
        env[name] = value
    return env


def assumed(cells: Mapping[str, str]) -> list[str]:
    """The columns that the row fills in though its source does not state them: the column ``assumed``."""
    return cells.get("assumed", "").replace(";", " ").replace(",", " ").split()


def _assumed(cells: Mapping[str, str]) -> Iterable[str]:
    words = {
        "nccl_version": "version not stated: taken as {}",
        "network": "network not named: taken as {}",
        "nics_per_node": "NIC count not stated: taken as {}",
        "nic_gbps": "NIC rate not stated: taken as {} Gb/s",
    }
    for column in assumed(cells):
        yield words.get(column, f"{column} not stated: taken as {{}}").format(cells.get(column, ""))


def _version(cells: Mapping[str, str], text: str) -> tuple[Version | None, str]:
    """The NCCL release of a row, and a note where it is the one that was current on the log's date, or none."""
    if text:
        try:
            return parse_version(text), ""
        except UnitError:
            raise cell_fault(cells, "nccl_version", "a release such as 2.26.2") from None
    day = log_date(cells.get("date", ""))
    if day is None:
        return None, "neither version nor date stated"
    return current_release(day), f"version not stated: the release current on {day.isoformat()}"


def cell_fault(cells: Mapping[str, str], column: str, expected: str) -> LogFormatError:
    """The error of a cell: file:line and column, what was found and what was expected."""
    value = cells.get(column, "")
    shown = repr(value[:40]) if value else "a blank cell"
    return LogFormatError(f"{cells.get('place', '')} {column}: found {shown}, expected {expected}".strip())
