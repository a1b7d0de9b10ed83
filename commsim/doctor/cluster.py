"""The cluster under suspicion: its hosts, what each holds, and which leaf each hangs under."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from commsim.errors import CommsimError
from commsim.topology.kinds import Int64

MOST_HOSTS = 4096
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PART = re.compile(r"([^\[\],]*)(?:\[([0-9,-]+)\])?([^\[\],]*)(?:,|$)")


@dataclass(frozen=True, eq=False)
class HostCluster:
    """Hosts with `gpus` GPUs and `nics` cards each; card i serves the GPUs from i * gpus / nics on.

    `leaf` (hosts,): the leaf switch of each host, all 0 where it is not known. `rails`: whether every card of a host
    has a leaf switch of its own.
    """

    hosts: tuple[str, ...]
    gpus: int = 8
    nics: int = 8
    leaf: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    rails: bool = False

    def __post_init__(self) -> None:
        if self.leaf.size != len(self.hosts):
            object.__setattr__(self, "leaf", np.zeros(len(self.hosts), np.int64))

    @cached_property
    def index(self) -> dict[str, int]:
        """The number of each host."""
        return {name: i for i, name in enumerate(self.hosts)}

    @property
    def leaves(self) -> int:
        """How many leaf switches a card's rail has."""
        return int(self.leaf.max()) + 1

    @cached_property
    def leaf_hosts(self) -> Int64:
        """How many hosts hang under each leaf, (leaves,)."""
        return np.bincount(self.leaf)

    def nic_of(self, gpu: int) -> int:
        """The card that serves a GPU."""
        return gpu * self.nics // self.gpus


def hostlist(text: str) -> tuple[str, ...]:
    """The hosts of a list as Slurm writes it, each once; CommsimError for what is none.

    >>> hostlist("a1,n[08-10,12]-ib")
    ('a1', 'n08-ib', 'n09-ib', 'n10-ib', 'n12-ib')
    """
    names: list[str] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or match.end() == at:
            raise CommsimError(f"found the hosts {text[:60]!r}, expected a list such as 'n1,n2' or 'node[001-128]'")
        before, ranges, after = match.groups()
        numbers = _numbers(ranges, text) if ranges is not None else [""]
        names += [f"{before}{number}{after}".strip() for number in numbers]
        at = match.end()
    return checked_hosts(names)


def checked_hosts(names: list[str]) -> tuple[str, ...]:
    """The names, if each is a host's and stands once; CommsimError else."""
    if not names:
        raise CommsimError("found no host, expected two at least")
    if len(names) > MOST_HOSTS:
        raise CommsimError(f"found {len(names):,} hosts, expected at most {MOST_HOSTS:,}")
    seen: set[str] = set()
    for name in names:
        if not HOST.fullmatch(name):
            raise CommsimError(f"found the host {name[:60]!r}, expected letters, digits, '.', '_' and '-'")
        if name in seen:
            raise CommsimError(f"found the host {name!r} twice, expected each once")
        seen.add(name)
    return tuple(names)


def _numbers(ranges: str, text: str) -> list[str]:
    """``08-10,12`` as 08, 09, 10, 12."""
    out: list[str] = []
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or len(part) > 20:
            raise CommsimError(f"found the range {part[:20]!r} in {text[:60]!r}, expected one such as 001-128")
        high = int(last) if dash else int(first)
        if not int(first) <= high <= int(first) + MOST_HOSTS:
            raise CommsimError(f"found the range {part!r}, expected at most {MOST_HOSTS:,} hosts, the first one first")
        out += [str(i).zfill(len(first)) for i in range(int(first), high + 1)]
    return out
