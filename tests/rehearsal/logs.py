"""What NCCL writes when its environment asks for it: its log, the topology and the graphs; with content of our own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

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


def write_logs(s: Settings, communicator: Communicator) -> None:
    """Writes what a rank of a new communicator writes."""
    n, nodes = communicator.size, len({s.node_of(rank) for rank in communicator.ranks})
    version = f"{s.version // 10000}.{s.version % 10000 // 100}.{s.version % 100}"
    channels = 16
    _log(
        s,
        f"NCCL version {version}+cuda12.9",
        raw=True,
    )
    _log(s, f"comm 0x1 rank {communicator.rank} nRanks {n} nNodes {nodes} localRanks {n // nodes} localRank 0 MNNVL 0")
    for pattern, same in ((4, 1), (1, 0)):
        _log(
            s,
            f"Pattern {pattern}, crossNic 0, nChannels {channels}, bw 20.000000/20.000000, type NVL/PIX, "
            f"sameChannels {same}",
        )
    _log(s, f"{channels} coll channels, {channels} collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p "
            "channels per peer")  # fmt: skip
    _log(s, "  Algorithm   |      Tree      |      Ring      |", subsystem="TUNING")
    cells = ((8.0, 30.0), (16.5, 100.0), (60.0, 110.0), (7.2, 60.0), (15.9, 170.0), (11.8, 180.0))
    for kind in _NAMES.values():
        row = [(0.0, 0.0)] * 3 + list(cells[3:]) if kind != "AllReduce" else cells
        text = " | ".join(f"{latency:8.1f}/{bandwidth:6.1f}" for latency, bandwidth in row)
        _log(s, f"{kind:>13} | {text} |", subsystem="TUNING")
    for name, text in (("NCCL_TOPO_DUMP_FILE", _system(s)), ("NCCL_GRAPH_DUMP_FILE", _graphs(s, channels, nodes))):
        path = os.environ.get(name)
        if path and (communicator.rank == 0):
            Path(path).write_text(text)


def write_selection(s: Settings, operation: Operation) -> None:
    """Writes the line of a choice, as NCCL does for every collective it enqueues where TUNING is asked for."""
    if operation.kind in _NAMES:
        protocol = "LL" if operation.block <= 65536 else "SIMPLE"
        _log(
            s,
            f"{_NAMES[operation.kind]}: {operation.block} Bytes -> Algo RING proto {protocol} "
            "channel{Lo..Hi}={0..15}",
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


def _system(s: Settings) -> str:
    """The topology of a node: GPUs beside NICs under one CPU each half, NVLink to a switch."""
    lines = ['<system version="1">']
    for cpu in range(2):
        lines.append(
            f'  <cpu host_hash="0x{s.node:x}" numaid="{cpu}" affinity="ffffffff" arch="x86_64" '
            'vendor="GenuineIntel" familyid="6" modelid="143">'
        )
        for gpu in range(cpu * s.gpus // 2, (cpu + 1) * s.gpus // 2):
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


def _graphs(s: Settings, channels: int, nodes: int) -> str:
    """Ring and tree of a node, the GPUs in order in every channel, between NICs where there are several nodes."""
    lines = ['<graphs version="1">']
    for number, pattern in ((0, 4), (1, 1)):
        lines.append(
            f'  <graph id="{number}" pattern="{pattern}" crossnic="0" nchannels="{channels}" speedintra="20" '
            'speedinter="20" latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="1">'
        )
        for channel in range(channels):
            order = [(channel + i) % s.gpus for i in range(s.gpus)]
            lines.append("    <channel>")
            net = [f'      <net dev="{channel % max(1, s.nics)}"/>'] * (nodes > 1)
            lines += [*net, *(f'      <gpu dev="{gpu}"/>' for gpu in order), *net]
            lines.append("    </channel>")
        lines.append("  </graph>")
    return "\n".join([*lines, "</graphs>"]) + "\n"
