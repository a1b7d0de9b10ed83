"""Networks in files: ranks, switches and links as they are, where no machine of nodes and NICs is meant.

::

    name: two-cubes
    ranks: 4                       # gpu0 to gpu3; or their names
    switches: {sw: {copies: true}} # or [sw]
    links:
      - {ends: [gpu0, gpu1], bandwidth: 50 GB/s, latency: 0.7 us}
      - {ends: [gpu2, sw], bandwidth: 12.5 GB/s, latency: 1.3 us, one_way: true}
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from commsim.document.reading import read_documents
from commsim.document.types import Document
from commsim.document.validation import validate
from commsim.errors import Fault, TopologyError
from commsim.fields import Bandwidth, Seconds
from commsim.synthesis.network import FlowNetwork, Link, network_of

_Vertex = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
_Flag = Annotated[bool, Field(strict=True)]


class _NetworkBlock(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SwitchSpec(_NetworkBlock):
    """What a switch does beside passing bytes on."""

    copies: _Flag = Field(default=False, description="it sends what it takes in over several links (multicast)")
    adds: _Flag = Field(default=False, description="it adds what comes over several links (reduction)")


class NetworkLinkSpec(_NetworkBlock):
    """A link between two vertices, both ways unless it is `one_way` from the first to the second."""

    ends: tuple[_Vertex, _Vertex] = Field(description="two vertices")
    bandwidth: Bandwidth = Field(description="of one link, one direction")
    latency: Seconds = Field(default=0.0, description="of one link")
    count: Annotated[int, Field(strict=True, ge=1, le=1024)] = Field(default=1, description="links in parallel")
    one_way: _Flag = Field(default=False, description="from the first end to the second only")


class NetworkFile(_NetworkBlock):
    """A network file: ranks, switches, and all links."""

    name: Annotated[str, Field(strict=True, min_length=1, max_length=64)] | None = Field(
        default=None, description="of the network"
    )
    description: Annotated[str, Field(strict=True, max_length=400)] | None = Field(
        default=None, description="one sentence"
    )
    source: Annotated[str, Field(strict=True, max_length=400)] | None = Field(
        default=None, description="where the figures come from"
    )
    ranks: Annotated[int, Field(strict=True, ge=1, le=4096)] | Annotated[list[_Vertex], Field(max_length=4096)] = Field(
        description="how many, which are then gpu0, gpu1 and so on, or their names"
    )
    switches: list[_Vertex] | dict[_Vertex, SwitchSpec] = Field(
        default_factory=list, description="vertices without a rank, which pass bytes on"
    )
    links: Annotated[list[NetworkLinkSpec], Field(min_length=1, max_length=65536)] = Field(description="all links")


def is_network(document: Document) -> bool:
    """Whether a document is meant as a network: it has links beside its ranks, and no node."""
    data = document.data
    return isinstance(data, dict) and "links" in data and ("ranks" in data or "node" not in data)


def load_network(path: Path) -> FlowNetwork:
    """The network of a file; TopologyError with every fault and its place."""
    documents = read_documents(path, error=TopologyError)
    if len(documents) != 1:
        raise TopologyError([Fault(str(path), 0, 0, "", f"expected one network, found {len(documents)} documents")])
    return network_from(documents[0])


def network_from(document: Document) -> FlowNetwork:
    """The network of a document."""
    file = validate(NetworkFile, document, error=TopologyError)
    name = file.name or Path(document.file).stem
    ranks = [f"gpu{i}" for i in range(file.ranks)] if isinstance(file.ranks, int) else file.ranks
    switches = file.switches if isinstance(file.switches, dict) else dict.fromkeys(file.switches, SwitchSpec())
    known = {*ranks, *switches}
    faults = []
    for i, spec in enumerate(file.links):
        for k, end in enumerate(spec.ends):
            if end not in known:
                text = f"found {end!r}, expected one of the ranks {_some(ranks)} or switches {_some(list(switches))}"
                faults.append(document.fault(("links", i, "ends", k), text))
        if spec.ends[0] == spec.ends[1]:
            faults.append(document.fault(("links", i, "ends"), f"found {spec.ends[0]!r} twice, expected two vertices"))
        if not spec.bandwidth > 0:
            faults.append(document.fault(("links", i, "bandwidth"), "found 0 bytes/s, expected more"))
    both = sorted(set(ranks) & set(switches))
    if both:
        faults.append(document.fault(("switches",), f"found {_some(both)} among the ranks too, expected other names"))
    if faults:
        raise TopologyError(faults)
    links: list[Link] = []
    for spec in file.links:
        (a, b), rate = spec.ends, spec.bandwidth * spec.count
        links.append((a, b, rate, spec.latency))
        if not spec.one_way:
            links.append((b, a, rate, spec.latency))
    copies, adds = ([name for name, s in switches.items() if getattr(s, what)] for what in ("copies", "adds"))
    return network_of(links, ranks, name=name, copies=copies, adds=adds)


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (" ..." if len(names) > 6 else "") if names else "(none)"
