"""Which machine, launch, version and environment a measured log stands for.

A log is a row of an ``INDEX_*.csv`` and the table ``<slug>.csv`` beside it. What a case file (``validation/cases/``)
does not say of it follows from the row by one rule, the same for logs never seen (docs/guides/validate.md):

* machine: `commsim.accuracy.machines`; ranks from the row's ``n_nodes`` and ``gpus_per_node``;
* version: the one stated, else the release that was current on the log's date;
* launch: the column ``launch``, else keywords of notes and environment, else one process for a log that knows only one
  node and no network (``-g N``), and a process per GPU for any other (MPI);
* place of the NICs: the column ``nic_apart``, else beside the GPUs unless network or notes say otherwise;
* iterations: the column ``iterations``, else a number of "iters" in notes or environment, else nccl-tests' own 20 (-n);
* environment: every ``NCCL_NAME=value`` of the column ``env``, and what the network's plugin sets or asks for besides;
* reduction in the network: where the row names SHARP as in use.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from commsim.accuracy.machines import (
    OF_CRAY,
    base_machine,
    driver_patched,
    full_node,
    network_blocks,
    network_kind,
    node_parts,
    on_another_root,
    one_nvlink_domain,
    peer_to_peer,
    wire,
)
from commsim.accuracy.releases import log_date, release_day, version_of
from commsim.document import read_documents, validate
from commsim.document.types import show, suggest
from commsim.errors import CommsimError, LogFormatError, TopologyError
from commsim.measure.records import collective_name
from commsim.nccl.environment import PATHS
from commsim.nccl.operation import SUM, Operation
from commsim.nccl.plugins import PLUGINS, variables
from commsim.nccl.predict import NCCL_TESTS_ITERATIONS
from commsim.nccl.version import ASSUMED, Version, parse_version
from commsim.resources import data_root

if TYPE_CHECKING:
    from commsim.nccl.graph_file import GraphFile
    from commsim.topology.graph import Topology

CLASSES = ("one node", "IB/RoCE", "Slingshot/EFA/cloud plugin")
"""Fabric classes that errors are reported by."""

_ONE_PROCESS = re.compile(
    r"\bsingle[- ]process\b|\bone process (?:driving|drives)\b|(?<!\S)-g ?(?:[2-9]|\d\d)\b|\bnGpus (?:[2-9]|\d\d)\b",
    re.I,
)
_PER_GPU = re.compile(
    r"\bprocess per GPU\b|\b(?:one|1) GPU per process\b|\brank per (?:pid|process)\b|\bsrun\b"
    r"|\btorch(?:run|\.distributed)\b",
    re.I,
)
_MPI = re.compile(r"\bmpi(?:run|exec|job)\b", re.I)
_NO_MPI = re.compile(
    r"\b(?:no|not|without)\b[^.;,]{0,20}\bmpi(?:run|exec|job)|\bmpi\w+[^.;,]{0,20}\b(?:available|nodes)\b", re.I
)
_PER_NODE = re.compile(r"\b(one|\d{1,3}) process(?:es)? per node\b", re.I)
_PROCESSES = re.compile(r"(?<!\S)-np (\d{1,6})\b|\bmpi(?:run|exec) -n (\d{1,6})\b", re.I)
_THREADS = re.compile(r"\b\d+ threads x 1 GPUs?\b|\bnThread (?:[2-9]|\d\d)\b|(?<!\S)-t (?:[2-9]|\d\d)\b", re.I)
_EC2 = re.compile(r"\bp[56][a-z]*(?:-\w+)?\.\d+xlarge\b")
_GIB = re.compile(r"\bgIB\b", re.I)
_TCPXO = re.compile(r"TCPXO|FasTrak", re.I)
_ITERATIONS = re.compile(r"(?<![\d.,])(?<!warmup )(?<!warm-up )(\d{1,6}) iter(?:ation)?s\b(?!/|,? (?:of )?warm)", re.I)
_VARIABLE = re.compile(r"\b(NCCL_[A-Z0-9_]+|FI_CXI_RX_MATCH_MODE)=(?:\"([^\"]*)\"|'([^']*)'|([^\s()]+))")
_SHARP = re.compile(r"\bSHARP")
_HEALTHY = {"yes": "yes", "true": "yes", "1": "yes", "no": "no", "false": "no", "0": "no", "degraded": "no"}
_MOST_CHARACTERS = 1 << 16
_CELL_CHARACTERS = 4096  # read of a cell: the rule's patterns look at every pair of words
_NO_COUNT = re.compile(r"0+(?:\.|$)|\d{8}")  # nothing, or more than any job has
_NODE_LEVELS = frozenset({*PATHS, *"012345"})


def _known_preset(name: str) -> str:
    from commsim.topology.presets import preset_names

    if name not in preset_names():
        raise ValueError(f"found the unknown preset {show(name)}, {suggest(name, preset_names())}")
    return name


def _stated_version(text: str) -> str:
    parse_version(text)
    return text


class CaseRow(BaseModel):
    """A row of a case file: the logs it speaks of, and what replaces the index row's words."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    slugs: list[str] = Field(min_length=1)
    system: str | None = None
    preset: Annotated[str, AfterValidator(_known_preset)] | None = None
    network: str | None = Field(default=None, pattern="^(infiniband|roce|slingshot|efa|efa_v1|tcpx|ethernet)$")
    nodes: int | None = Field(default=None, ge=1)
    gpus_per_node: int | None = Field(default=None, ge=1)
    launch: str | None = Field(default=None, pattern="^(one_process|process_per_gpu)$")
    version: Annotated[str, AfterValidator(_stated_version)] | None = None
    env: dict[str, str] | None = None
    sharp: bool | None = None


