"""Random machines, and families and schedules of messages on them, for tests that hold two roads to one number."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

import numpy as np
from machines import machine

from commsim.collectives import registry
from commsim.collectives.schedule import Schedule
from commsim.engine.family import Family, Phase, hierarchical_family, ring_family
from commsim.errors import ScheduleError, TopologyError
from commsim.topology.graph import Topology

_NODES = ("hgx-h100-ndr400", "hgx-a100-4-hdr200", "dgx-1v-edr100", "dgx-a100-hdr200", "dgx-2-edr100")


def random_fabric(rng: np.random.Generator) -> dict[str, Any]:
    """A topology as a scenario states it; it may be one that cannot be built."""
    nodes = int(rng.choice([1, 2, 3, 4, 6, 8]))
    data: dict[str, Any] = {"preset": str(rng.choice(_NODES)), "nodes": nodes}
    if rng.random() < 0.7:
        data["nodes_per_leaf"] = int(rng.choice([d for d in range(1, nodes + 1) if nodes % d == 0]))
        data["oversubscription"] = float(rng.choice([1, 2, 3, 4]))
    if rng.random() < 0.4:
        data["fabric"] = {"kind": "fat_tree", "spines": int(rng.choice([1, 2, 3, 4]))}
    if rng.random() < 0.3:
        data["nics_per_node"] = int(rng.choice([1, 2, 4]))
    return data


def random_machines(rng: np.random.Generator, count: int) -> Iterator[tuple[dict[str, Any], Topology]]:
    """``count`` random fabrics that can be built, as data and as topology."""
    while count:
        data = random_fabric(rng)
        try:
            topology = machine(**data)
        except TopologyError:
            continue
        count -= 1
        yield data, topology


def random_families(rng: np.random.Generator, topology: Topology) -> list[Family]:
    """Rings in the order of ranks and by a stride, a hierarchical all_reduce, and shifts by three random distances."""
    n, node = topology.world_size, topology.ranks_per_node if topology.uniform else 1
    channels, pipeline = int(rng.choice([1, 2, 3])), int(rng.choice([1, 2]))
    size = n * channels * pipeline * int(rng.choice([256, 10_000, 1 << 20]))
    stride = int(rng.choice([k for k in range(1, n) if gcd(k, n) == 1]))
    divisor = int(rng.choice([d for d in range(1, n + 1) if n % d == 0]))
    ranks = np.arange(n)
    shifts = tuple(
        Phase((ranks + rng.integers(n)) % n, int(rng.integers(1, 6)), int(rng.choice([1000, 1 << 16, 1 << 20])))
        for _ in range(3)
    )
    collective = str(rng.choice(["all_reduce", "all_gather", "reduce_scatter"]))
    return [
        ring_family(collective, n, size, channels, pipeline=pipeline),
        ring_family("all_reduce", n, size, channels, order=[i * stride % n for i in range(n)], pipeline=pipeline),
        hierarchical_family(n, n * channels * int(rng.choice([256, 10_000, 1 << 18])), node, channels),
        hierarchical_family(n, n * channels * 10_000, divisor, channels),
        Family("all_to_all", "shifts", n, 0, shifts, channels, channels),
    ]


def random_schedule(rng: np.random.Generator, topology: Topology) -> Schedule | None:
    """A schedule of any collective and algorithm; None where the draw does not fit."""
    names = list(registry.names())
    collective, algorithm = names[int(rng.integers(len(names)))]
    try:
        return registry.build(
            collective,
            algorithm,
            topology.world_size,
            int(rng.choice([3 << 12, 1 << 16, 10**6, 1 << 20, 1 << 24])),
            channels=int(rng.choice([1, 1, 2, 3, 4])),
            chunks=int(rng.choice([1, 1, 2, 3, 5, 8])),
            itemsize=4,
            ranks_per_node=topology.ranks_per_node,
        )
    except ScheduleError:
        return None
