"""Topologies from plain data, as a scenario would state them, and the laws that every topology keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from commsim.document import Document, validate
from commsim.errors import TopologyError
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec


def machine(**data: Any) -> Topology:
    """The topology of a description, by the way that files take."""
    document = Document(file="machine", data=data, marks={})
    return load_topology(validate(TopologySpec, document, error=TopologyError), Path())


def small(nodes: int, **fabric: Any) -> Topology:
    """Nodes of two H100 and two 50 GB/s NICs on a fabric."""
    nics = fabric.pop("nics", 2)
    faults = fabric.pop("faults", None)
    knobs = {"nodes": nodes, "gpus_per_node": 2, "nics_per_node": nics, "nic_bandwidth": "400 Gb/s"}
    more = {} if faults is None else {"faults": faults}
    return machine(preset="hgx-h100", **knobs, fabric=fabric, **more)


def path(topology: Topology, src: int, dst: int, nic: int | None = None) -> list[str]:
    """Names of the vertices of a route."""
    links = topology.route(src, dst, nic)
    ends = [topology.link_src[links[0]], *topology.link_dst[links]] if len(links) else []
    return [topology.vertex_name[v] for v in ends]


def switches(topology: Topology, src: int, dst: int, nic: int | None = None) -> list[str]:
    """Names of the switches of a route."""
    return [n for n in path(topology, src, dst, nic) if not n.startswith("node")]


def all_routes(topology: Topology) -> list[list[int]]:
    """The links of all pairs, row by row."""
    n = topology.world_size
    ranks = np.arange(n)
    table = topology.routes(np.repeat(ranks, n), np.tile(ranks, n))
    return [table.links(k).tolist() for k in range(n * n)]


def assert_sound(topology: Topology) -> None:
    """All pairs are routed, contiguously, over no vertex twice; the declared period maps routes onto routes."""
    n, routes = topology.world_size, all_routes(topology)
    for k, links in enumerate(routes):
        a, b = divmod(k, n)
        ends = [int(topology.rank_vertex[a]), *(int(topology.link_dst[i]) for i in links)]
        assert [int(topology.link_src[i]) for i in links] == ends[:-1]
        assert ends[-1] == topology.rank_vertex[b]
        assert len(set(ends)) == len(ends)
        if topology.link_failed is not None:
            assert not topology.link_failed[links].any()
    if topology.period_ranks is None:
        return
    for shift in {topology.period_ranks, 2 * topology.period_ranks % n, n}:
        image = topology.link_image(shift)
        assert len(set(image.tolist())) == len(image)
        for k, links in enumerate(routes):
            a, b = divmod(k, n)
            assert image[links].tolist() == routes[(a + shift) % n * n + (b + shift) % n]


def assert_alike_both_ways(topology: Topology) -> None:
    """As many hops from a to b as from b to a."""
    hops = np.array([len(r) for r in all_routes(topology)]).reshape(topology.world_size, -1)
    assert (hops == hops.T).all()
