"""The choice of aws-ofi-nccl's tuner plugin on EC2's P5, P5en and P6 (src/tuner/nccl_ofi_regions.cpp of 2026).

The plugin holds, per platform and collective, regions of the plane (bytes of a call, ranks) with an algorithm and a
protocol each. Here the first region that holds the call, or has it on its edge, decides; where NCCL cannot run that,
NCCL decides, as it does without a region and on up to two nodes, which the plugin leaves to it. The figures are those
of communicators with all eight GPUs of each node: for others NCCL's own choice is taken, though the plugin has regions
for one GPU a node too, and the numbers of channels that it asks for on P6 are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from math import log2
from typing import TYPE_CHECKING

from commsim.nccl.tuner import Candidate, choose

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

Point = tuple[float, float]  # bytes and ranks, or their logarithms (base 2)
Region = tuple[str, str, tuple[Point, ...]]  # algorithm, protocol, vertices as logarithms

_LIBRARIES = re.compile(r"(?:.*/)?(?:ofi|(?:lib)?nccl-(?:ofi-tuner|tuner-ofi|ofi|net-ofi)(?:\.so[.\d]*)?)")
"""What NCCL_TUNER_PLUGIN names where it is this plugin, which NCCL looks up as libnccl-tuner-ofi.so for ``ofi``."""

_LEAST_NODES = 3
_GPUS = 8
_MOST = (float(100 << 30), float(1 << 20))  # bytes and ranks (nccl_ofi_tuner_region.h)
_EDGE = 1e-10  # as there


def own_choice(
    topology: Topology, env: Mapping[str, str], collective: str, nbytes: int, table: list[Candidate]
) -> Candidate | None:
    """What a job would run: the plugin's candidate where it has one in NCCL's table of the call, else NCCL's."""
    asked = plugin_choice(topology, env, collective, nbytes)
    return next((c for c in table if (c.algorithm, c.protocol) == asked), None) or choose(table)


def plugin_choice(topology: Topology, env: Mapping[str, str], collective: str, nbytes: int) -> tuple[str, str] | None:
    """The (algorithm, protocol) that the plugin asks for; None where it has no say."""
    platform = _platform(topology)
    if platform is None or not _LIBRARIES.fullmatch(env.get("NCCL_TUNER_PLUGIN", "").strip()):
        return None
    at = _log((nbytes, topology.nodes * topology.ranks_per_node))
    for algorithm, protocol, vertices in _regions(platform).get(collective, ()):
        if _holds(vertices, at):
            return algorithm, protocol
    return None


def why_not(topology: Topology, env: Mapping[str, str]) -> str | None:
    """Why NCCL_TUNER_PLUGIN has no effect; None where it has, or is not set."""
    named = env.get("NCCL_TUNER_PLUGIN", "").strip()
    if not named:
        return None
    if not _LIBRARIES.fullmatch(named):
        return f"found {named[:40]!r}; only aws-ofi-nccl's (libnccl-ofi-tuner.so) is modelled"
    if _platform(topology) is None:
        return "aws-ofi-nccl's tuner has its say on three or more nodes of P5, P5en or P6 with all eight GPUs of each"
    return None


def _platform(topology: Topology) -> str | None:
    """The platform by its GPUs; a P5e, which has P5's table, looks like a P5en here."""
    if topology.network != "efa" or topology.nodes < _LEAST_NODES or topology.ranks_per_node != _GPUS:
        return None
    named = {"H100": "p5", "H200": "p5en", "B200": "p6"}
    return next((platform for gpu, platform in named.items() if topology.gpu.model.startswith(gpu)), None)


def _log(point: Point) -> Point:
    return log2(max(1.0, point[0])), log2(max(1.0, point[1]))


def _beyond(a: Point, b: Point) -> Point:
    """Where the line through two points leaves the plane (extend_region), straight on logarithmic axes."""
    (ax, ay), (bx, by), (zx, zy) = _log(a), _log(b), _log(_MOST)
    if ax == bx:
        return a[0], _MOST[1]
    if ay == by:
        return _MOST[0], a[1]
    slope = (ay - by) / (ax - bx)
    there = by + slope * (zx - bx)
    return (_MOST[0], 2**there) if there < zy else (2 ** (bx + (zy - by) / slope), _MOST[1])


