"""Searches the cuts of a model into replicas and the requests of each at once; every one is simulated.

One replica stands for all: they share no links, and requests are dealt to them evenly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commsim.document import raise_faults
from commsim.document.types import Document
from commsim.errors import CommsimError, Fault, InfeasibleError, ScenarioError
from commsim.generation.run_result import RunResult
from commsim.planner.question import Cluster
from commsim.planner.serving_question import ServingSpec
from commsim.scenario.generation import GenerationSpec, ReplicaMesh, machine_faults, model_of, requests_of
from commsim.scenario.generation_run import Serving, group_calls, serving_of
from commsim.scenario.setting import Setting
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.training.communicators import GroupCalls

MOST_REQUESTS, WAVES = 1500, 4
"""Requests of one simulated load, and how often every client sends one where that is less."""

GROWTH = 1.01
"""Tokens a second over those of the load before below which more clients are not tried."""

MOST_CLIENTS = 8192


@dataclass(frozen=True)
class ServingChoice:
    """A cut of a model on a machine with so many requests at once for each replica, and what came out.

    ``meets``: both waits are within what users accept.
    """

    machine: str
    cluster: int
    spec: GenerationSpec
    gpus: int
    replicas: int
    batch: int
    ttft_s: float
    tpot_s: float
    tokens_per_s_per_gpu: float
    cache_share: float
    weights_share: float  # of what an engine takes of a GPU
    meets: bool
    usd_per_million: float = 0.0  # tokens of answers, where a GPU-hour has a price

    @property
    def tokens_per_s_per_user(self) -> float:
        """Tokens a second that one client reads while its answer is made."""
        return 1.0 / self.tpot_s if self.tpot_s else 0.0


@dataclass
class ServingAnswer:
    """The choices in the order in which they were simulated, and how many cuts were left out, by reason."""

    choices: list[ServingChoice] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def ranked(self) -> list[ServingChoice]:
        """Those that users accept, most tokens a second per GPU first; then the others, quickest first."""
        within = sorted((c for c in self.choices if c.meets), key=lambda c: -c.tokens_per_s_per_gpu)
        return within + sorted((c for c in self.choices if not c.meets), key=lambda c: c.tpot_s)

    @property
    def front(self) -> list[ServingChoice]:
        """Choices than which no other gives users and GPUs as much, the quickest for users first."""
        front: list[ServingChoice] = []
        for choice in sorted(self.choices, key=lambda c: (c.tpot_s, -c.tokens_per_s_per_gpu)):
            if not front or choice.tokens_per_s_per_gpu > front[-1].tokens_per_s_per_gpu:
                front.append(choice)
        return front


@dataclass(frozen=True, eq=False)
class ServingMachine:
    """One of the machines of a question."""

    number: int
    cluster: Cluster
    setting: Setting
    topology: Topology


def machines_of(spec: ServingSpec, document: Document, base_dir: Path) -> list[ServingMachine]:
    """The machines of a question; faults are located at their cluster."""
    built, faults = list[ServingMachine](), list[Fault]()
    for i, cluster in enumerate(spec.clusters):
        try:
            topology = load_topology(cluster.topology, base_dir)
            setting = Setting.model_construct(name=cluster.title(), topology=cluster.topology, library=cluster.library)
            setting._document, setting._base_dir = document.part(("serve", "clusters", i)), base_dir
            built.append(ServingMachine(i, cluster, setting, topology))
        except ScenarioError as error:
            faults += error.faults or [document.fault(("serve", "clusters", i), str(error))]
        except CommsimError as error:
            faults.append(document.fault(("serve", "clusters", i), str(error)))
    if faults:
        raise_faults(faults)
    return built


Shown = Callable[[str, int, int], None]
"""(what is done, how many of it, of how many)."""


def search(spec: ServingSpec, machines: list[ServingMachine], answer: ServingAnswer, show: Shown | None = None) -> None:
    """Adds every choice to the answer; InfeasibleError where none of the cuts can run."""
    for machine in machines:
        calls = group_calls(machine.setting, machine.topology)
        cuts = list(_cuts(spec, machine))
        for done, one in enumerate(cuts, 1):
            _loads(spec, machine, one, calls, answer)
            if show is not None:
                show(machine.cluster.title(), done, len(cuts))
    if not answer.choices:
        reasons = "; ".join(f"{reason} ({n})" for reason, n in answer.left_out.most_common(3))
        raise InfeasibleError(f"found no cut of {spec.generation.model} that runs: {reasons or 'none was to be tried'}")


def _cuts(spec: ServingSpec, machine: ServingMachine) -> Iterator[GenerationSpec]:
    """The item for every cut, precision and framework that is to be tried."""
    given, asked, n = spec.search, spec.generation, machine.topology.world_size
    moe = model_of(asked, machine.setting.base_dir).moe is not None
    powers = [1 << i for i in range(n.bit_length()) if 1 << i <= n]
    near = max(machine.topology.ranks_per_node, 1)
    for tp in given.tp or [p for p in powers if p <= near]:
        for pp in given.pp:
            for groups in given.attention_dp or ([p for p in powers if p == 1 or p * tp <= 4 * near] if moe else [1]):
                across = tp * groups
                for ep in given.ep or (sorted({1, across}) if moe else [1]):
                    mesh = ReplicaMesh(tp=tp, pp=pp, attention_dp=groups, ep=ep)
                    if mesh.gpus > n or n % mesh.gpus:
                        continue
                    for precision in given.precision or (asked.precision,):
                        for framework in given.framework or (asked.framework,):
                            update = {"mesh": mesh, "precision": precision, "framework": framework}
                            accelerator = machine.cluster.accelerator or asked.accelerator
                            yield asked.model_copy(update=update | {"accelerator": accelerator})


def _loads(
    spec: ServingSpec, machine: ServingMachine, one: GenerationSpec, calls: GroupCalls, answer: ServingAnswer
) -> None:
    """More and more requests at once on one cut, until these give no more or users wait too long."""
    try:
        if faults := machine_faults(one, machine.topology, machine.setting.base_dir):
            raise ScenarioError(faults[0][1])
        longest = requests_of(one.model_copy(update={"batch": 1, "requests": 1000}), 1, Path()).longest
        serving = serving_of(machine.setting, machine.topology, one, calls, longest)
        if serving.decode.room.of(longest) > serving.decode.room.nbytes:
            raise InfeasibleError("a request does not fit the cache")
    except CommsimError as error:
        answer.left_out[str(error).split(":")[0].split(", expected")[0]] += 1
        return
    before = 0.0
    for batch in spec.search.batch or _ladder():
        choice = _simulated(spec, machine, one, serving, batch)
        answer.choices.append(choice)
        late = spec.most_tpot is not None and choice.tpot_s > 2 * spec.most_tpot
        if spec.search.batch is None and (late or choice.tokens_per_s_per_gpu < GROWTH * before):
            return
        before = choice.tokens_per_s_per_gpu


def _ladder() -> Iterator[int]:
    """1, 2, 4, 8, then with a step between: 12, 16, 24, 32 ..."""
    batch = 1
    while batch <= MOST_CLIENTS:
        yield batch
        if batch >= 8:
            yield batch * 3 // 2
        batch *= 2


def _simulated(
    spec: ServingSpec, machine: ServingMachine, one: GenerationSpec, serving: Serving, batch: int
) -> ServingChoice:
    count = max(2 * batch, min(WAVES * batch, MOST_REQUESTS))
    alone = Serving(serving.decode.alone(), serving.replica)
    run: RunResult = alone.run(requests_of(one.model_copy(update={"batch": batch, "requests": count}), 1, Path()))
    gpus, decode = serving.replica.gpus, run.steps[-1]
    rate = run.output_tokens_per_s / gpus
    meets = (spec.most_tpot is None or run.tpot_s <= spec.most_tpot) and (
        spec.most_ttft is None or run.ttft_s <= spec.most_ttft
    )
    memory = serving.memory
    return ServingChoice(
        machine=machine.cluster.title(),
        cluster=machine.number,
        spec=one,
        gpus=machine.topology.world_size,
        replicas=machine.topology.world_size // gpus,
        batch=batch,
        ttft_s=run.ttft_s,
        tpot_s=run.tpot_s,
        tokens_per_s_per_gpu=rate,
        cache_share=float(decode.cached.max(initial=0.0) / serving.decode.room.nbytes),
        weights_share=memory.weights_bytes / memory.room_bytes,
        meets=meets,
        usd_per_million=machine.cluster.gpu_hour_usd / 3600 / rate * 1e6,
    )


def scenario_of(choice: ServingChoice, spec: ServingSpec, name: str) -> dict[str, Any]:
    """The scenario file of a choice, as plain values: `commsim run` simulates it with all replicas."""
    item = choice.spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    item |= {"mesh": choice.spec.mesh.model_dump(exclude_defaults=True), "batch": choice.batch}
    cluster = spec.clusters[choice.cluster]
    topology, library = (
        block.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        for block in (cluster.topology, cluster.library)
    )
    return {
        "name": f"{name}: best",
        "topology": topology,
        **({"library": library} if library else {}),
        "workload": [{"generation": item}],
    }
