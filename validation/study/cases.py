"""Which machine, launch, version and environment a measured log stands for.

A log is a row of an ``INDEX_*.csv`` (`study.index`) and the table ``<slug>.csv`` beside it. What its columns
leave blank follows by one rule (docs/guides/validate.md): of the machine `study.machines`, of the version
the release that was current on the log's date, of the environment what the network's plugin sets or asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from commsim.document import read_documents, validate
from commsim.document.types import show, suggest
from commsim.errors import CommsimError, LogFormatError
from commsim.nccl.plugins import PLUGINS, variables
from commsim.nccl.version import ASSUMED, parse_version
from study.case import Case
from study.index import NETWORK_KINDS, NVLINK, IndexRow, index_rows, parse_row
from study.machines import NamedMachine, host_of, machine_of, plugin_of
from study.releases import log_date, release_day

CLASSES = ("one node", "IB/RoCE", "Slingshot/EFA/cloud plugin")
"""Fabric classes that errors are reported by."""


def _known_preset(name: str) -> str:
    from commsim.topology.presets import preset_names

    if name not in preset_names():
        raise ValueError(f"found the unknown preset {show(name)}, {suggest(name, preset_names())}")
    return name


def _release(text: str) -> str:
    parse_version(text)
    return text


class CaseRow(BaseModel):
    """A row of a case file: the logs it speaks of, and what replaces their columns."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    slugs: list[str] = Field(min_length=1)
    system: str | None = None
    preset: Annotated[str, AfterValidator(_known_preset)] | None = None
    network: str | None = Field(default=None, pattern=f"^({'|'.join((*NETWORK_KINDS, NVLINK))})$")
    nodes: int | None = Field(default=None, ge=1)
    gpus_per_node: int | None = Field(default=None, ge=1)
    launch: str | None = Field(default=None, pattern="^(one_process|thread_per_gpu|process_per_gpu)$")
    version: Annotated[str, AfterValidator(_release)] | None = None
    env: dict[str, str] | None = None

    def over(self, cells: dict[str, str]) -> dict[str, str]:
        """The cells of an index row with what this row says instead."""
        columns = {"preset": "machine", "version": "nccl_version"}
        given = {k: v for k, v in self.model_dump(exclude={"slugs", "env"}).items() if v is not None}
        cells = cells | {columns.get(name, name): str(value) for name, value in given.items()}
        return cells if self.env is None else cells | {"env": ";".join(f"{k}={v}" for k, v in self.env.items())}


