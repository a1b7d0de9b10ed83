"""The channel speeds that NCCL's search tries, GB/s, by GPU and version (src/graph/search.cc)."""

from __future__ import annotations

from commsim.nccl.version import Version

_OLD = (42.0, 30.0, 24.0, 21.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2, 0.24, 0.12)
_SLOW = (2.4, 1.2, 0.24, 0.12)


def speeds(sm: int, inter: bool, version: Version) -> tuple[float, ...]:
    """The speeds tried inside a node, or between nodes, fastest first."""
    if version < (2, 12, 0):
        return _OLD
    if sm >= 100 and version >= (2, 25, 0):
        return _blackwell_inter(version) if inter else _blackwell_intra(version)
    if sm >= 90 and version >= (2, 18, 0):
        return _hopper_inter(version) if inter else _hopper_intra(version)
    early = version < (2, 15, 0)
    tail = (18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
    if inter:
        return (48.0, 30.0, 24.0, 22.0, *tail, *_SLOW) if early else (48.0, 30.0, 28.0, 24.0, 20.0, *tail, *_SLOW)
    return (44.0, 30.0, 22.0, *tail) if early else (40.0, 30.0, 20.0, *tail)


def _hopper_intra(version: Version) -> tuple[float, ...]:
    found = [60.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 6.0, 3.0]
    if version >= (2, 19, 0):
        found.append(50.0)
    if version >= (2, 21, 0):
        found.append(11.0)
    return tuple(sorted(found, reverse=True))


def _hopper_inter(version: Version) -> tuple[float, ...]:
    found = [48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, *_SLOW]
    if version >= (2, 19, 0):
        found.append(22.0)
    return tuple(sorted(found, reverse=True))


def _blackwell_intra(version: Version) -> tuple[float, ...]:
    found = [90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 19.0]
    if version >= (2, 27, 0):
        found.append(18.0)
    if version >= (2, 29, 0):
        found.append(45.0)
    return tuple(sorted(found, reverse=True))


def _blackwell_inter(version: Version) -> tuple[float, ...]:
    if version < (2, 27, 0):
        return _hopper_inter(version)
    found = [96.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, *_SLOW]
    if version >= (2, 29, 0):
        found.append(80.0)
    if version >= (2, 30, 0):
        found.append(86.0)
    return tuple(sorted(found, reverse=True))