class CaseFile(BaseModel):
    """``systems:`` and the rows."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    systems: list[CaseRow]


@dataclass(frozen=True)
class Case:
    """One measured log and the conditions it is predicted under."""

    slug: str
    path: Path
    collective: str
    n_ranks: int
    nodes: int
    gpus_per_node: int
    system: str
    healthy: str
    machine: dict[str, object]  # a `topology:` description
    version: Version | None
    launch: str
    env: dict[str, str]
    notes: tuple[str, ...] = ()
    iterations: int = NCCL_TESTS_ITERATIONS  # calls timed together
    graphs: GraphFile | None = None  # that NCCL itself found on the machine; None: they are searched
    operation: Operation = SUM
    fault: str = ""  # why no machine could be found
    row: dict[str, str] = field(default_factory=dict, compare=False)

    def topology(self) -> Topology:
        """The machine, built."""
        from commsim.document import Document
        from commsim.topology.presets import load_topology
        from commsim.topology.spec import TopologySpec

        if self.fault:
            raise TopologyError(self.fault)
        document = Document(file=f"case {self.slug}", data=self.machine, marks={})
        return load_topology(validate(TopologySpec, document, error=TopologyError), Path())


def fabric_class(network: str, nodes: int) -> str:
    """The class of `CLASSES` that a log belongs to."""
    if nodes == 1:
        return CLASSES[0]
    return CLASSES[1] if network in ("infiniband", "roce") else CLASSES[2]


def launch_in_words(row: dict[str, str]) -> str:
    """The launch that notes, environment and tool version of a row name; blank where they name none or both.

    ``one_process``: "single process", "one process driving", the flag "-g" with 2 or more. ``process_per_gpu``:
    "process per GPU", "rank per process", "srun", "torchrun", "torch.distributed". Whatever else is said, "N threads x
    1 GPU" or the flag "-t" with 2 or more are as processes, since threads launch side by side; and the number of
    processes ("mpirun -np 16", "process per node") decides where it is that of the ranks or that of the nodes. On one
    node "mpirun" without a number is of processes too.
    """
    text = " ".join(row.get(k, "") for k in ("notes", "env", "nccl_tests_version"))
    if _THREADS.search(text):
        return "process_per_gpu"
    nodes, per_node = _shape(row)
    started = {int(match[1] or match[2]) for match in _PROCESSES.finditer(text)}
    started |= {nodes * (1 if match[1].lower() == "one" else int(match[1])) for match in _PER_NODE.finditer(text)}
    if per_node > 1 and len(started) == 1 and started & {nodes, nodes * per_node}:
        return "one_process" if nodes in started else "process_per_gpu"
    one, per_gpu = bool(_ONE_PROCESS.search(text)), bool(_PER_GPU.search(text))
    per_gpu = per_gpu or (
        nodes == 1 and not one and bool(_MPI.search(_NO_MPI.sub(" ", text)))
    )  # over nodes it may start one on each
    return "" if one == per_gpu else "one_process" if one else "process_per_gpu"


def iterations_of(row: dict[str, str]) -> int | None:
    """The calls timed together that a row states: the column ``iterations``, else "100 iters" in its words."""
    stated = re.fullmatch(r"(\d{1,6})(?:\.0*)?", row.get("iterations", "").strip(), re.ASCII)
    match = stated or _ITERATIONS.search(" ".join(row.get(k, "") for k in ("notes", "env")))
    return int(match[1]) or None if match else None


def nic_apart(row: dict[str, str]) -> bool:
    """Whether NICs are on another root than the GPUs: the column ``nic_apart``, else the words of network and notes."""
    stated = row.get("nic_apart", "").strip().lower()
    if stated in ("yes", "no"):
        return stated == "yes"
    return on_another_root(f"{row.get('inter_link', '')} | {row.get('notes', '')}")


def launch_of(row: dict[str, str], *, over_nodes: bool = False) -> tuple[str, str]:
    """How the ranks of a log were started, and a note where that is not stated.

    `over_nodes`: whether its source measured several nodes too, and so had something that starts processes.
    """
    stated = row.get("launch", "").strip()
    if stated in ("one_process", "process_per_gpu"):
        return stated, ""
    said = launch_in_words(row)
    if said:
        return said, ""
    alone = row.get("n_nodes", "").strip() in ("", "1") and not row.get("inter_link", "").strip() and not over_nodes
    launch = "one_process" if alone else "process_per_gpu"
    return launch, f"launch not stated: taken as {launch}"


def environment(text: str) -> dict[str, str]:
    """The NCCL variables of an index row's words.

    ``NCCL_TREE_THRESHOLD=0``, which forbids trees (NCCL 2.4 user guide), becomes ``NCCL_ALGO=Ring``. Words that are no
    value of a variable (``NCCL_NET_GDR_LEVEL=GPUDirect``) are left out.

    >>> environment("NCCL_ALGO=Ring (from file name); aws-ofi-nccl 1.9.2")
    {'NCCL_ALGO': 'Ring'}
    """
    found = {m[1]: (m[2] or m[3] or m[4] or "").rstrip(",;.") for m in _VARIABLE.finditer(text)}
    if found.pop("NCCL_TREE_THRESHOLD", None) == "0":
        found.setdefault("NCCL_ALGO", "Ring")
    for name in ("NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL"):
        if found.get(name, "SYS").upper() not in _NODE_LEVELS:
            del found[name]
    return found


def system_of(row: dict[str, str], base: str, network: str) -> str:
    """The system of a log that no case names: who published it, the machine and the network."""
    owner = re.match(
        r"https?://(?:www\.)?(?:github\.com|raw\.githubusercontent\.com)/([^/]+)", row.get("source_url", "")
    )
    host = re.match(r"https?://([^/]+)", row.get("source_url", ""))
    who = owner[1] if owner else host[1] if host else row["slug"].rsplit("_", 2)[0]
    return f"{who}:{base}:{network}"


def read_case_rows(paths: Iterable[Path]) -> list[CaseRow]:
    """The rows of case files, in order; the first match of a slug wins."""
    rows: list[CaseRow] = []
    for path in paths:
        for document in read_documents(path):
            rows += validate(CaseFile, document).systems
    return rows


def shipped_cases() -> list[Path]:
    """The project's own case files."""
    return sorted((data_root() / "validation" / "cases").glob("*.yaml"))