class CaseFile(BaseModel):
    """``systems:`` and the rows."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    systems: list[CaseRow]


def fabric_class(network: str, nodes: int) -> str:
    """The class of `CLASSES` that a log belongs to."""
    if nodes == 1:
        return CLASSES[0]
    return CLASSES[1] if network in ("infiniband", "roce") else CLASSES[2]


def read_case_rows(paths: Iterable[Path]) -> list[CaseRow]:
    """The rows of case files, in order; the first match of a slug wins."""
    rows: list[CaseRow] = []
    for path in paths:
        for document in read_documents(path):
            rows += validate(CaseFile, document).systems
    return rows


def load_cases(folders: Sequence[Path], case_files: Sequence[Path] = ()) -> list[Case]:
    """A case for every slug in the ``INDEX_*.csv`` of the folders; of a slug that is listed twice the first row counts.

    The case of such a slug says so, by the folders' names; a folder that is named twice is read once.
    """
    rows = read_case_rows(case_files)
    cases: dict[str, Case] = {}
    for folder in {f.resolve(): f for f in folders}.values():
        indexes = sorted(folder.glob("INDEX_*.csv"))
        if not folder.is_dir():
            raise LogFormatError(f"{folder}: found no such folder, expected one of logs and their INDEX_*.csv")
        if not indexes:
            raise LogFormatError(f"{folder}: found no INDEX_*.csv, expected the index of the logs beside them")
        for cells in (cells for index in indexes for cells in index_rows(index)):
            case = case_of(cells, folder, rows)
            first = cases.setdefault(case.slug, case)
            if first is case:
                continue
            again = "" if first.path.parent == folder else f" (again in {folder.name})"
            twice = f"the slug is listed more than once{again}; its first row in {first.path.parent.name} counts"
            if twice not in first.notes:
                cases[case.slug] = replace(first, notes=(*first.notes, twice))
    return list(cases.values())


def case_of(cells: dict[str, str], folder: Path, rows: Sequence[CaseRow] = ()) -> Case:
    """The case of one index row; what the first matching case row says replaces its columns.

    A row that cannot be read has the reason as its fault; one without a slug is named by its place.
    """
    slug = cells["slug"] or cells.get("place", "")
    over = next((r for r in rows if any(fnmatchcase(slug, p) for p in r.slugs)), None)
    cells = over.over(cells) if over is not None else cells
    path = folder / f"{slug}.csv"
    try:
        row = parse_row(cells)
    except CommsimError as error:
        return _faulty(cells, slug, path, str(error))
    case = Case(
        slug=slug,
        path=path,
        collective=row.collective,
        n_ranks=row.n_ranks,
        nodes=row.nodes,
        gpus_per_node=row.gpus_per_node,
        system=row.system or slug,
        healthy=row.healthy,
        machine={},
        version=row.version,
        launch="one_process" if row.launch == "one_process" else "process_per_gpu",  # threads launch side by side
        env=row.env,
        notes=row.notes,
        iterations=row.iterations,
        registered=row.registered,
        row=cells,
    )
    try:
        host = host_of(row.machine, folder)
    except CommsimError as error:
        return replace(case, fault=f"{cells.get('place', '')} machine: {error}".strip())
    env, notes = _environment(row, host, cells)
    try:
        machine, network, more = machine_of(row, host, env)
    except CommsimError as error:
        return replace(case, env=env, fault=str(error))
    # Of plugins `env` says all there is to say, as of the log's day.
    fabric = machine.get("fabric")
    machine["fabric"] = {**(fabric if isinstance(fabric, dict) else {}), "plugin": "none"}
    system = row.system or _system(cells, row.machine, network)
    return replace(case, machine=machine, env=env, system=system, notes=(*row.notes, *notes, *more))


def _faulty(cells: dict[str, str], slug: str, path: Path, fault: str) -> Case:
    """A row that cannot be read: it stays in the list with its reason."""
    ranks, nodes, per_node = (_number(cells.get(k, "")) for k in ("n_ranks", "nodes", "gpus_per_node"))
    return Case(
        slug=slug,
        path=path,
        collective=cells.get("collective", ""),
        n_ranks=ranks,
        nodes=nodes,
        gpus_per_node=per_node,
        system=cells.get("system", "") or slug,
        healthy="unknown",
        machine={},
        version=None,
        launch="",
        env={},
        fault=fault,
        row=cells,
    )


def _environment(row: IndexRow, host: NamedMachine, cells: dict[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment of a log: what its row states, then what the network's plugin of its day sets; and a note."""
    plugin = plugin_of(host, row.network)
    # Of a log without a date the plugin is as old as its NCCL.
    day = log_date(cells.get("date", "")) or release_day(row.version or ASSUMED)
    added = {k: v for k, v in variables(plugin, host.gpu, row.nodes, day).items() if k not in row.env}
    if not added:
        return row.env, ()
    note = f"not stated, as {PLUGINS[plugin]} has it: {', '.join(f'{k}={v}' for k, v in added.items())}"
    return row.env | added, (note,)


def _system(cells: dict[str, str], machine: str, network: str) -> str:
    """The system of a row that names none: where it was published, the machine and the network."""
    host = re.match(
        r"https?://(?:www\.)?(?:(?:raw\.)?github(?:usercontent)?\.com/)?([^/]+)", cells.get("source_url", "")
    )
    return f"{host[1] if host else cells['slug'].rsplit('_', 2)[0]}:{machine}:{network}"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 1