def _region(algorithm: str, protocol: str, *vertices: Point) -> Region:
    return algorithm, protocol, tuple(map(_log, vertices))


@cache
def _regions(platform: str) -> dict[str, tuple[Region, ...]]:
    return {"p5": _p5, "p5en": _p5en, "p6": _p6}[platform]()


def _p5() -> dict[str, tuple[Region, ...]]:
    size, ranks = _MOST
    tree = _beyond((402653184, 2048), (402653184, 4096))
    ring = _beyond((8053063680, 160), (9663676416, 192))
    return {
        "all_reduce": (
            _region("tree", "LL128", (0, 16), (31457280, 16), (37748736, 32), (117440512, 64), (301989888, 128),
                    (301989888, 256), (335544320, 512), (536870912, 1024), (402653184, 2048), (402653184, 4096),
                    tree, (0, ranks)),
            _region("nvls_tree", "Simple", (31457281, 16), (size, 16), (31457281, 16)),
            _region("ring", "LL128", (31457280, 17), (1073741824, 17), (2147483648, 64), (2147483648, 128),
                    (1342177280, 160), (2147483648, 256), (1074790400, 256), (444596224, 160), (301989888, 128),
                    (117440512, 64), (37748736, 32)),
            _region("nvls_tree", "Simple", (2147483648, 128), (6442450944, 128), (8053063680, 160), (9663676416, 192),
                    ring, tree, (402653184, 4096), (402653184, 2048), (536870912, 1024),
                    (335544320, 512), (301989888, 256), (310378496, 160), (444596224, 160), (1074790400, 256),
                    (2684354560, 256), (2147483648, 224), (1342177280, 160)),
            _region("ring", "Simple", (1073741824, 17), (ring[0], 17), ring, (9663676416, 192),
                    (8053063680, 160), (2684354560, 64), (1610612736, 32)),
        )
    }  # fmt: skip


def _p5en() -> dict[str, tuple[Region, ...]]:
    size, ranks = _MOST
    ll = _beyond((196608, 192), (196608, 1024))
    ll128 = _beyond((129499136, 127), (218103808, 1024))
    nvls = _beyond((7516192768, 256), (17179869184, 448))
    gather_ll = _beyond((28305408, 768), (33554432, 1024))
    gather_ll128 = _beyond((7247754240, 384), (17179865088, 896))
    scatter_ll = _beyond((7340032, 256), (18874368, 512))
    scatter_ll128 = _beyond((7247757312, 256), (17179869184, 640))
    return {
        "all_reduce": (
            _region("tree", "LL", (0, 16), (196608, 16), (196608, 1024), ll, (0, ranks)),
            _region("tree", "LL128", ll, (196608, 1024), (196608, 16), (13107200, 16), (129499136, 127),
                    (218103808, 1024), ll128),
            _region("ring", "LL128", (129499136, 127), (13107200, 16), (29884416, 16), (293601280, 32),
                    (589299712, 64), (549453824, 128)),
            _region("nvls_tree", "Simple", ll128, (218103808, 1024), (129499136, 127), (549453824, 128),
                    (589299712, 64), (293601280, 32), (29884416, 16), (size, 16), (509607936, 32), (7516192768, 256),
                    (17179869184, 448), nvls),
            _region("ring", "Simple", nvls, (17179869184, 448), (7516192768, 256), (509607936, 32),
                    (size, 16)),
        ),
        "all_gather": (
            _region("ring", "LL", (0, 16), (786432, 16), (4718592, 128), (13630464, 384), (19922944, 512),
                    (28305408, 768), (33554432, 1024), gather_ll, (0, ranks)),
            _region("ring", "LL128", gather_ll, (33554432, 1024), (28305408, 768), (19922944, 512),
                    (13630464, 384), (4718592, 128), (786432, 16), (236978176, 16), (956301312, 64), (7247754240, 384),
                    (17179865088, 896), gather_ll128),
            _region("ring", "Simple", gather_ll128, (17179865088, 896), (7247754240, 384), (956301312, 64),
                    (494927872, 32), (236978176, 16), (size, 16)),
        ),
        "reduce_scatter": (
            _region("ring", "LL", (0, 16), (786432, 16), (4718592, 128), (7340032, 256), (18874368, 512),
                    scatter_ll, (0, ranks)),
            _region("ring", "LL128", scatter_ll, (18874368, 512), (7340032, 256), (4718592, 128), (786432, 16),
                    (291504128, 16), (589299712, 32), (2415919104, 128), (7247757312, 256), (17179869184, 640),
                    scatter_ll128),
            _region("ring", "Simple", scatter_ll128, (17179869184, 640), (7247757312, 256), (2415919104, 128),
                    (589299712, 32), (291504128, 16), (size, 16)),
        ),
    }  # fmt: skip