def load_cases(folders: Sequence[Path], case_files: Sequence[Path] = ()) -> list[Case]:
    """A case for every slug in the ``INDEX_*.csv`` of the folders; of a slug that is listed twice the first row counts.

    The case of such a slug says so, by the folders' names; a folder that is named twice is read once.
    """
    rows = read_case_rows([*case_files, *shipped_cases()])
    cases: dict[str, Case] = {}
    for folder in {f.resolve(): f for f in folders}.values():
        indexes = sorted(folder.glob("INDEX_*.csv"))
        if not folder.is_dir():
            raise LogFormatError(f"{folder}: found no such folder, expected one of logs and their INDEX_*.csv")
        if not indexes:
            raise LogFormatError(f"{folder}: found no INDEX_*.csv, expected the index of the logs beside them")
        listed = [row for index in indexes for row in index_rows(index)]
        over_nodes = {_source(row) for row in listed if _shape(row)[0] > 1} - {""}
        for row in listed:
            case = case_of(row, folder, rows, over_nodes=_source(row) in over_nodes)
            first = cases.setdefault(case.slug, case)
            if first is case:
                continue
            again = "" if first.path.parent == folder else f" (again in {folder.name})"
            twice = f"the slug is listed more than once{again}; its first row in {first.path.parent.name} counts"
            if twice not in first.notes:
                cases[case.slug] = replace(first, notes=(*first.notes, twice))
    return list(cases.values())


