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
from commsim.nccl.environment import ALGORITHM_NAMES, PATHS, PROTOCOL_NAMES
from commsim.nccl.system import Graph, System
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
_BY_WORD = {name.upper(): ours for ours, name in ALGORITHM_NAMES.items()} | {
    "NVLS_TREE": "nvls_tree",
    "COLLNET_DIRECT": "collnet_direct",
    "COLLNET_CHAIN": "collnet_chain",
}
_PATTERNS = {1: "BALANCED_TREE", 2: "SPLIT_TREE", 3: "TREE", 4: "RING", 5: "NVLS", 6: "COLLNET_DIRECT"}

_INFO = re.compile(r"^(?P<who>.*?)NCCL INFO (?P<text>.*)$")
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)")
_COMM = re.compile(r"\bnRanks (\d+) nNodes (\d+)")
_INIT = re.compile(r"\bnranks (\d+)\b")
_CPU = re.compile(r"^CPU/[\w-]+ \((\d)/(\d)/-?\d+\)")
_GRAPH = re.compile(
    r"Pattern (\d+), crossNic (\d+), nChannels (\d+), (?:bw|speed) ([\d.]+)/([\d.]+), type (\w+)/(\w+), "
    r"sameChannels (\d)"
)
_CHANNELS = re.compile(r"(\d+) coll channels,(?: (\d+) (?:collnet|nvls) channels,)?.*?(\d+) p2p channels")
_NVLS_CHANNELS = re.compile(r"(\d+) nvls channels")
_RING = re.compile(r"^Channel \d+/(\d+) :(?:\s+\d+)+\s*$")
_DEVICE = re.compile(r"^#\s+Rank\s+\d+ .*\] (.+?)\s*$")
_CHOICE = re.compile(
    r"(?:(?P<collective>[A-Za-z]+):\s*)?(?P<nbytes>\d+) Bytes -> Algo (?P<algorithm>\w+?)\s+proto "
    r"(?P<protocol>LL128|LL|SIMPLE|\d)(?:\s+time (?P<time>[\d.]+)|"
    r"\s*channel\{Lo\.\.Hi\}=\{(?P<lo>\d+)\.\.(?P<hi>\d+)\})?"
)
_CELL = re.compile(r"^\s*(\d+\.\d)/\s*(\d+\.\d)\s*$")

GPU_SM = {
    "P100": 60, "V100": 70, "T4": 75, "A100": 80, "A800": 80, "A30": 80, "A10": 86, "A40": 86, "A6000": 86, "3090": 86,
    "L4": 89, "L40": 89, "L40S": 89, "4090": 89,
    "H100": 90, "H200": 90, "H800": 90, "H20": 90, "GH200": 90, "B200": 100,
    "GB200": 100, "B300": 103, "GB300": 103, "5090": 120, "GB10": 121,
}  # fmt: skip
"""Compute capability, times ten, by a word of the marketing name."""


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
    cpu_arch: str | None = None
    cpu_vendor: str | None = None
    gpus: set[str] = field(default_factory=set)
    graphs: dict[str, list[Graph]] = field(
        default_factory=dict
    )  # by "ring", "tree", ...: one graph per rank that spoke
    coll_channels: int | None = None
    nvls_channels: int | None = None
    p2p_channels: int | None = None
    entries: dict[tuple[str, str, str], TuningEntry] = field(default_factory=dict)  # (collective, algorithm, protocol)
    selections: list[Selection] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)  # lines of a table that are cut
    lines: int = 0  # of NCCL

    def graph(self, name: str) -> Graph | None:
        """The graph that all ranks agree on: the least channels and speeds, the farthest paths (src/init.cc)."""
        found = self.graphs.get(name, [])
        if not found:
            return None
        return replace(
            found[0],
            channels=min(g.channels for g in found),
            intra_gbps=min(g.intra_gbps for g in found),
            inter_gbps=min(g.inter_gbps for g in found),
            intra_type=max((g.intra_type for g in found), key=PATHS.index),
            inter_type=max((g.inter_type for g in found), key=PATHS.index),
            same_channels=all(g.same_channels for g in found),
            cross_nic=max(g.cross_nic for g in found),
        )

    def sm(self) -> int | None:
        """Lowest compute capability, times ten, of the GPUs that the log names."""
        known = [GPU_SM[word] for gpu in self.gpus for word in re.split(r"[^A-Za-z0-9]+", gpu) if word in GPU_SM]
        return min(known, default=None)

    def system(
        self,
        *,
        ranks: int | None = None,
        nodes: int | None = None,
        sm: int | None = None,
        cpu_vendor: str | None = None,
        nic_latency_us: float = 0.0,
    ) -> System:
        """The communicator as the tuner sees it; a keyword gives what the log does not say.

        LogFormatError names every figure that neither states.
        """
        ring, tree = self.graph("ring"), self.graph("tree")
        ranks, nodes = ranks or self.ranks, nodes or self.nodes
        sm, vendor = sm or self.sm(), cpu_vendor or self.cpu_vendor
        needed = {
            "ring graph": ring,
            "tree graph": tree,
            "ranks": ranks,
            "nodes": nodes,
            "sm": sm,
            "cpu_vendor": vendor,
        }
        missing = [name for name, value in needed.items() if value is None]
        if missing:
            raise LogFormatError(
                [
                    Fault(
                        self.file,
                        0,
                        0,
                        "",
                        f"the log does not say {', '.join(missing)}; set NCCL_DEBUG_SUBSYS=INIT,GRAPH",
                    )
                ]
            )
        assert ring is not None
        assert tree is not None
        assert ranks is not None
        assert nodes is not None
        assert sm is not None
        assert vendor is not None
        nvls = self.graph("nvls")
        return System(
            ranks=ranks,
            nodes=nodes,
            sm=sm,
            cpu_vendor=vendor,
            cpu_arch=self.cpu_arch or "x86_64",
            intra_type=ring.intra_type,
            inter_type=ring.inter_type,
            nic_latency_us=nic_latency_us,
            ring=ring,
            tree=tree,
            nvls=nvls if nvls is not None and nvls.channels else None,
            coll_channels=self.coll_channels or 2 * ring.channels,
            collnet_direct=self.graph("collnet_direct"),
            nvswitch=bool(nvls is not None and nvls.channels),
        )


