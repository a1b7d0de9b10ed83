"""What an NCCL log says of a communicator: graphs, tuning tables, channels and the choices made.

Reads the lines of ``NCCL_DEBUG=INFO`` with the subsystems INIT, GRAPH and TUNING, of NCCL 2.8 to 2.30, whatever stands
before ``NCCL INFO`` (mpirun tags, function names of patched builds) and behind them (lines of several ranks run into
each other). What cannot be read is skipped and counted, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from commsim.errors import Fault, LogFormatError
from commsim.files import text_within
from commsim.nccl.environment import ALGORITHM_NAMES, PATHS, PROTOCOL_NAMES
from commsim.nccl.system import PATTERNS, Graph
from commsim.nccl.tuner import TuningEntry
from commsim.nccl.version import Version, parse_version

_MOST_BYTES = 256 << 20

_COLLECTIVES = {
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllReduce": "all_reduce",
}
_ALGORITHMS = {name: ours for ours, name in ALGORITHM_NAMES.items()} | {"CollNet": "collnet_chain"}
_BY_WORD = {word.upper(): ours for ours, name in ALGORITHM_NAMES.items() for word in (ours, name)}
_INFO = re.compile(r"^(?P<who>.*?)NCCL INFO (?P<text>.*)$")
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_COMM = re.compile(r"\bnRanks (\d+) nNodes (\d+)")
_INIT = re.compile(r"\bnranks (\d+)\b")
_GRAPH = re.compile(
    r"Pattern (\d+), crossNic (\d+), nChannels (\d+), (?:bw|speed) ([\d.]+)/([\d.]+), type (\w+)/(\w+), "
    r"sameChannels (\d)"
)
_CHANNELS = re.compile(r"(\d+) coll channels,.*?(\d+) p2p channels")
_RING = re.compile(r"^Channel \d+/(\d+) :(?:\s+\d+)+\s*$")
_CHOICE = re.compile(
    r"(?:(?P<collective>[A-Za-z]+):\s*)?(?P<nbytes>\d+) Bytes -> Algo (?P<algorithm>\w+?)\s+proto "
    r"(?P<protocol>LL128|LL|SIMPLE|\d)(?:\s+time (?P<time>[\d.]+)|"
    r"\s*channel\{Lo\.\.Hi\}=\{(?P<lo>\d+)\.\.(?P<hi>\d+)\})?"
)
_CELL = re.compile(r"^\s*(\d+\.\d)/\s*(\d+\.\d)\s*$")


@dataclass(frozen=True)
class Selection:
    """One logged choice. `nbytes` is the printed size: count times element, so what one rank holds for all_gather."""

    collective: str | None
    nbytes: int
    algorithm: str
    protocol: str
    time_us: float | None
    channels: int | None
    line: int


@dataclass
class DebugLog:
    """What one log says; fields it does not state are None or empty."""

    file: str
    version: Version | None = None
    ranks: int | None = None
    nodes: int | None = None
    graphs: dict[str, list[Graph]] = field(default_factory=dict)  # by "ring", ...: one graph per rank that spoke
    coll_channels: int | None = None
    p2p_channels: int | None = None
    entries: dict[tuple[str, str, str], TuningEntry] = field(default_factory=dict)  # (collective, algorithm, protocol)
    selections: list[Selection] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)  # lines of a table that are cut
    lines: int = 0  # of NCCL

    def graph(self, name: str) -> Graph | None:
        """The graph that all ranks agree on: the least channels and speeds, the farthest paths (src/init.cc)."""
        graphs = self.graphs.get(name)
        if graphs is None:
            return None
        return replace(
            graphs[0],
            channels=min(g.channels for g in graphs),
            intra_gbps=min(g.intra_gbps for g in graphs),
            inter_gbps=min(g.inter_gbps for g in graphs),
            intra_type=max((g.intra_type for g in graphs), key=PATHS.index),
            inter_type=max((g.inter_type for g in graphs), key=PATHS.index),
            same_channels=all(g.same_channels for g in graphs),
            cross_nic=max(g.cross_nic for g in graphs),
        )


def read_debug_log(path: Path) -> DebugLog:
    """What a log file says; LogFormatError where it is no text or holds no line of NCCL."""
    text = text_within(path, _MOST_BYTES)
    if text is None:
        raise LogFormatError([Fault(str(path), 0, 0, "", f"the log is larger than {_MOST_BYTES >> 20} MiB")])
    log = parse_debug_log(text, str(path))
    if not log.lines:
        raise LogFormatError([Fault(str(path), 0, 0, "", "found no line of NCCL_DEBUG=INFO")])
    return log


def parse_debug_log(content: str, file: str = "<log>") -> DebugLog:
    """What the text of a log says."""
    log = DebugLog(file)
    columns: list[tuple[str, str]] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if log.version is None and (version := _VERSION.search(line)):
            log.version = parse_version(version[1])
        info = _INFO.match(line)
        if info is None:
            continue
        log.lines += 1
        text = info["text"].strip()
        _communicator(log, text)
        if graph := _GRAPH.search(text):
            _graph_line(log, graph, seen, info["who"])
        if header := _header(text):
            columns = header
        elif not _row(log, text, columns):
            log.skipped.append(number)
        if choice := _CHOICE.search(text):
            log.selections.append(_selection(choice, number))
    return log


def _communicator(log: DebugLog, text: str) -> None:
    if comm := _COMM.search(text):
        log.ranks, log.nodes = int(comm[1]), int(comm[2])
    elif log.ranks is None and (init := _INIT.search(text)):
        log.ranks = int(init[1])
    if log.coll_channels is None and (ring := _RING.match(text)):
        log.coll_channels = int(ring[1])  # the line of rings; "coll channels" says more where it is printed too
    if channels := _CHANNELS.search(text):
        log.coll_channels, log.p2p_channels = int(channels[1]), int(channels[2])


def _graph_line(log: DebugLog, match: re.Match[str], seen: dict[str, int], who: str) -> None:
    """Files a graph under its algorithm: a rank prints its ring, its tree, then those that reduce in switches."""
    pattern = PATTERNS.get(int(match[1]))
    if match[6] not in PATHS or match[7] not in PATHS or pattern is None:
        return
    order = seen[who] = 0 if pattern == "RING" else seen.get(who, 0) + 1
    names = {"RING": "ring", "NVLS": "nvls", "COLLNET_DIRECT": "collnet_direct"}
    name = names.get(pattern, "tree" if order == 1 else "collnet_chain")
    log.graphs.setdefault(name, []).append(
        Graph(
            channels=int(match[3]),
            intra_gbps=float(match[4]),
            inter_gbps=float(match[5]),
            pattern=pattern,
            intra_type=match[6],
            inter_type=match[7],
            same_channels=match[8] == "1",
            cross_nic=int(match[2]),
        )
    )


def _header(text: str) -> list[tuple[str, str]] | None:
    """The columns that a heading of the table announces."""
    kind, *cells = (c.strip() for c in text.split("|"))
    if kind == "Algorithm":
        return [(_ALGORITHMS[c], protocol) for c in cells if c in _ALGORITHMS for protocol in PROTOCOL_NAMES]
    if kind == "Latency/AlgBw":
        pairs = [tuple(part.strip() for part in cell.partition("/")[::2]) for cell in cells]
        return [
            (_ALGORITHMS[name], protocol)
            for name, protocol in pairs
            if name in _ALGORITHMS and protocol in PROTOCOL_NAMES
        ]
    return None


def _row(log: DebugLog, text: str, columns: list[tuple[str, str]]) -> bool:
    """Takes a row of the table; False where it is a row but cut."""
    name, bar, rest = text.partition("|")
    if not bar or name.strip() not in _COLLECTIVES:
        return True
    cells = [_CELL.match(c) for c in rest.split("|")[: len(columns) or 1]]
    for column, cell in zip(columns, cells, strict=False):
        if cell is not None:
            log.entries[_COLLECTIVES[name.strip()], *column] = TuningEntry(float(cell[1]), float(cell[2]))
    return len(cells) == len(columns) and all(cells)


def _selection(match: re.Match[str], line: int) -> Selection:
    algorithm, protocol = match["algorithm"], match["protocol"]
    if algorithm.isdecimal() and int(algorithm) < len(ALGORITHM_NAMES):
        algorithm = tuple(ALGORITHM_NAMES)[int(algorithm)]
    return Selection(
        collective=_COLLECTIVES.get(match["collective"] or ""),
        nbytes=int(match["nbytes"]),
        algorithm=_BY_WORD.get(algorithm.upper(), algorithm.lower()),
        protocol=PROTOCOL_NAMES[int(protocol)] if protocol.isdecimal() else protocol.replace("SIMPLE", "Simple"),
        time_us=float(match["time"]) if match["time"] else None,
        channels=int(match["hi"]) - int(match["lo"]) + 1 if match["hi"] else None,
        line=line,
    )
