"""Where the ranks of a job are: which nodes of the machine, in which order, and in which order the GPUs of each.

NCCL numbers nodes by their first rank and rings over them in this order, so the order of a host file is that of the
ring (src/init.cc, initTransportsRank).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from commsim.document import raise_faults, refuse
from commsim.document.reading import read_text
from commsim.document.types import KeyFaults
from commsim.errors import Fault, TopologyError
from commsim.scenario.strict import MAX_RANKS, Strict, format_ranks, parse_ranks

if TYPE_CHECKING:
    from commsim.document import Document
    from commsim.topology.graph import Topology
    from commsim.topology.kinds import Int64

_WRITTEN = PlainSerializer(format_ranks, return_type=list[int | str])
_INPUT = int | str | list[int | str]

NodeList = Annotated[
    tuple[int, ...], BeforeValidator(partial(parse_ranks, noun="node"), json_schema_input_type=_INPUT), _WRITTEN
]
GpuList = Annotated[
    tuple[int, ...], BeforeValidator(partial(parse_ranks, noun="GPU"), json_schema_input_type=_INPUT), _WRITTEN
]


class PlacementSpec(Strict):
    """The nodes of the machine on which the ranks are, in their order; left out: all, in the machine's order."""

    nodes: NodeList | None = Field(
        default=None, description="which nodes, in the order of the host file, such as `[3, 0, 7 .. 9]`"
    )
    by: Literal["leaf", "random"] | None = Field(
        default=None,
        description=(
            "the order of the nodes, all or those of `free`: `leaf` takes them leaf by leaf, the leaf with most of "
            "them first; `random` shuffles them"
        ),
    )
    seed: Annotated[int, Field(strict=True, ge=0, le=2**32)] = Field(default=0, description="of `by: random`")
    free: str | None = Field(
        default=None,
        min_length=1,
        description=(
            "the free nodes of a busy cluster: a text file with a node or a range a line, `#` begins a comment; "
            "beside the scenario, as an override from where the program runs"
        ),
    )
    count: Annotated[int, Field(strict=True, ge=1, le=MAX_RANKS)] | None = Field(
        default=None, description="how many nodes are taken, the first of them; left out: all"
    )
    gpus: GpuList | None = Field(
        default=None, description="which GPUs of each node have ranks, in their order; left out: all, from 0 on"
    )

    @model_validator(mode="after")
    def _one_way(self) -> PlacementSpec:
        beside = [key for key in ("by", "free") if getattr(self, key) is not None]
        empty = self.nodes is None and self.count is None and self.gpus is None and not beside
        refuse(
            (empty, (), "found nothing placed, expected nodes, by, free, count or gpus"),
            *((self.nodes, (key,), f"found {key} beside nodes, expected one of them") for key in beside),
            (
                self.seed and self.by is None,
                ("seed",),
                "found a seed without by, expected by: random",
            ),
        )
        return self


@dataclass(frozen=True)
class Placed:
    """The nodes of a job in their order, and the rank of the machine at which each of its ranks is."""

    nodes: tuple[int, ...]
    ranks: tuple[int, ...]


def placed(spec: PlacementSpec | None, path: Path | None, document: Document, topology: Topology) -> Placed | None:
    """Where the ranks of a scenario are on its machine; None where it places none.

    `path` is that of the file of free nodes, where it names one. ScenarioError, at the keys or at the lines of that
    file, for what the machine does not have.
    """
    if spec is None:
        return None
    from commsim.topology.faults import check_joined

    free = None if path is None else read_nodes(path, topology.nodes)
    nodes = np.asarray(spec.nodes or free or range(topology.nodes), np.int64)
    faults: KeyFaults = []
    if wrong := nodes[nodes >= topology.nodes].tolist():
        faults.append((("nodes",), f"found node {wrong[0]}, expected one of the nodes 0..{topology.nodes - 1}"))
    elif spec.count is not None and spec.count > nodes.size:
        faults.append((("count",), f"found {spec.count} nodes to take, expected at most {nodes.size}"))
    if not faults:
        nodes = _ordered(spec, topology, nodes)[: spec.count]
        try:
            check_joined(topology, nodes)
        except TopologyError as error:
            faults.append(((), str(error)))
        gpus = np.diff(topology.node_first_rank)[nodes]
        if spec.gpus is not None and (most := max(spec.gpus)) >= gpus.min():
            few = int(nodes[gpus.argmin()])
            text = f"found GPU {most}, expected one of 0..{gpus.min() - 1}, which node {few} has"
            faults.append((("gpus",), text))
    if faults:
        raise_faults(document.fault(("placement", *at), text) for at, text in faults)
    own = range(0) if spec.gpus is None else spec.gpus
    first = topology.node_first_rank[nodes]
    ranks = [a + g for a, n in zip(first.tolist(), gpus.tolist(), strict=True) for g in own or range(n)]
    return Placed(tuple(nodes.tolist()), tuple(ranks))


def _ordered(spec: PlacementSpec, topology: Topology, nodes: Int64) -> Int64:
    if spec.by == "random":
        return np.random.default_rng(spec.seed).permutation(nodes)
    return by_leaf(topology, nodes) if spec.by == "leaf" else nodes


def by_leaf(topology: Topology, nodes: Int64) -> Int64:
    """The nodes leaf by leaf, the leaf that has most of them first, in their numbers' order under each."""
    nodes = np.sort(nodes)
    if topology.nodes == 1:
        return nodes
    leaf = topology.fabric.leaf[nodes, 0]
    return nodes[np.lexsort((leaf, -np.bincount(leaf)[leaf]))]


def read_nodes(path: Path, nodes: int) -> tuple[int, ...]:
    """The nodes that a file of free nodes lists, of a machine of so many; ScenarioError with every bad line."""
    first: dict[int, int] = {}
    faults = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.split("#", 1)[0].strip()
        if not text:
            continue
        column = len(line) - len(line.lstrip()) + 1
        try:
            listed = parse_ranks(int(text) if text.isascii() and text.isdigit() else text, noun="node")
        except ValueError as error:
            faults.append(Fault(str(path), number, column, "", str(error)))
            continue
        if wrong := [node for node in listed if node >= nodes]:
            message = f"found node {wrong[0]}, expected one of the nodes 0..{nodes - 1}"
            faults.append(Fault(str(path), number, column, "", message))
        elif again := [node for node in listed if node in first]:
            message = f"found node {again[0]} again (first on line {first[again[0]]}), expected each node once"
            faults.append(Fault(str(path), number, column, "", message))
        first |= dict.fromkeys((node for node in listed if node not in first), number)
    if not first and not faults:
        faults.append(Fault(str(path), 0, 0, "", "found no node, expected a node or a range a line"))
    if faults:
        raise_faults(faults)
    return tuple(first)