def read_debug_log(path: Path) -> DebugLog:
    """What a log file says; LogFormatError where it is no text or holds no line of NCCL."""
    if path.stat().st_size > _MOST_BYTES:
        raise LogFormatError([Fault(str(path), 0, 0, "", f"the log is larger than {_MOST_BYTES >> 20} MiB")])
    log = parse_debug_log(path.read_text(encoding="utf-8", errors="replace"), str(path))
    if not log.lines:
        raise LogFormatError([Fault(str(path), 0, 0, "", "found no line of NCCL_DEBUG=INFO")])
    return log


def parse_debug_log(text: str, file: str = "<log>") -> DebugLog:
    """What the text of a log says."""
    log = DebugLog(file)
    columns: list[tuple[str, str]] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        version = _VERSION.search(line)
        if version and log.version is None:
            log.version = parse_version(version[1])
        device = _DEVICE.match(line)
        if device:
            log.gpus.add(device[1])
        info = _INFO.match(line)
        if info is None:
            continue
        log.lines += 1
        what = info["text"].strip()
        _communicator(log, what)
        graph = _GRAPH.search(what)
        if graph:
            _graph_line(log, graph, seen, info["who"])
        header = _header(what)
        if header:
            columns = header
        elif not _row(log, what, columns):
            log.skipped.append(number)
        choice = _CHOICE.search(what)
        if choice:
            log.selections.append(_selection(choice, number))
    return log


def _communicator(log: DebugLog, text: str) -> None:
    comm = _COMM.search(text)
    if comm:
        log.ranks, log.nodes = int(comm[1]), int(comm[2])
    elif log.ranks is None and (init := _INIT.search(text)):
        log.ranks = int(init[1])
    cpu = _CPU.match(text)
    if cpu:
        log.cpu_arch = {"1": "x86_64", "2": "ppc64", "3": "arm64"}.get(cpu[1], log.cpu_arch)
        vendor = {"1": "intel", "2": "amd", "3": "zhaoxin", "4": "mixed"}.get(cpu[2])
        if log.cpu_arch == "ppc64":
            vendor = "ibm"
        log.cpu_vendor = ("arm" if log.cpu_arch == "arm64" else vendor) or log.cpu_vendor
    ring = _RING.match(text)
    if ring and log.coll_channels is None:
        log.coll_channels = int(ring[1])  # the line of rings; "coll channels" says more where it is printed too
    channels = _CHANNELS.search(text)
    if channels:
        log.coll_channels, log.p2p_channels = int(channels[1]), int(channels[3])
        nvls = _NVLS_CHANNELS.search(text)
        log.nvls_channels = int(nvls[1]) if nvls else None


def _graph_line(log: DebugLog, match: re.Match[str], seen: dict[str, int], who: str) -> None:
    """Files a graph under its algorithm: a rank prints its ring, its tree, then those that reduce in switches."""
    pattern = _PATTERNS.get(int(match[1]), "")
    if match[6] not in PATHS or match[7] not in PATHS or not pattern:
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
    cells = [c.strip() for c in text.split("|")]
    if cells[0] == "Algorithm":
        names = [_ALGORITHMS[c] for c in cells[1:] if c in _ALGORITHMS]
        return [(name, protocol) for name in names for protocol in PROTOCOL_NAMES]
    if cells[0] == "Latency/AlgBw":
        found = []
        for cell in cells[1:]:
            name, _, protocol = (part.strip() for part in cell.partition("/"))
            if name in _ALGORITHMS and protocol in PROTOCOL_NAMES:
                found.append((_ALGORITHMS[name], protocol))
        return found
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
    order = tuple(ALGORITHM_NAMES)
    by_number = int(algorithm) if algorithm.isdecimal() else len(order)
    return Selection(
        collective=_COLLECTIVES.get(match["collective"] or ""),
        nbytes=int(match["nbytes"]),
        algorithm=order[by_number] if by_number < len(order) else _BY_WORD.get(algorithm, algorithm.lower()),
        protocol=PROTOCOL_NAMES[int(protocol)]
        if protocol.isdecimal()
        else "Simple"
        if protocol == "SIMPLE"
        else protocol,
        time_us=float(match["time"]) if match["time"] else None,
        channels=int(match["hi"]) - int(match["lo"]) + 1 if match["hi"] else None,
        line=line,
    )
