"""The constants of NCCL's tuner by version (src/graph/tuning.cc, read from 2.8 to 2.30.7; nccl-model notes 3.2, 3.8).

Latencies in us, bandwidths in GB/s. Triples are LL, LL128, Simple; rows of caps are Volta, Ampere, Hopper, Blackwell
and their columns one node, two nodes, more nodes.
"""

from __future__ import annotations

from commsim.nccl.environment import ALGORITHM_NAMES
from commsim.nccl.version import Version, newest

Triple = tuple[float, float, float]
Rows = tuple[Triple, ...]

_ZERO: Triple = (0.0, 0.0, 0.0)


_SINCE: dict[str, Version] = {
    "collnet_direct": (2, 14, 0), "nvls": (2, 17, 0), "nvls_tree": (2, 18, 0), "pat": (2, 23, 0),
}  # fmt: skip


def algorithms(version: Version) -> tuple[str, ...]:
    """The algorithms that a version has, in the order in which it compares and prints them."""
    return tuple(name for name in ALGORITHM_NAMES if version >= _SINCE.get(name, (0, 0, 0)))


def base_latency(algorithm: str, version: Version) -> Triple:
    """Start of an algorithm, whatever the size and the ranks."""
    if version < (2, 18, 0):
        old = {"tree": (4.4, 4.4, 0.0), "ring": (3.6, 10.0, 8.4), "nvls": (0.0, 0.0, 40.0)}
        return old.get(algorithm, (4.4, 4.4, 0.0))
    if algorithm == "tree":
        return (6.8, 14.0, 8.4 if version >= (2, 23, 0) else 0.0)
    if version < (2, 19, 0) and algorithm.startswith("nvls"):
        return (0.0, 0.0, 23.0)
    return (6.6, 14.0, 8.4) if algorithm == "ring" else _ZERO


def hop_latency(algorithm: str, link: str, version: Version) -> Triple:
    """One hop of an algorithm over a kind of link: NVLINK, PCI or NET."""
    if algorithm == "tree":
        return _tree_hop(link, version)
    if algorithm == "ring":
        return _ring_hop(link, version)
    if algorithm == "pat":
        return (0.0, 0.0, 14.0 if link == "NET" else 4.0)
    if algorithm.startswith("collnet"):
        return _collnet_hop(algorithm, link, version)
    return _nvls_hop(algorithm, link, version)


def _nvls_hop(algorithm: str, link: str, version: Version) -> Triple:
    if version < (2, 18, 0) or link == "PCI" or (link == "NVLINK" and version < (2, 19, 0)):
        return _ZERO
    if link == "NVLINK":
        return (0.0, 0.0, 23.0 if version < (2, 21, 0) else 25.0)
    if algorithm == "nvls":
        return (0.0, 0.0, 18.0)
    tree = 19.0 if version < (2, 19, 0) else 14.0 if version < (2, 28, 9) else 20.9
    return (0.0, 0.0, tree)


def _tree_hop(link: str, version: Version) -> Triple:
    simple = {"NVLINK": 4.0, "PCI": 4.0, "NET": 14.0}[link]
    if version < (2, 23, 0):
        simple = 28.0
        if (2, 18, 3) <= version < (2, 19, 0):
            simple = {"NVLINK": 4.0, "PCI": 6.0, "NET": 14.0}[link]
    if link == "NVLINK":
        return (0.52 if version < (2, 18, 0) else 0.6, 1.25, simple)
    return (1.0, 1.9, simple) if link == "PCI" else (5.0, 8.5, simple)


def _ring_hop(link: str, version: Version) -> Triple:
    if link == "NVLINK":
        return (0.47 if version < (2, 18, 0) else 0.6, 1.9, 3.4)
    if link == "PCI":
        return (1.0, 2.5, 5.7)
    simple = 14.0
    if version < (2, 18, 0):
        simple = 28.0 if (2, 12, 0) <= version < (2, 14, 0) else 9.6
    return (2.7, 4.0, simple)


def _collnet_hop(algorithm: str, link: str, version: Version) -> Triple:
    if version < (2, 14, 0):
        old = version < (2, 10, 0)
        near = {"NVLINK": (0.5, 1.2, 4.0 if old else 8.0), "PCI": (1.0, 1.9, 5.5 if old else 8.0)}
        return near.get(link, (5.0, 5.0, 10.7))
    if version < (2, 18, 0) or (version < (2, 19, 0) and algorithm == "collnet_direct"):
        return (0.0, 0.0, 10.7 if link == "NET" else 8.0)
    if version < (2, 19, 0):
        return (0.0, 0.0, {"NVLINK": 4.75, "PCI": 8.0, "NET": 14.0}[link])
    if algorithm == "collnet_direct":
        return (0.0, 0.0, 31.0 if link == "NET" else 3.7)
    return (0.0, 0.0, 30.0 if link == "NET" else 2.8)


