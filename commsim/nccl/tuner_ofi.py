"""The choice of aws-ofi-nccl's tuner plugin on EC2's P5, P5en and P6 (src/tuner/nccl_ofi_tuner_region.cpp of 2026).

The plugin holds, per platform and collective, regions of the plane (bytes of a call, ranks) with an algorithm and a
protocol each (`tuner_ofi.csv`, after src/tuner/nccl_ofi_regions.cpp of 2026). The first of those NCCL can run that
holds the call, or has it on its edge, decides (region_get_coll_info_internal_v3); without one NCCL does, as on up to
two nodes, which the plugin leaves to it. For communicators without all eight GPUs of each node NCCL's own choice is
taken, though the plugin has regions for one GPU a node too; the numbers of channels that it asks for on P6 are not
modelled.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Container, Mapping
from functools import cache
from math import log2
from pathlib import Path

from commsim.nccl.system import System
from commsim.nccl.tuner import Candidate, choose
from commsim.topology.graph import Topology

Point = tuple[float, float]  # bytes of a call and ranks
Region = tuple[str, str, tuple[Point, ...]]  # algorithm, protocol, vertices as logarithms

_EDGE = 1e-10  # region_get_coll_info_internal_v3
_MOST: Point = (float(100 << 30), float(1 << 20))  # nccl_ofi_tuner_region.h

_LIBRARIES = re.compile(r"(?:.*/)?(?:ofi|(?:lib)?nccl-(?:ofi-tuner|tuner-ofi|ofi|net-ofi)(?:\.so[.\d]*)?)")
"""What NCCL_TUNER_PLUGIN names where it is this plugin, which NCCL looks up as libnccl-tuner-ofi.so for ``ofi``."""

_LEAST_NODES = 3  # it falls back to NCCL up to two (region_get_coll_info_internal_v3)
_GPUS = 8  # of a node: the regions are those where the ranks are eight times the nodes (region_init_internal_p5en)


def own_choice(
    system: System,
    topology: Topology,
    env: Mapping[str, str],
    collective: str,
    nbytes: int,
    table: list[Candidate],
) -> Candidate | None:
    """What a communicator runs: the plugin's candidate where it has one in NCCL's table of the call, else NCCL's."""
    by_name = {(c.algorithm, c.protocol): c for c in table}
    shape = system.nodes, system.ranks
    asked = plugin_choice(topology, env, collective, nbytes, by_name, shape)
    return by_name[asked] if asked is not None else choose(table)


def plugin_choice(
    topology: Topology,
    env: Mapping[str, str],
    collective: str,
    nbytes: int,
    able: Container[tuple[str, str]],
    shape: tuple[int, int] | None = None,
) -> tuple[str, str] | None:
    """The (algorithm, protocol) that the plugin asks for, among those NCCL is able to run; None where it has no say.

    `shape`: nodes and ranks of the communicator, by default those of the machine.
    """
    if not _LIBRARIES.fullmatch(env.get("NCCL_TUNER_PLUGIN", "").strip()):
        return None
    nodes, ranks = shape or (topology.nodes, topology.world_size)
    platform = _platform(topology, nodes, ranks)
    if platform is None:
        return None
    at = _logarithms((nbytes, ranks))
    for algorithm, protocol, vertices in regions(platform).get(collective, ()):
        if (algorithm, protocol) in able and holds(vertices, at):
            return algorithm, protocol
    return None


def why_not(topology: Topology, env: Mapping[str, str]) -> str | None:
    """Why NCCL_TUNER_PLUGIN has no effect on the calls of all ranks; None where it has, or is not set."""
    named = env.get("NCCL_TUNER_PLUGIN", "").strip()
    if named.lower() in ("", "none"):
        return None
    if not _LIBRARIES.fullmatch(named):
        return f"found {named[:40]!r}; only aws-ofi-nccl's (libnccl-ofi-tuner.so) is modelled"
    if _platform(topology, topology.nodes, topology.world_size) is None:
        return "aws-ofi-nccl's tuner has its say on three or more nodes of P5, P5en or P6 with all eight GPUs of each"
    return None


def _platform(topology: Topology, nodes: int, ranks: int) -> str | None:
    """The platform by its GPUs; a P5e, which has P5's table, looks like a P5en here."""
    if topology.network != "efa" or nodes < _LEAST_NODES or ranks != nodes * _GPUS:
        return None
    named = {"H100": "p5", "H200": "p5en", "B200": "p6"}
    return next((platform for gpu, platform in named.items() if topology.gpu.model.startswith(gpu)), None)


@cache
def regions(platform: str) -> dict[str, list[Region]]:
    """The regions of a platform by collective, in the order that decides."""
    by_collective = defaultdict(list)
    with Path(__file__).with_suffix(".csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["platform"] == platform:
                corners = tuple(map(_corner, row["vertices"].split()))
                by_collective[row["collective"]].append((row["algorithm"], row["protocol"], corners))
    return by_collective


def _corner(text: str) -> Point:
    """A vertex of the table: bytes:ranks, or two of them joined by > where the line through them leaves the plane."""
    points = [(float(nbytes), float(ranks)) for nbytes, ranks in (point.split(":") for point in text.split(">"))]
    return _logarithms(points[0] if len(points) == 1 else _beyond(*points))


def _logarithms(point: Point) -> Point:
    """A point on logarithmic axes, on which regions have straight edges."""
    return log2(max(1.0, point[0])), log2(max(1.0, point[1]))


def _beyond(a: Point, b: Point) -> Point:
    """Where the line through two points leaves the plane, straight on logarithmic axes (extend_region)."""
    (ax, ay), (bx, by), (zx, zy) = _logarithms(a), _logarithms(b), _logarithms(_MOST)
    if ax == bx:
        return a[0], _MOST[1]
    if ay == by:
        return _MOST[0], a[1]
    slope = (ay - by) / (ax - bx)
    there = by + slope * (zx - bx)
    return (_MOST[0], 2**there) if there < zy else (2 ** (bx + (zy - by) / slope), _MOST[1])


def holds(vertices: tuple[Point, ...], at: Point) -> bool:
    """Whether a polygon holds a point inside it or on its edge."""
    x, y = at
    inside = False
    for (ax, ay), (bx, by) in zip(vertices, (*vertices[1:], vertices[0]), strict=True):
        dx, dy = bx - ax, by - ay
        along = 0.0 if dx == dy == 0 else min(1.0, max(0.0, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy)))
        if abs(ax + along * dx - x) < _EDGE and abs(ay + along * dy - y) < _EDGE:
            return True
        if (ay > y) != (by > y) and x < ax + (y - ay) / dy * dx:
            inside = not inside
    return inside