def _p6() -> dict[str, tuple[Region, ...]]:
    size, ranks = _MOST
    ll = _beyond((393216, 16), (393216, 1024))
    ll128 = _beyond((96993280, 1024), (106430464, 2048))
    nvls = _beyond((10737418240, 512), (34359738368, 1500))
    gather_ll = _beyond((74973184, 1024), (213385216, 2048))
    gather_ll128 = _beyond((8321499136, 512), (32212254720, 2048))
    scatter_ll = _beyond((73924608, 1024), (209190912, 2048))
    scatter_ll128 = _beyond((4294967296, 256), (8589934592, 512))
    return {
        "all_reduce": (
            _region("tree", "LL", (0, 16), (393216, 16), ll, (0, ranks)),
            _region("tree", "LL128", ll, (393216, 16), (4718592, 16), (18350080, 32), (40370176, 64),
                    (57147392, 128), (72876032, 256), (96993280, 1024), (106430464, 2048), ll128),
            _region("ring", "LL128", (90701824, 128), (50855936, 64), (18350080, 32), (133693440, 32), (120061952, 64)),
            _region("nvls_tree", "Simple", ll128, (106430464, 2048), (96993280, 1024), (72876032, 256),
                    (57147392, 128), (40370176, 64), (18350080, 32), (50855936, 64), (90701824, 128), (120061952, 64),
                    (133693440, 32), (18350080, 32), (4718592, 16), (size, 16), (435159040, 32), (1072693248, 64),
                    (10737418240, 512), (34359738368, 1500), nvls),
            _region("ring", "Simple", nvls, (10737418240, 512), (1072693248, 64), (435159040, 32),
                    (size, 16)),
        ),
        "all_gather": (
            _region("ring", "LL", (0, 16), (786432, 16), (1572864, 32), (2621440, 64), (4718592, 128), (17301504, 256),
                    (74973184, 1024), (213385216, 2048), gather_ll, (0, ranks)),
            _region("ring", "LL128", gather_ll, (213385216, 2048), (74973184, 1024), (17301504, 256),
                    (4718592, 128), (2621440, 64), (1572864, 32), (786432, 16), (198705152, 16), (456130560, 32),
                    (871366656, 64), (8321499136, 512), (32212254720, 2048), gather_ll128),
            _region("ring", "Simple", gather_ll128, (32212254720, 2048), (8321499136, 512), (871366656, 64),
                    (456130560, 32), (198705152, 16), (size, 16)),
        ),
        "reduce_scatter": (
            _region("ring", "LL", (0, 16), (786432, 16), (1572864, 32), (2621440, 64), (4718592, 128), (17301504, 256),
                    (35127296, 512), (73924608, 1024), (209190912, 2048), scatter_ll, (0, ranks)),
            _region("ring", "LL128", scatter_ll, (209190912, 2048), (73924608, 1024), (35127296, 512),
                    (17301504, 256), (4718592, 128), (2621440, 64), (1572864, 32), (786432, 16), (219676672, 16),
                    (508559360, 32), (592445440, 64), (4294967296, 256), (8589934592, 512), scatter_ll128),
            _region("ring", "Simple", scatter_ll128, (8589934592, 512), (4294967296, 256), (592445440, 64),
                    (508559360, 32), (219676672, 16), (size, 16)),
        ),
    }  # fmt: skip


def _holds(vertices: tuple[Point, ...], at: Point) -> bool:
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