def index_rows(path: Path) -> Iterator[dict[str, str]]:
    """The rows of an index, by column; separated by commas, semicolons, tabs or bars.

    Columns that are missing are blank; `place` is file:line. Raises LogFormatError with the line where the file is no
    such table.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as stream:
        head = stream.readline(_MOST_CHARACTERS)
        separator = max(",;\t|", key=head.count)
        stream.seek(0)
        lines = csv.reader(stream, delimiter=separator, skipinitialspace=True)
        try:
            names = [name.strip().lower().replace(" ", "_") for name in next(lines, [])]
            if "slug" not in names:
                raise LogFormatError(f"{path}:1: found the columns {', '.join(names)[:200]}, expected one called slug")
            for cells in lines:
                row = {name: cell.strip()[:_CELL_CHARACTERS] for name, cell in zip(names, cells, strict=False)}
                if any(row.values()):
                    slug, place = row.get("slug", "").removesuffix(".csv"), f"{path.name}:{lines.line_num}"
                    yield {**row, "slug": slug, "place": place}
        except csv.Error as fault:
            raise LogFormatError(f"{path}:{lines.line_num}: {fault}") from None


def _source(row: dict[str, str]) -> str:
    """Where a row was published, without the place in the page."""
    return row.get("source_url", "").partition("#")[0].strip()


def case_of(row: dict[str, str], folder: Path, rows: Sequence[CaseRow] = (), *, over_nodes: bool = False) -> Case:
    """The case of one index row: what the first matching case row says, the rule for the rest.

    `over_nodes`: whether other rows of its source are of several nodes (`launch_of`).
    A row without a slug is named by its place and has that as its fault.
    """
    slug = row["slug"] or row.get("place", "")
    stated = next((r for r in rows if any(fnmatchcase(slug, p) for p in r.slugs)), CaseRow(slugs=[slug]))
    notes: list[str] = []
    version, note = version_of(*(row.get(k, "") for k in ("nccl_version", "date", "notes")))
    if stated.version is not None:
        version, note = parse_version(stated.version), ""
    launch, launch_note = launch_of(row, over_nodes=over_nodes)
    if stated.launch is not None:
        launch, launch_note = stated.launch, ""
    notes += [n for n in (note, launch_note) if n]
    nodes, per_node = _shape(row)
    named = bool(_SHARP.search(f"{row.get('inter_link', '')} {row.get('env', '')}"))
    sharp = nodes > 1 and (named if stated.sharp is None else stated.sharp)
    env = environment(row.get("env", "")) if stated.env is None else dict(stated.env)
    if stated.env is None:
        plugin = _plugin(row)
        # Of a log without a date the plugin is as old as its NCCL.
        day = log_date(row.get("date", "")) or release_day(version or ASSUMED)
        its_own = variables(plugin, row.get("gpu_model", ""), nodes, day)
        if added := {name: value for name, value in its_own.items() if name not in env}:
            env |= added
            notes.append(f"not stated, as {PLUGINS[plugin]} has it: {', '.join(f'{k}={v}' for k, v in added.items())}")
    if sharp:
        env.setdefault("NCCL_COLLNET_ENABLE", "1")
    if driver_patched(row.get("intra_link", "")) and stated.env is None:
        env.setdefault("NCCL_P2P_LEVEL", "SYS")
    fault, system = "", stated.system or slug
    machine: dict[str, object] = {}
    try:
        shape = stated.nodes or nodes, stated.gpus_per_node or per_node
        base, machine, more = _machine(row, stated, env, version, *shape)
        notes += more
        fabric = machine.get("fabric")
        reduces = {"in_network_reduction": True} if sharp else {}
        # Of plugins `env` says all there is to say, as of the log's day.
        machine["fabric"] = {**(fabric if isinstance(fabric, dict) else {}), **reduces, "plugin": "none"}
        system = stated.system or base
    except CommsimError as error:
        fault = str(error)
    if not slug.strip(".") or re.search(r"[/\\\0]", slug):
        fault = "the slug is no file name"
    if _NO_COUNT.match(ranks := row.get("n_ranks", "")):  # other words are as if the cell were blank
        fault = f"{row.get('place', '')} n_ranks: found {ranks[:20]!r}, expected 1 to 7 digits above 0".strip()
    if not row["slug"]:
        fault = "the row has no slug"
    collective = collective_name(row.get("collective", ""))
    return Case(
        slug=slug,
        path=folder / f"{slug}.csv",
        collective=collective or row.get("collective", ""),
        n_ranks=_whole(row.get("n_ranks", "")) or nodes * per_node,
        nodes=nodes,
        gpus_per_node=per_node,
        system=system,
        healthy=_HEALTHY.get(row.get("healthy", "").strip().lower(), "unknown"),
        machine=machine,
        version=version,
        launch=launch,
        env=env,
        notes=tuple(notes),
        iterations=iterations_of(row) or NCCL_TESTS_ITERATIONS,
        fault=fault or ("" if collective else f"unknown collective {row.get('collective', '')[:40]!r}"),
        row=row,
    )


def _plugin(row: dict[str, str]) -> str:
    """The network's plugin that a row names (`commsim.nccl.plugins`); none where it names none."""
    link, env = row.get("inter_link", ""), row.get("env", "")
    kind = network_kind(link, env)
    if kind == "efa" or (kind is None and _EC2.search(row.get("gpu_model", ""))):
        return "aws-ofi-nccl"
    if kind == "tcpx":
        return "tcpxo" if _TCPXO.search(link) else "tcpx"
    return "gib" if _GIB.search(f"{link} {env}") else "none"