def ll_max(version: Version) -> Rows:
    """Most that LL carries. One node: by GPU generation. Several: row 1 for AMD or mixed CPUs, row 0 for all others."""
    hopper = (141.0, 45.0, 35.0) if version >= (2, 21, 0) else (87.7, 22.5, 19.0)
    blackwell = (282.0, 90.0, 70.0) if version >= (2, 25, 0) else hopper
    return ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), hopper, blackwell)


_LL128_BY_COLLECTIVE = {
    "broadcast": 18.8,
    "reduce": 12.0,
    "all_gather": 18.3,
    "reduce_scatter": 15.2,
    "all_reduce": 16.9,
}


_RING_LL128_OF_BLACKWELL = (
    ((2, 25, 0), (73.4, 73.4, 73.4)),
    ((2, 28, 7), (73.4, 34.6, 73.4)),
    ((2, 29, 0), (34.5, 34.6, 34.5)),
    ((2, 29, 7), (40.0, 40.0, 40.0)),
)
_TREE_LL128_OF_BLACKWELL = (((2, 25, 0), (73.4, 73.4, 58.0)), ((2, 28, 0), (55.6, 31.67, 20.0)))
_TREE_OF_BLACKWELL = (((2, 25, 0), (77.4, 82.8, 72.0)), ((2, 28, 0), (70.0, 42.8, 24.0)))
_VOLTA_TREE, _AMPERE_TREE = (26.5, 18.5, 10.0), (24.0, 23.6, 17.8)


def ring_ll128_cap(version: Version, collective: str) -> Rows:
    """Most that one channel of a ring carries with LL128."""
    if version < (2, 10, 0):
        return ((_LL128_BY_COLLECTIVE[collective],) * 3,) * 4
    if version < (2, 17, 0):
        return ((20.0,) * 3,) * 4
    return ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, newest(version, _RING_LL128_OF_BLACKWELL, (36.7,) * 3))


def tree_ll128_cap(version: Version, collective: str) -> Rows:
    """Most that one channel of a tree carries with LL128."""
    if version < (2, 18, 3):
        return ring_ll128_cap(version, collective)
    hopper = (36.7, 36.7, 29.0)
    return ((20.0,) * 3, (20.0,) * 3, hopper, newest(version, _TREE_LL128_OF_BLACKWELL, hopper))


def tree_cap(version: Version) -> Rows:
    """Most that one channel of a tree carries with any protocol."""
    volta, ampere = _VOLTA_TREE, _AMPERE_TREE
    if version < (2, 10, 0):
        return (volta, *((24.0, 22.5, 16.0),) * 3)
    if version < (2, 17, 0):
        return (volta, ampere, ampere, ampere)
    hopper = (38.7, 41.4, 36.0 if version >= (2, 18, 3) else 33.0)
    return (volta, ampere, hopper, newest(version, _TREE_OF_BLACKWELL, hopper))


def nvls_tree_cap(version: Version) -> Rows:
    """Most that one channel of NVLSTree carries, from 2.28."""
    beyond = 80.0 if version >= (2, 30, 0) else 43.8 if version >= (2, 28, 9) else 43.1
    return (_VOLTA_TREE, _AMPERE_TREE, (0.0, 57.7, 45.5), (0.0, 96.0, beyond))


NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)
"""Share of the NVLink rate that a reduction in the switch reaches, by generation, from 2.28."""

_CORRECTION = (
    (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
)  # fmt: skip
_CORRECTION_LL128_BEFORE_2_10 = (
    1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .5, .6, .6, .7, .7, .8, .9, .9, .92, .92,
)  # fmt: skip


def tree_correction(algorithm: str, protocol: int, nbytes: int, version: Version) -> float:
    """Factor on the bandwidth of tree or nvls_tree for a size: a row by powers of two from 64 B (src/graph/tuning.cc).

    NVLSTree has it from 2.29 on, and for one power of two more than Tree.
    """
    index = (nbytes >> 6).bit_length() - 1
    if index < 0:
        if version >= (2, 23, 0):
            return 1.0
        index = 0  # where a logarithm of zero still read the first entry
    if index >= (24 if algorithm == "nvls_tree" else 23):
        return 1.0
    if protocol == 1 and version < (2, 10, 0):
        return _CORRECTION_LL128_BEFORE_2_10[index]
    return _CORRECTION[protocol][index]
