"""Who takes part in a collective of a trace: all ranks, a named process group, or those along some axes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from commsim.chakra.trace import Node, Trace
from commsim.errors import ScenarioError
from commsim.files import text_within

Members = tuple[int, ...]

MOST_FILE_BYTES = 64 << 20


def read_groups(path: Path, world_size: int) -> dict[str, Members]:
    """Process groups of a JSON file, ``{"NAME": [rank, ...], ...}`` (the form of ASTRA-sim's comm_group file)."""
    try:
        text = text_within(path, MOST_FILE_BYTES)
        if text is None:
            raise ScenarioError(f"{path}: found over {MOST_FILE_BYTES >> 20} MiB, expected the groups of ranks by name")
        listed = json.loads(text)
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ScenarioError(
            f"{path}: found no JSON ({str(error)[:80]}), expected the groups of ranks by name"
        ) from None
    if not isinstance(listed, dict):
        raise ScenarioError(f"{path}: found JSON that is no mapping, expected the groups of ranks by name")
    groups: dict[str, Members] = {}
    for name, ranks in listed.items():
        whole = isinstance(ranks, list) and all(isinstance(r, int) and not isinstance(r, bool) for r in ranks)
        if not whole or not ranks:
            raise ScenarioError(f"{path}: {name[:40]!r}: found no list of ranks, expected one such as [0, 1, 2, 3]")
        wrong = next((r for r in ranks if not 0 <= r < world_size), None)
        if wrong is not None:
            text = f"found rank {wrong}, expected one of the {world_size} ranks 0..{world_size - 1} of the trace"
            raise ScenarioError(f"{path}: {name[:40]!r}: {text}")
        if len(set(ranks)) < len(ranks):
            raise ScenarioError(f"{path}: {name[:40]!r}: found a rank twice, expected every rank once")
        groups[name] = tuple(ranks)
    return groups


@dataclass
class Groups:
    """Resolves the members of a collective.

    A name is looked up in ``listed`` (a file that the user names), then among the groups that the rank's own trace
    lists; else its members are the ranks whose traces use it, which ``guessed`` collects. ``axes``: sizes of the axes
    that ``involved_dim`` counts, innermost first. ``moved``: of a trace that stands in for another rank's, how far.
    """

    traces: Sequence[Trace | None]
    moved: Sequence[int]
    listed: Mapping[str, Members]
    axes: Sequence[int]
    guessed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._using: dict[str, list[int]] = {}
        self._listed: dict[tuple[str, int], Members] = {}  # by name and how far moved: many ranks ask for the same
        for rank, trace in enumerate(self.traces):
            for name in {node.group for node in trace.nodes if node.group} if trace else ():
                self._using.setdefault(name, []).append(rank)

    @property
    def world_size(self) -> int:
        """Ranks of the trace."""
        return len(self.traces)

    def members(self, rank: int, node: Node) -> Members:
        """The ranks of a collective of a rank's trace, itself among them; ValueError where they cannot be known."""
        if node.group:
            members = self._named(rank, node.group)
        elif node.dims and not all(node.dims):
            members = self._along(rank, node.dims)
        else:
            members = tuple(range(self.world_size))
        if rank not in members:
            raise ValueError(f"rank {rank} is not in the process group {node.group!r}: {shortened(members)}")
        if node.group_size and node.group_size != len(members):
            raise ValueError(
                f"found a pg_size of {node.group_size}, but the process group {node.group!r} has {len(members)} ranks: "
                f"{shortened(members)}; expected a file of groups that says who they are (groups)"
            )
        return members

    def _named(self, rank: int, name: str) -> Members:
        trace, moved = self.traces[rank], self.moved[rank]
        if known := self._listed.get((name, moved)):
            return known
        members = self.listed.get(name) or (trace.groups.get(name) if trace else None)
        if members is not None:
            world_size = self.world_size
            members = tuple(sorted((member + moved) % world_size for member in members))
            if self.listed.get(name):
                self._listed[name, moved] = members
            return members
        self.guessed.add(name)
        return tuple(self._using[name])

    def _along(self, rank: int, dims: Sequence[bool]) -> Members:
        """Ranks that differ from a rank only on the axes involved, in rank order."""
        axes = tuple(self.axes)
        if len(axes) != len(dims) or math.prod(axes) != self.world_size:
            text = f"found an involved_dim of {len(dims)} axes, but axes {list(axes)} of {self.world_size} ranks"
            raise ValueError(f"{text}; expected dims in the scenario: as many sizes, innermost first")
        ranks, stride = [0], 1
        for size, involved in zip(axes, dims, strict=True):
            own = rank // stride % size
            ranks = [base + i * stride for i in (range(size) if involved else (own,)) for base in ranks]
            stride *= size
        return tuple(sorted(ranks))


def shortened(ranks: Sequence[int]) -> str:
    """The first few ranks, as text."""
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
