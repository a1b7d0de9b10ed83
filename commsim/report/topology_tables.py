"""A topology as text: the list of presets, the sheet of a machine with its path matrix, the same as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from commsim.nccl.plugins import plugin_note
from commsim.report.tables import aligned
from commsim.report.topology_shapes import network_name
from commsim.topology.graph import NodeGroup, Topology
from commsim.topology.presets import Preset
from commsim.units import format_bandwidth, gb_per_s, gbit_per_s, microseconds

_MOST_COLUMNS = 16  # GPUs, and NICs, of a path matrix; a larger node shows the first eight of each


def _gbit(bytes_per_s: float) -> str:
    return f"{gbit_per_s(bytes_per_s):g} Gb/s"


def preset_table(presets: Sequence[Preset]) -> str:
    """One line per preset: name, GPUs and NICs of a node, what it is."""
    rows = [("name", "GPUs", "NICs per node", "description")]
    for p in presets:
        nics = f"{p.nics_per_node} x {_gbit(p.nic_bandwidth)}" if p.nics_per_node else "-"
        rows.append((p.name, f"{p.gpus_per_node} x {p.gpu}", nics, p.description))
    return "\n".join(aligned(rows, range(4), spare=[2, 1]))


def describe(topology: Topology) -> dict[str, Any]:
    """The sheet of a machine as plain data for JSON; bandwidths in bytes/s, latencies in seconds, one direction."""
    t = topology
    bisection = t.bisection_bandwidth()
    groups = [_describe_group(g, int((t.node_group == i).sum())) for i, g in enumerate(t.groups)]
    gpus, nics = range(t.group_of(0).ranks_per_node), range(t.group_of(0).nics_per_node)
    return {
        "name": t.name,
        "nodes": t.nodes,
        "world_size": t.world_size,
        **({k: v for k, v in groups[0].items() if k != "nodes"} if t.uniform else {"groups": groups}),
        "network": t.network,
        "plugin": t.plugin,
        "fabric": t.kind,
        "routing": t.routing,
        "period_ranks": t.period_ranks,
        "held_bytes": t.nbytes,
        "oversubscription": t.oversubscription,
        "nodes_per_leaf": t.nodes_per_leaf,
        "bisection_bytes_per_s": bisection if math.isfinite(bisection) else None,
        "links": [
            {"kind": kind, "ends": ends, "count": count, "bandwidth_bytes_per_s": bandwidth, "latency_s": latency}
            for kind, ends, count, bandwidth, latency in t.link_summary()
        ],
        "paths": {
            "gpu_gpu": [[t.path_type(a, b) for b in gpus] for a in gpus],
            "gpu_nic": [[t.nic_path_type(a, n) for n in nics] for a in gpus],
            "nearest_nic": [t.nearest_nic(a) for a in gpus] if nics else [],
        },
    }


def _describe_group(g: NodeGroup, nodes: int) -> dict[str, Any]:
    return {
        "nodes": nodes,
        "ranks_per_node": g.ranks_per_node,
        "gpu": {name: getattr(g.gpu, name) for name in ("model", "generation", "sm", "peer_to_peer")},
        "cpu": {name: getattr(g.cpu, name) for name in ("arch", "vendor", "model")},
        "nvlink": {
            "links_per_gpu": g.nvlink_links,
            "link_bandwidth_bytes_per_s": g.nvlink_link_bandwidth,
            "nvswitch": g.has_nvswitch,
        },
        "nics_per_node": g.nics_per_node,
        "nic_bandwidth_bytes_per_s": g.nic_bandwidth,
    }


def fabric_words(t: Topology) -> str:
    """The fabric between nodes in a few words."""
    how = "" if t.routing == "shortest" else f", routing {t.routing}"
    if t.kind == "torus":
        return f"torus of {t.nodes} routers{how}"
    if t.kind == "dragonfly":
        return f"dragonfly, {t.nodes_per_leaf} nodes per switch{how}"
    nodes = f"{t.nodes_per_leaf} node{'s' * (t.nodes_per_leaf > 1)} per leaf"
    return f"{nodes}, oversubscription {t.oversubscription:g}:1{how}"


def topology_sheet(topology: Topology) -> str:
    """What a machine is, its links by kind, and the path types of one node in the manner of `nvidia-smi topo -m`."""
    t = topology
    return "\n\n".join("\n".join(lines) for lines in (_facts(t), _links(t), _paths(t))) + "\n"


def _ranks(t: Topology) -> str:
    return f"{t.world_size} rank{'s' * (t.world_size != 1)}"


def _facts(t: Topology) -> list[str]:
    rows = [("name", t.name)]
    if t.uniform:
        rows += _group_facts(t, t.groups[0], t.nodes, f", {_ranks(t)}")
    else:
        rows.append(("machine", f"{t.nodes} nodes of {len(t.groups)} sorts, {_ranks(t)}"))
        for i, g in enumerate(t.groups):
            rows += _group_facts(t, g, int((t.node_group == i).sum()), "")
    if t.nodes > 1:
        rows.append(("fabric", fabric_words(t)))
    if text := plugin_note(t):
        rows.append(("plugin", text))
    if t.link_failed is not None:
        rows.append(("failed", f"{int(t.link_failed.sum())} links one way"))
    if t.world_size > 1:
        of = "nodes" if t.nodes > 1 else "GPUs"
        rows.append(("bisection", f"{format_bandwidth(t.bisection_bandwidth())} between two halves of the {of}"))
    return aligned(rows, range(2))


def _group_facts(t: Topology, g: NodeGroup, nodes: int, ranks: str) -> list[tuple[str, str]]:
    machine = f"{g.ranks_per_node} x {g.gpu.model} ({g.gpu.generation}, sm_{g.gpu.sm})"
    rows = [
        ("machine", f"{nodes} node{'s' * (nodes > 1)} of {machine}{ranks}"),
        ("CPU", f"{g.cpu.vendor} {g.cpu.model} ({g.cpu.arch})"),
    ]
    if g.nvlink_links:
        each = g.nvlink_links * g.nvlink_link_bandwidth
        how = "to NVSwitch" if g.has_nvswitch else "directly between GPUs"
        link = format_bandwidth(g.nvlink_link_bandwidth)
        rows.append(("NVLink", f"{g.nvlink_links} x {link} = {format_bandwidth(each)} per GPU, {how}"))
    if not g.gpu.peer_to_peer:
        rows.append(("PCIe", "GPUs do not write to each other's memory (peer to peer), but through that of the host"))
    if g.nics_per_node:
        total = format_bandwidth(g.nics_per_node * g.nic_bandwidth)
        network = network_name(t.network, t.plugin)
        rows.append(("NICs", f"{g.nics_per_node} x {_gbit(g.nic_bandwidth)} {network} = {total} per node"))
    return rows


def _links(t: Topology) -> list[str]:
    rows = [("link (one direction)", "between", "count", "GB/s", "us")]
    for kind, ends, count, bandwidth, latency in t.link_summary():
        shown = ends.lower().replace("_", " ").replace("-", " - ")
        rows.append((kind, shown, str(count), f"{gb_per_s(bandwidth):.4g}", f"{microseconds(latency):.4g}"))
    return aligned(rows, range(2))


def _paths(t: Topology) -> list[str]:
    g = t.group_of(0)
    gpus, nics = _few(g.ranks_per_node), _few(g.nics_per_node)
    rows = [("", *(f"GPU{g}" for g in gpus), *(f"NIC{n}" for n in nics))]
    for a in gpus:
        cells = ["X" if a == b else _cell(t, a, b) for b in gpus]
        cells += [t.nic_path_type(a, n) + ("*" if t.nearest_nic(a) == n else "") for n in nics]
        rows.append((f"GPU{a}", *cells))
    notes = ["NV#: # NVLinks bonded; NVB: over one other GPU; PIX, PXB: PCIe switches; PHB: one CPU; SYS: two CPUs"]
    if nics:
        notes.append("*: the NIC that the GPU uses")
    if len(gpus) < g.ranks_per_node:
        notes.append(f"the first {len(gpus)} of {g.ranks_per_node} GPUs and {len(nics)} of {g.nics_per_node} NICs")
    if not t.uniform:
        notes.append("the paths of node 0; other nodes differ")
    return aligned(rows) + notes


def _few(count: int) -> range:
    return range(count if count <= _MOST_COLUMNS else 8)


def _cell(t: Topology, a: int, b: int) -> str:
    kind = t.path_type(a, b)
    if kind != "NVL":
        return kind
    return f"NV{t.pair_links(a, b) or t.group_of(a).nvlink_links}"
