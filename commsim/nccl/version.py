"""NCCL release numbers as comparable tuples."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from commsim.errors import UnitError

Version = tuple[int, int, int]
V = TypeVar("V")

ASSUMED: Version = (2, 26, 2)
"""Where a scenario states no version: a release in wide use; its tuner is that of 2.23 to 2.27 up to Hopper."""

OLDEST: Version = (2, 8, 0)
NEWEST: Version = (2, 30, 7)

_PATTERN = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-+].*)?")


def parse_version(text: str) -> Version:
    """``"2.26.2"``, ``"2.18"`` or ``"2.29.3+cuda13.1"`` as a tuple of three whole numbers."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise UnitError(f"found the NCCL version {text!r}, expected one such as '2.26.2'")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def format_version(version: Version) -> str:
    """``(2, 26, 2)`` as ``"2.26.2"``."""
    return ".".join(map(str, version))


def newest(version: Version, rows: Iterable[tuple[Version, V]], first: V) -> V:
    """The last value that a version has of (since when, value), oldest first; `first` before all of them."""
    return [first, *(value for since, value in rows if version >= since)][-1]
