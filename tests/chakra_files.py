"""Chakra files of our own making for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from commsim.chakra.trace import Node
from commsim.chakra.writing import trace_bytes

SCENARIO = """name: replay
topology: {{preset: hgx-h100-ndr400, nodes: {nodes}}}
library: {{name: nccl, version: 2.26.2}}
workload:
  - trace: {{path: {path}{more}}}
"""


def write_traces(folder: Path, ranks: Mapping[int, Sequence[Node]], prefix: str = "t") -> Path:
    """Files PREFIX.RANK.et; returns the prefix's path."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, nodes in ranks.items():
        (folder / f"{prefix}.{rank}.et").write_bytes(trace_bytes(nodes))
    return folder / prefix


def write_scenario(folder: Path, path: str = "t", more: str = "", nodes: int = 1) -> Path:
    """A scenario that replays ``path`` on machines of eight H100; ``more``: further keys of the item."""
    file = folder / "replay.yaml"
    file.write_text(SCENARIO.format(path=path, more=f", {more}" if more else "", nodes=nodes))
    return file


def work(index: int, seconds: float, *deps: int, name: str = "work") -> Node:
    """A compute node."""
    return Node(index, name, "compute", deps, seconds=seconds)


def call(index: int, collective: str, nbytes: int, *deps: int, group: str = "") -> Node:
    """A collective."""
    return Node(index, collective, "collective", deps, nbytes=nbytes, collective=collective, group=group)


def message(index: int, kind: str, peer: int, nbytes: int, *deps: int, tag: int = 0) -> Node:
    """A send or recv."""
    return Node(index, kind, kind, deps, nbytes=nbytes, peer=peer, tag=tag)  # type: ignore[arg-type]
