"""The regions of aws-ofi-nccl's tuner on EC2's P5, P5en and P6 (src/tuner/nccl_ofi_regions.cpp of 2026).

Per platform and collective: algorithm, protocol and vertices, in the order that decides. Figures are those of
communicators with all eight GPUs of each node.
"""

from __future__ import annotations

from functools import cache
from math import log2
from typing import NamedTuple

Point = tuple[float, float]  # bytes of a call and ranks


class Ray(NamedTuple):
    """Where the line from the first point through the second leaves the plane (extend_region)."""

    first: Point
    second: Point


Vertex = Point | Ray
Region = tuple[str, str, tuple[Point, ...]]  # algorithm, protocol, vertices as logarithms

_EDGE = 1e-10  # region_get_coll_info_internal_v3

MOST_BYTES, MOST_RANKS = float(100 << 30), float(1 << 20)  # nccl_ofi_tuner_region.h

REGIONS: dict[str, dict[str, tuple[tuple[str, str, tuple[Vertex, ...]], ...]]] = {
    "p5": {
        "all_reduce": (
            ("tree", "LL128", ((0, 16), (31457280, 16), (37748736, 32), (117440512, 64), (301989888, 128),
                (301989888, 256), (335544320, 512), (536870912, 1024), (402653184, 2048), (402653184, 4096),
                Ray((402653184, 2048), (402653184, 4096)), (0, MOST_RANKS))),
            ("nvls_tree", "Simple", ((31457281, 16), (MOST_BYTES, 16), (31457281, 16))),
            ("ring", "LL128", ((31457280, 17), (1073741824, 17), (2147483648, 64), (2147483648, 128), (1342177280, 160),
                (2147483648, 256), (1074790400, 256), (444596224, 160), (301989888, 128), (117440512, 64),
                (37748736, 32))),
            ("nvls_tree", "Simple", ((2147483648, 128), (6442450944, 128), (8053063680, 160), (9663676416, 192),
                Ray((8053063680, 160), (9663676416, 192)), Ray((402653184, 2048), (402653184, 4096)), (402653184, 4096),
                (402653184, 2048), (536870912, 1024), (335544320, 512), (301989888, 256), (310378496, 160),
                (444596224, 160), (1074790400, 256), (2684354560, 256), (2147483648, 224), (1342177280, 160))),
            ("ring", "Simple", ((1073741824, 17), (MOST_BYTES, 17), Ray((8053063680, 160), (9663676416, 192)),
                (9663676416, 192), (8053063680, 160), (2684354560, 64), (1610612736, 32))),
        )
    },
    "p5en": {
        "all_reduce": (
            ("tree", "LL", ((0, 16), (196608, 16), (196608, 1024), Ray((196608, 192), (196608, 1024)),
                (0, MOST_RANKS))),
            ("tree", "LL128", (Ray((196608, 192), (196608, 1024)), (196608, 1024), (196608, 16), (13107200, 16),
                (129499136, 127), (218103808, 1024), Ray((129499136, 127), (218103808, 1024)))),
            ("ring", "LL128", ((129499136, 127), (13107200, 16), (29884416, 16), (293601280, 32), (589299712, 64),
                (549453824, 128))),
            ("nvls_tree", "Simple", (Ray((129499136, 127), (218103808, 1024)), (218103808, 1024), (129499136, 127),
                (549453824, 128), (589299712, 64), (293601280, 32), (29884416, 16), (MOST_BYTES, 16), (509607936, 32),
                (7516192768, 256), (17179869184, 448), Ray((7516192768, 256), (17179869184, 448)))),
            ("ring", "Simple", (Ray((7516192768, 256), (17179869184, 448)), (17179869184, 448), (7516192768, 256),
                (509607936, 32), (MOST_BYTES, 16))),
        ),
        "all_gather": (
            ("ring", "LL", ((0, 16), (786432, 16), (4718592, 128), (13630464, 384), (19922944, 512), (28305408, 768),
                (33554432, 1024), Ray((28305408, 768), (33554432, 1024)), (0, MOST_RANKS))),
            ("ring", "LL128", (Ray((28305408, 768), (33554432, 1024)), (33554432, 1024), (28305408, 768),
                (19922944, 512), (13630464, 384), (4718592, 128), (786432, 16), (236978176, 16), (956301312, 64),
                (7247754240, 384), (17179865088, 896), Ray((7247754240, 384), (17179865088, 896)))),
            ("ring", "Simple", (Ray((7247754240, 384), (17179865088, 896)), (17179865088, 896), (7247754240, 384),
                (956301312, 64), (494927872, 32), (236978176, 16), (MOST_BYTES, 16))),
        ),
        "reduce_scatter": (
            ("ring", "LL", ((0, 16), (786432, 16), (4718592, 128), (7340032, 256), (18874368, 512), Ray((7340032, 256),
                (18874368, 512)), (0, MOST_RANKS))),
            ("ring", "LL128", (Ray((7340032, 256), (18874368, 512)), (18874368, 512), (7340032, 256), (4718592, 128),
                (786432, 16), (291504128, 16), (589299712, 32), (2415919104, 128), (7247757312, 256),
                (17179869184, 640), Ray((7247757312, 256), (17179869184, 640)))),
            ("ring", "Simple", (Ray((7247757312, 256), (17179869184, 640)), (17179869184, 640), (7247757312, 256),
                (2415919104, 128), (589299712, 32), (291504128, 16), (MOST_BYTES, 16))),
        ),
    },
    "p6": {
        "all_reduce": (
            ("tree", "LL", ((0, 16), (393216, 16), Ray((393216, 16), (393216, 1024)), (0, MOST_RANKS))),
            ("tree", "LL128", (Ray((393216, 16), (393216, 1024)), (393216, 16), (4718592, 16), (18350080, 32),
                (40370176, 64), (57147392, 128), (72876032, 256), (96993280, 1024), (106430464, 2048),
                Ray((96993280, 1024), (106430464, 2048)))),
            ("ring", "LL128", ((90701824, 128), (50855936, 64), (18350080, 32), (133693440, 32), (120061952, 64))),
            ("nvls_tree", "Simple", (Ray((96993280, 1024), (106430464, 2048)), (106430464, 2048), (96993280, 1024),
                (72876032, 256), (57147392, 128), (40370176, 64), (18350080, 32), (50855936, 64), (90701824, 128),
                (120061952, 64), (133693440, 32), (18350080, 32), (4718592, 16), (MOST_BYTES, 16), (435159040, 32),
                (1072693248, 64), (10737418240, 512), (34359738368, 1500), Ray((10737418240, 512),
                (34359738368, 1500)))),
            ("ring", "Simple", (Ray((10737418240, 512), (34359738368, 1500)), (10737418240, 512), (1072693248, 64),
                (435159040, 32), (MOST_BYTES, 16))),
        ),
        "all_gather": (
            ("ring", "LL", ((0, 16), (786432, 16), (1572864, 32), (2621440, 64), (4718592, 128), (17301504, 256),
                (74973184, 1024), (213385216, 2048), Ray((74973184, 1024), (213385216, 2048)), (0, MOST_RANKS))),
            ("ring", "LL128", (Ray((74973184, 1024), (213385216, 2048)), (213385216, 2048), (74973184, 1024),
                (17301504, 256), (4718592, 128), (2621440, 64), (1572864, 32), (786432, 16), (198705152, 16),
                (456130560, 32), (871366656, 64), (8321499136, 512), (32212254720, 2048), Ray((8321499136, 512),
                (32212254720, 2048)))),
            ("ring", "Simple", (Ray((8321499136, 512), (32212254720, 2048)), (32212254720, 2048), (8321499136, 512),
                (871366656, 64), (456130560, 32), (198705152, 16), (MOST_BYTES, 16))),
        ),
        "reduce_scatter": (
            ("ring", "LL", ((0, 16), (786432, 16), (1572864, 32), (2621440, 64), (4718592, 128), (17301504, 256),
                (35127296, 512), (73924608, 1024), (209190912, 2048), Ray((73924608, 1024), (209190912, 2048)),
                (0, MOST_RANKS))),
            ("ring", "LL128", (Ray((73924608, 1024), (209190912, 2048)), (209190912, 2048), (73924608, 1024),
                (35127296, 512), (17301504, 256), (4718592, 128), (2621440, 64), (1572864, 32), (786432, 16),
                (219676672, 16), (508559360, 32), (592445440, 64), (4294967296, 256), (8589934592, 512),
                Ray((4294967296, 256), (8589934592, 512)))),
            ("ring", "Simple", (Ray((4294967296, 256), (8589934592, 512)), (8589934592, 512), (4294967296, 256),
                (592445440, 64), (508559360, 32), (219676672, 16), (MOST_BYTES, 16))),
        ),
    },
}  # fmt: skip


def logarithms(point: Point) -> Point:
    """A point on logarithmic axes, on which regions have straight edges."""
    return log2(max(1.0, point[0])), log2(max(1.0, point[1]))


def _beyond(a: Point, b: Point) -> Point:
    """Where the line through two points leaves the plane, straight on logarithmic axes (extend_region)."""
    (ax, ay), (bx, by), (zx, zy) = logarithms(a), logarithms(b), logarithms((MOST_BYTES, MOST_RANKS))
    if ax == bx:
        return a[0], MOST_RANKS
    if ay == by:
        return MOST_BYTES, a[1]
    slope = (ay - by) / (ax - bx)
    there = by + slope * (zx - bx)
    return (MOST_BYTES, 2**there) if there < zy else (2 ** (bx + (zy - by) / slope), MOST_RANKS)


def _corner(vertex: Vertex) -> Point:
    return logarithms(_beyond(*vertex) if isinstance(vertex, Ray) else vertex)


@cache
def regions(platform: str) -> dict[str, tuple[Region, ...]]:
    """The regions of a platform by collective, in the order that decides."""
    return {
        collective: tuple((a, p, tuple(map(_corner, vertices))) for a, p, vertices in regions)
        for collective, regions in REGIONS[platform].items()
    }


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
