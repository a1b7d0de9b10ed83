"""Runs a ``generation:`` item: steps by the step model on the scenario's machine, requests by simulation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from commsim.errors import InfeasibleError
from commsim.generation.cache_send import CacheWays, PoolPlace
from commsim.generation.collectives import Collectives, NcclSeconds
from commsim.generation.memory import ReplicaMemory, replica_memory
from commsim.generation.queue import EnginePool, simulate_pool, simulate_split
from commsim.generation.replica import Replica
from commsim.generation.requests import Requests
from commsim.generation.room import room_of
from commsim.generation.run_result import RunResult
from commsim.generation.step import StepModel
from commsim.generation.step_table import StepTable
from commsim.nccl.plugins import for_groups
from commsim.nccl.predict import Options
from commsim.nccl.version import parse_version
from commsim.scenario.generation import GenerationSpec, ReplicaMesh, policy_for, replica_of, replicas_on, requests_of
from commsim.scenario.generation_result import GenerationItem, LoadPoint
from commsim.scenario.params import nccl_parameters
from commsim.scenario.predictors import refuse_unlike_networks, survived
from commsim.training.communicators import GroupCalls
from commsim.training.nccl_groups import NcclGroups
from commsim.units import GIB, GIGA

if TYPE_CHECKING:
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology
    from commsim.training.model import Model

MOST_LOADS, FEW_REQUESTS = 10, 2000
"""Loads beside the one asked for, and the requests of each from which on fewer than ten waves are simulated."""


@dataclass(frozen=True, eq=False)
class Serving:
    """Engines on a machine: the pool that decodes, the one that reads prompts if there is one, and the ways between."""

    decode: EnginePool
    replica: Replica
    prefill: EnginePool | None = None
    reader: Replica | None = None
    ways: CacheWays | None = None

    @property
    def memory(self) -> ReplicaMemory:
        """Of one GPU of a replica that decodes."""
        return replica_memory(self.replica)

    def run(self, requests: Requests) -> RunResult:
        """Some requests, answered."""
        if self.prefill is None:
            return simulate_pool(self.decode, requests)
        assert self.ways is not None
        return simulate_split(self.prefill, self.decode, self.ways.sender(), requests)


def run_generation(
    setting: Setting, topology: Topology, spec: GenerationSpec, *, loads: bool = True
) -> tuple[GenerationItem, list[str]]:
    """(item, warnings) of one item on the scenario's machine; InfeasibleError where the model or a request has no room.

    With `loads` it is also run at other loads.
    """
    base_dir = setting.base_dir
    calls = group_calls(setting, topology)
    requests = requests_of(spec, replicas_on(spec, topology), base_dir)
    serving = serving_of(setting, topology, spec, calls, requests.longest)
    run = serving.run(requests)
    item = GenerationItem(
        name=setting.name,
        spec=spec,
        replica=serving.replica,
        reader=serving.reader,
        replicas=serving.decode.replicas,
        readers=0 if serving.prefill is None else serving.prefill.replicas,
        gpus=topology.world_size,
        clients=0 if requests.arrival_s is not None else requests.concurrency,
        memory=serving.memory,
        room=serving.decode.room,
        policy=serving.decode.policy,
        run=run,
        loads=tuple(other_loads(serving, requests, topology.world_size)) if loads else (),
    )
    model = serving.replica.model
    said = (model.caveat, serving.replica.wide_products, _too_long(model, requests.longest))
    return item, [*calls.warnings, *filter(None, said)]


def _too_long(model: Model, longest: int) -> str:
    """A sentence where requests are longer than the model is known to take: by its positions, or its config.json."""
    most = model.context or (model.seq_len if model.positions == "learned" else 0)
    if not 0 < most < longest:
        return ""
    return f"the longest request has {longest:,} tokens, but {model.name} was made for {most:,}"


def serving_of(setting: Setting, topology: Topology, spec: GenerationSpec, calls: GroupCalls, longest: int) -> Serving:
    """The engines of an item, for requests of so many tokens at most."""

    def pool(mesh: ReplicaMesh, replicas: int, budget: int | None = None) -> tuple[EnginePool, Replica]:
        replica = replica_of(spec, mesh, topology, setting.base_dir)
        _check_weights(replica, replica_memory(replica))
        collectives = Collectives(
            replica.gpu,
            replica.engine,
            nccl_of(calls, topology),
            near=topology.ranks_per_node,
            nic_bytes_per_s=topology.nics_per_node * topology.nic_bandwidth / topology.ranks_per_node or GIGA,
        )
        table = StepTable(StepModel(replica, collectives).seconds)
        policy = policy_for(spec, replica)
        if budget is not None:
            policy = replace(policy, token_budget=budget)
        return EnginePool(table, room_of(replica, longest), policy, replicas), replica

    decode, replica = pool(spec.mesh, replicas_on(spec, topology))
    if spec.prefill is None:
        return Serving(decode, replica)
    prefill, reader = pool(spec.prefill.mesh, spec.prefill.replicas, spec.prefill.token_budget)
    taken = prefill.replicas * reader.gpus
    readers = PoolPlace(reader, tuple(range(0, taken, reader.gpus)))
    decoders = PoolPlace(replica, tuple(range(taken, topology.world_size, replica.gpus)))
    return Serving(decode, replica, prefill, reader, CacheWays(readers, decoders, topology))


def group_calls(setting: Setting, topology: Topology) -> NcclGroups:
    """NCCL on groups of the machine; calls in a CUDA graph follow each other, so that nobody waits for a launch."""
    version = parse_version(setting.library.version)
    env, text = for_groups(topology, version, setting.library.env)
    own, _ = nccl_parameters(setting, topology)
    calls = NcclGroups(topology, Options(version=version, env=env, registered=setting.library.registered), own)
    calls.warnings += [text] if text else []
    refuse_unlike_networks(setting, topology)
    calls.warnings += survived(setting)
    return calls


def nccl_of(calls: GroupCalls, topology: Topology) -> NcclSeconds:
    """Seconds of a call of so many ranks that follow one another: of all such groups of the machine at once."""
    groups: dict[int, np.ndarray[tuple[int, int], np.dtype[np.int64]]] = {}

    def seconds(collective: str, ranks: int, nbytes: float) -> float:
        if ranks not in groups:
            many = topology.world_size // ranks
            groups[ranks] = np.arange(many * ranks, dtype=np.int64).reshape(many, ranks)
        return calls(collective, nbytes, groups[ranks])

    return seconds


def other_loads(serving: Serving, requests: Requests, gpus: int) -> list[LoadPoint]:
    """The same requests in closed loops of one client of each replica, two, four and so on, until more give nothing.

    The last is the first load at which tokens per second grow by less than a twentieth, or which is four times what the
    item asks for.
    """
    points: list[LoadPoint] = []
    replicas, asked = serving.decode.replicas, requests.concurrency
    most = 4 * asked if requests.arrival_s is None else 4096 * replicas
    clients = replicas
    while len(points) < MOST_LOADS and clients <= most:
        count = min(requests.count, max(2 * clients, min(10 * clients, FEW_REQUESTS)))
        if count < clients:
            break
        some = Requests(requests.prompt[:count], requests.answer[:count]).closed(clients)
        points.append(LoadPoint.of(clients, serving.run(some), gpus))
        if len(points) > 1 and points[-1].tokens_per_s_per_gpu < 1.05 * points[-2].tokens_per_s_per_gpu:
            break
        clients *= 2
    return points


def _check_weights(replica: Replica, memory: ReplicaMemory) -> None:
    """InfeasibleError where a GPU has no room beside the weights."""
    if memory.fits:
        return
    gpu = replica.gpu
    raise InfeasibleError(
        f"{replica.model.name} does not fit on {replica.gpus} {gpu.name}: the weights take "
        f"{memory.weights_bytes / GIB:.1f} GiB of each GPU, of the {memory.room_bytes / GIB:.1f} GiB that an engine "
        "takes of it; expected more tp or pp, or weights of fewer bits"
    )
