"""Random machines: nodes of several kinds, faults, fabrics; and what must hold of NCCL's times on each.

``python -m tests.nccl.random_machines 5000`` hunts through as many, from seed 0 on, and prints what it finds.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commsim.bounds import lower_bound_s
from commsim.errors import CommsimError, TopologyError
from commsim.nccl.predict import Options, Predictor
from commsim.topology.faults import degraded
from commsim.topology.graph import Topology
from commsim.topology.kinds import LinkKind, VertexKind
from commsim.topology.presets import load_topology
from commsim.topology.spec import FaultSpec, TopologySpec

SERVERS = (
    "hgx-h100-ndr400", "dgx-a100-hdr200", "hgx-a100-4-hdr200", "hgx-b200-ndr400", "dgx-1v-edr100", "hgx-h100-4-ndr400",
    "aws-p4d", "hgx-h100-roce400", "gh200x4-ndr200", "h800-ndr400", "aws-p5", "hgx-a100-4-slingshot200",
)  # fmt: skip
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv", "gather",
               "scatter")  # fmt: skip
VERSIONS = ((2, 12, 12), (2, 18, 3), (2, 21, 5), (2, 23, 4), (2, 27, 5), (2, 29, 7))


@dataclass(frozen=True)
class Case:
    """A machine healthy and with its faults (None where these cut it in two), and a call."""

    spec: dict[str, Any]
    faults: tuple[FaultSpec, ...]
    healthy: Topology
    faulty: Topology | None
    options: Options
    collective: str
    nbytes: int
    ranks: tuple[int, ...] | None  # of a process group, in its order; None: all


def draw(seed: int) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    kinds = rng.choices((1, 2, 3), (5, 3, 1))[0]
    groups = []
    for name in rng.sample(SERVERS, kinds):
        group: dict[str, Any] = {"preset": name, "nodes": rng.randint(1 if kinds > 1 else 2, 5)}
        if rng.random() < 0.3:
            group["gpus_per_node"] = rng.choice((1, 2, 4))
        groups.append(group)
    fabric: dict[str, Any] = {"kind": rng.choice(("single_switch", "fat_tree", "rail_fat_tree", "torus", "dragonfly"))}
    fabric["network"] = rng.choice(("infiniband", "roce"))
    if fabric["kind"] in ("fat_tree", "rail_fat_tree"):
        fabric |= {"nodes_per_leaf": rng.randint(1, 3), "oversubscription": rng.choice((1.0, 2.0, 16.0))}
        fabric |= {"spines": rng.randint(1, 4), "routing": rng.choice(("shortest", "ecmp", "flowlet", "spray"))}
    elif fabric["kind"] == "torus":
        fabric |= {"dimensions": 2, "link_bandwidth": "50 GB/s"}
    elif fabric["kind"] == "dragonfly":
        fabric |= {"nodes_per_leaf": 2, "leaves_per_group": 2}
    spec = {"groups": groups, "fabric": fabric}
    healthy = load_topology(TopologySpec.model_validate(spec), Path())
    faults = tuple(_fault(rng, healthy) for _ in range(rng.randint(0, 4)))
    try:
        faulty = degraded(healthy, faults)
    except TopologyError:
        faulty = None
    options = Options(version=rng.choice(VERSIONS), mode=rng.choice(("back_to_back", "single")))
    nbytes, collective = 1 << rng.randint(3, 32), rng.choice(COLLECTIVES)
    return Case(spec, faults, healthy, faulty, options, collective, nbytes, _group(rng, healthy))


def case_of(
    spec: dict[str, Any], faults: list[dict[str, Any]], version: tuple[int, int, int], collective: str, nbytes: int
) -> Case:
    """A case of its own: all ranks, calls back to back."""
    healthy = load_topology(TopologySpec.model_validate(spec), Path())
    parsed = tuple(FaultSpec(**fault) for fault in faults)
    return Case(spec, parsed, healthy, degraded(healthy, parsed), Options(version=version), collective, nbytes, None)


def _group(rng: random.Random, t: Topology) -> tuple[int, ...] | None:
    """Mostly all ranks; else those of a mesh's axis, of some nodes, or any, by number or shuffled."""
    what, n = rng.choices(("all", "axis", "nodes", "any"), (5, 1, 1, 1))[0], t.world_size
    if what == "all" or n < 4:
        return None
    if what == "axis":
        step = rng.randint(2, n // 2)
        ranks = list(range(rng.randrange(step), n, step))
    elif what == "nodes":
        nodes = rng.sample(range(t.nodes), rng.randint(1, t.nodes))
        ranks = [rank for node in nodes for rank in range(*t.node_first_rank[[node, node + 1]].tolist())]
    else:
        ranks = rng.sample(range(n), rng.randint(2, n))
    if rng.random() < 0.5:
        ranks.sort()
    return tuple(ranks) if len(ranks) > 1 else None


def _fault(rng: random.Random, t: Topology) -> FaultSpec:
    """A degraded or failed node, NIC, link or switch."""
    what = {"failed": True} if rng.random() < 0.3 else {"bandwidth_factor": rng.choice((0.01, 0.1, 0.5, 0.9))}
    if rng.random() < 0.15:
        what = {"latency_factor": rng.choice((2.0, 20.0, 1000.0))}
    place = rng.choice(("node", "nic", "link", "link", "switch"))
    if place == "node":
        return FaultSpec(node=rng.randrange(t.nodes), bandwidth_factor=rng.choice((0.1, 0.5)))
    if place == "nic":
        node = rng.randrange(t.nodes)
        return FaultSpec(nic=(node, rng.randrange(int(t.nics_of_nodes[node]))), **what)
    if place == "switch":
        switches = [i for i, kind in enumerate(t.vertex_kind) if kind == VertexKind.SWITCH]
        return FaultSpec(switch=t.vertex_name[rng.choice(switches)], **what)
    link = rng.randrange(len(t.link_src))
    if t.link_kind[link] == LinkKind.HOST:
        what = {"bandwidth_factor": 0.5}
    return FaultSpec(link=(t.vertex_name[t.link_src[link]], t.vertex_name[t.link_dst[link]]), **what)


def model_of(case: Case, topology: Topology) -> Predictor:
    """The model of the case on a topology."""
    return Predictor(topology, case.options, ranks=case.ranks)


def faults_of(case: Case) -> list[str]:
    """What does not hold of a case, in words: times under the bound; a fault that makes what is chosen quicker."""
    wrong = []
    models = {"healthy": model_of(case, case.healthy)}
    if case.faulty is not None:
        models["faulty"] = model_of(case, case.faulty)
    for name, model in models.items():
        got, topology = model.predict(case.collective, case.nbytes), model.nodes.comm.topology
        switches = all(group.has_nvswitch and group.gpu.sm >= 90 for group in topology.groups)
        bound = lower_bound_s(case.collective, case.nbytes, topology, in_network=switches, ranks=case.ranks).seconds
        if got.time_s < bound * (1 - 1e-9):
            wrong.append(f"{name}: {got.time_s:.6g} s under the bound of {bound:.6g} s ({got.algorithm}, {got.limit})")
    if case.faulty is None or chosen(models["faulty"]) != chosen(models["healthy"]):
        return wrong
    healthy = models["healthy"].predict(case.collective, case.nbytes)
    held = case.options
    if healthy.algorithm != "send_recv":
        held = replace(held, algorithm=healthy.algorithm, protocol=healthy.protocol, channels=healthy.channels)
    try:
        before, after = (held_to(held, model).predict(case.collective, case.nbytes) for model in models.values())
    except CommsimError:  # the choice is not open to the faulty machine
        return wrong
    if after.time_s < before.time_s * (1 - 1e-9):
        wrong.append(f"faulty is quicker: {after.time_s:.9g} s, healthy {before.time_s:.9g} s ({healthy.algorithm})")
    return wrong


def held_to(options: Options, model: Predictor) -> Predictor:
    """The model with other options of calls, without another search."""
    other = copy(model)
    other.options = replace(options, env=model.options.env)
    return other


def chosen(model: Predictor) -> tuple[object, ...]:
    """What NCCL chose before any call: channels and graphs of the communicator, and of each node by itself."""
    kinds, kind = model.nodes.kinds, model.nodes.comm.kind
    own = [(kinds[k].system.ring, kinds[k].system.tree) for k in kind.tolist()]
    return model.system, own


def _look_at(seed: int, seen: Counter[str]) -> None:
    """One machine: counts it, prints what is wrong."""
    case = draw(seed)
    seen["machines"] += 1
    seen["faulty"] += bool(case.faults) and case.faulty is not None
    seen["cut in two"] += case.faulty is None
    seen["of several kinds"] += len(case.healthy.groups) > 1
    seen["groups"] += case.ranks is not None
    try:
        wrong = faults_of(case)
    except Exception as error:  # which a user would see as an internal error
        wrong = [f"{type(error).__name__}: {error}"]
    for text in wrong:
        seen["wrong"] += 1
        faults = [f.model_dump(exclude_none=True, exclude_defaults=True) for f in case.faults]
        what = f"{case.collective} of {case.nbytes}, {case.options.version}, {case.spec}, {faults}, {case.ranks}"
        sys.stdout.write(f"seed {seed}: {text}\n  {what}\n")
        sys.stdout.flush()


def main() -> None:
    """Hunts; Ctrl-C ends it with what was seen."""
    first, count = (int(sys.argv[2]) if len(sys.argv) > 2 else 0), int(sys.argv[1])
    seen = Counter[str]()
    try:
        for seed in range(first, first + count):
            _look_at(seed, seen)
    except KeyboardInterrupt:
        seen["up to seed"] = seed
    sys.stdout.write(", ".join(f"{name}: {n}" for name, n in seen.items()) + "\n")


if __name__ == "__main__":
    main()