def _shape(row: dict[str, str]) -> tuple[int, int]:
    nodes, per_node, ranks = (_whole(row.get(k, "")) for k in ("n_nodes", "gpus_per_node", "n_ranks"))
    nodes = nodes or (max(1, ranks // per_node) if ranks and per_node else 1)
    return nodes, per_node or max(1, (ranks or nodes) // nodes)


def _machine(
    row: dict[str, str], stated: CaseRow, env: dict[str, str], version: Version | None, nodes: int, per_node: int
) -> tuple[str, dict[str, object], tuple[str, ...]]:
    """System by the rule, topology description, notes."""
    from commsim.topology.presets import load_preset

    knobs: dict[str, object] = {"nodes": nodes, "gpus_per_node": per_node}
    peers = peer_to_peer(row.get("intra_link", ""))
    gpu = {} if peers is None else {"gpu": {"peer_to_peer": peers}}
    if stated.preset is not None:
        blocks = network_blocks(stated.network) if stated.network and nodes > 1 else {}
        return stated.preset, {"preset": stated.preset, **knobs, **gpu, **blocks}, ()
    base = base_machine(row.get("gpu_model", ""), row.get("intra_link", ""), per_node)
    cray = OF_CRAY.get(base, base)
    if network_kind(row.get("inter_link", ""), row.get("env", "")) == "slingshot" and per_node <= full_node(cray):
        base = base if "NVSwitch" in row.get("intra_link", "") else cray
    ranks = nodes * per_node
    full = full_node(base)
    if base in ("gb200-nvl72", "gb300-nvl72") and nodes > 1:
        if one_nvlink_domain(row.get("intra_link", ""), row.get("inter_link", ""), env, racks=ranks / full):
            racks = -(-ranks // full)
            nodes, per_node = (racks, ranks // racks) if ranks % racks == 0 else (nodes, per_node)
            knobs = {"nodes": nodes, "gpus_per_node": per_node}
        else:
            full = per_node
    if nodes == 1:
        return system_of(row, base, "one node"), {"preset": base, **knobs, **gpu}, ()
    parts = node_parts(base, per_node, version or ASSUMED, env)
    knobs = {"nodes": nodes * parts, "gpus_per_node": per_node // parts} if parts > 1 else knobs
    generation = load_preset(base, nodes=1, gpus_per_node=1).gpu.generation
    link, words, model = (row.get(k, "") for k in ("inter_link", "env", "gpu_model"))
    found = wire(link, words, full, generation, board=base, gpu_model=model, apart=nic_apart(row))
    network = stated.network or found.network
    nics = found.nics * full_node(base) // full  # a preset counts those of its whole node
    bandwidth = found.bandwidth
    if parts > 1 and found.nics < per_node:  # which then share its NICs
        nics = max(1, found.nics // parts)
        bandwidth *= found.nics / (nics * parts)
    blocks = network_blocks(network, nics, bandwidth, through_host=found.through_host)
    cut = (f"each node counts as {parts}: its environment keeps GPUs apart",) if parts > 1 else ()
    return system_of(row, base, network), {"preset": base, **knobs, **gpu, **blocks}, (*found.notes, *cut)


def _whole(text: str) -> int | None:
    """The number that a cell begins with: ``16``, ``16.0``, ``16 nodes``; None where there is none above nought."""
    match = re.match(r"(\d{1,7})(?:\.0*)?(?!\.?\d)", text.strip())
    return int(match[1]) or None if match and text.isascii() else None
