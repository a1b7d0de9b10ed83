"""What NCCL writes when its environment asks for it: its log, with the choices and the table of the rehearsed law, the
topology and the graphs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rehearsal.law import COSTS, Work, channels, choice, graph_channels, seconds
from rehearsal.settings import Settings

if TYPE_CHECKING:
    from rehearsal.collectives import Communicator, Operation

_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
}

_LARGE = 1 << 33


def write_logs(s: Settings, communicator: Communicator) -> None:
    """Writes what a rank of a new communicator writes."""
    n, nodes = communicator.size, len({s.node_of(rank) for rank in communicator.ranks})
    version = f"{s.version // 10000}.{s.version % 10000 // 100}.{s.version % 100}"
    channels, speed = graph_channels(s, nodes)
    _log(
        s,
        f"NCCL version {version}+cuda12.9",
        raw=True,
    )
    _log(s, f"comm 0x1 rank {communicator.rank} nRanks {n} nNodes {nodes} localRanks {n // nodes} localRank 0 MNNVL 0")
    for pattern, same in ((4, 1), (1, 0)):
        _log(
            s,
            f"Pattern {pattern}, crossNic 0, nChannels {channels}, bw {speed:.6f}/{speed:.6f}, type NVL/PIX, "
            f"sameChannels {same}",
        )
    _log(s, f"{2 * channels} coll channels, {2 * channels} collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p "
            "channels per peer")  # fmt: skip
    _log(s, "  Algorithm   |      Tree      |      Ring      |", subsystem="TUNING")
    for kind, name in _NAMES.items():
        cells = [
            _cell(s, Work(kind, _LARGE), communicator.ranks, {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol})
            if algorithm == "ring" or (kind == "all_reduce" and n > 1)
            else (0.0, 0.0)
            for algorithm in ("tree", "ring")
            for protocol in COSTS
        ]
        text = " | ".join(f"{latency:8.1f}/{bandwidth:6.1f}" for latency, bandwidth in cells)
        _log(s, f"{name:>13} | {text} |", subsystem="TUNING")
    for name, text in (
        ("NCCL_TOPO_DUMP_FILE", system_xml(s)),
        ("NCCL_GRAPH_DUMP_FILE", graphs_xml(s, nodes)),
    ):
        path = os.environ.get(name)
        if path and (communicator.rank == 0):
            Path(path).write_text(text)


def _cell(s: Settings, work: Work, ranks: list[int], env: dict[str, str]) -> tuple[float, float]:
    """Latency in us and bandwidth in GB/s of an algorithm and a protocol: by the law for none and for many bytes."""
    none, many = (seconds(s, replace(work, nbytes=nbytes), ranks, env) for nbytes in (1, work.nbytes))
    return 1e6 * none, work.nbytes / (many - none) / 1e9


def write_selection(s: Settings, operation: Operation) -> None:
    """Writes the line of a choice, as NCCL does for every collective it enqueues where TUNING is asked for."""
    work, ranks = operation.work(), operation.communicator.ranks
    if work.kind not in _NAMES or len(ranks) == 1:
        return
    algorithm, protocol = choice(s, work, ranks)
    nodes = len({s.node_of(rank) for rank in ranks})
    last = channels(s, work, len(ranks), nodes, algorithm, protocol) - 1
    _log(
        s,
        f"{_NAMES[work.kind]}: {operation.block} Bytes -> Algo {algorithm.upper()} proto {protocol.upper()} "
        f"channel{{Lo..Hi}}={{0..{last}}}",
        subsystem="TUNING",
    )


def _log(s: Settings, text: str, subsystem: str = "INIT", raw: bool = False) -> None:
    if os.environ.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        return
    if subsystem not in os.environ.get("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV").upper().split(","):
        return
    named = os.environ.get("NCCL_DEBUG_FILE")
    if not named:
        return
    line = text if raw else f"node{s.node}:{os.getpid()}:{os.getpid()} [0] NCCL INFO {text}"
    with Path(named.replace("%h", f"node{s.node}").replace("%p", str(os.getpid()))).open("a") as stream:
        stream.write(line + "\n")


def system_xml(s: Settings) -> str:
    """The topology of a node as NCCL writes it, with the GPUs of the ranks alone: half of them under each CPU."""
    lines = ['<system version="1">']
    for cpu in range(2):
        lines.append(
            f'  <cpu host_hash="0x{s.node:x}" numaid="{cpu}" affinity="ffffffff" arch="x86_64" '
            'vendor="GenuineIntel" familyid="6" modelid="143">'
        )
        for gpu in range(cpu * s.gpus_of_node // 2, (cpu + 1) * s.gpus_of_node // 2):
            bus = f"0000:{0x10 + 0x10 * gpu:02x}:00.0"
            lines.append(f'    <pci busid="0000:{0xF + 0x10 * gpu:02x}:00.0" class="0x060400" vendor="0x104c" '
                         'device="0x8232" subsystem_vendor="0x0000" subsystem_device="0x0000" '
                         'link_speed="32.0 GT/s PCIe" link_width="16">')  # fmt: skip
            lines.append(f'      <pci busid="{bus}" class="0x030200" vendor="0x10de" device="0x2330" '
                         'subsystem_vendor="0x10de" subsystem_device="0x16c1" link_speed="32.0 GT/s PCIe" '
                         'link_width="16">')  # fmt: skip
            lines.append(f'        <gpu dev="{gpu}" sm="{s.sm}" rank="{gpu}" gdr="1">')
            if s.nvlink:
                lines.append('          <nvlink target="ffff:ff:ff.f" count="18" tclass="0x068000"/>')
            lines += ["        </gpu>", "      </pci>"]
            if gpu < s.nics:
                lines.append(f'      <pci busid="0000:{0x11 + 0x10 * gpu:02x}:00.0" class="0x020700" vendor="0x15b3" '
                             'device="0x1021" subsystem_vendor="0x15b3" subsystem_device="0x0041" '
                             'link_speed="32.0 GT/s PCIe" link_width="16">')  # fmt: skip
                lines.append(f'        <nic><net name="mlx5_{gpu}" dev="{gpu}" speed="400000" port="1" '
                             f'latency="0.000000" guid="0x{gpu + 1:x}" maxconn="131072" gdr="1"/></nic>')  # fmt: skip
                lines.append("      </pci>")
            lines.append("    </pci>")
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>"]) + "\n"


def graphs_xml(s: Settings, nodes: int) -> str:
    """Ring and tree of a node, the GPUs in order in every channel, between NICs where there are several nodes."""
    channels, speed = graph_channels(s, nodes)
    lines = ['<graphs version="1">']
    for number, pattern in ((0, 4), (1, 1)):
        lines.append(
            f'  <graph id="{number}" pattern="{pattern}" crossnic="0" nchannels="{channels}" '
            f'speedintra="{speed}" speedinter="{speed}" latencyinter="0" typeintra="NVL" typeinter="PIX" '
            'samechannels="1">'
        )
        for channel in range(channels):
            order = [(channel + i) % s.gpus_of_node for i in range(s.gpus_of_node)]
            lines.append("    <channel>")
            net = [f'      <net dev="{channel % max(1, s.nics)}"/>'] * (nodes > 1)
            lines += [*net, *(f'      <gpu dev="{gpu}"/>' for gpu in order), *net]
            lines.append("    </channel>")
        lines.append("  </graph>")
    return "\n".join([*lines, "</graphs>"]) + "\n"
