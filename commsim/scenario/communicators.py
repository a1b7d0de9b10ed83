"""The communicators behind a scenario's items, and the memory that each takes of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commsim.errors import CommsimError
from commsim.nccl.environment import FUNCTIONS
from commsim.nccl.memory import CommunicatorMemory, communicator_memory, kernel_bytes
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.version import parse_version
from commsim.scenario.item import Item
from commsim.scenario.training import accelerator_of
from commsim.scenario.training_result import TrainingItem
from commsim.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from commsim.scenario.result import Result
    from commsim.scenario.run import Prepared
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology


@dataclass(frozen=True)
class CommunicatorUse:
    """A communicator by what it is of: the collectives of a scenario, or a stage of a training step."""

    of: str
    memory: CommunicatorMemory
    part: str = "the collectives"  # what else is on the same GPU

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {"of": self.of, **self.memory.to_dict()}


@dataclass(frozen=True)
class CommunicatorsOfScenario:
    """Those that NCCL makes for a scenario, NCCL's kernels beside them, and what is left out, as sentences."""

    uses: tuple[CommunicatorUse, ...]
    kernels: int
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        held = [use.to_dict() for use in self.uses]
        return {"communicators": held, "kernel_bytes": self.kernels, "notes": list(self.notes)}


def communicators_of_scenario(prepared: Prepared, result: Result) -> CommunicatorsOfScenario:
    """The communicators of a scenario that has been run.

    Collectives with the same variables share one, which calls them in the order of the file and their sizes. Beside
    kernels of a framework stands its NCCL, for the sizes that fall back to it.
    """
    scenario, notes = prepared.scenario, []
    if scenario.library.name == "custom_all_reduce":
        from commsim.scenario.kernel_rows import beside_kernels

        notes.append(f"the buffers of {scenario.library.framework}'s own kernels are not counted")
        scenario = beside_kernels(scenario)
    if scenario.library.name != "nccl":
        return CommunicatorsOfScenario((), 0, (f"the library is {scenario.library.name}: none of NCCL's",))
    uses = (*_of_collectives(prepared, scenario, result), *_of_trainings(result))
    others = sorted({answer.kind for answer in result.answers} - {Item.kind, TrainingItem.kind})
    notes += [f"the communicators of {kind} are not counted" for kind in others]
    version = parse_version(scenario.library.version)
    kernels = kernel_bytes(min(group.gpu.sm for group in prepared.topology.groups), version) if uses else 0
    notes += _beyond_memory(prepared.topology, uses, kernels)
    return CommunicatorsOfScenario(uses, kernels, tuple(notes))


def _beyond_memory(topology: Topology, uses: Iterable[CommunicatorUse], kernels: int) -> Iterator[str]:
    """Of each part of the scenario, whose communicators all lie on one GPU, that no GPU has memory for."""
    try:
        gpu = accelerator_of(topology)
    except CommsimError:  # no datasheet says how much it has
        return
    taken: dict[str, int] = {}
    for use in uses:
        taken[use.part] = taken.get(use.part, kernels) + use.memory.gpu
    for part, nbytes in taken.items():
        if nbytes > gpu.memory_bytes:
            yield (
                f"the communicators of {part} take {format_bytes(nbytes)} of a GPU, and {gpu.name} has "
                f"{format_bytes(gpu.memory_bytes)}: NCCL would run out of memory"
            )


def _of_collectives(prepared: Prepared, scenario: Scenario, result: Result) -> Iterator[CommunicatorUse]:
    """Of the scenario's NCCL, which is that of the prepared one or stands beside its kernels."""
    from commsim.scenario.setting import nccl_graphs

    topology, own = prepared.topology, _own_kernels(result)
    version, graphs = parse_version(scenario.library.version), nccl_graphs(scenario, topology)
    registered = scenario.library.registered
    ranks = None if prepared.placed is None else prepared.placed.ranks
    models: dict[tuple[tuple[str, str], ...], Predictor] = {}
    calls: dict[tuple[tuple[str, str], ...], list[tuple[str, str]]] = {}
    measured = [int(size) for curve in prepared.measured for size in curve.size_bytes]
    for work in scenario.collectives:
        env = scenario.nccl_env(work)
        key = tuple(sorted(env.items()))
        if key not in models:
            options = Options(version, env, operation=work.operation, graphs=graphs, registered=registered)
            models[key] = Predictor(topology, options, None, ranks)
        model, mine = models[key], calls.setdefault(key, [])
        if work.collective not in FUNCTIONS:
            mine.append((work.collective, ""))
            continue
        sizes = [size for size in work.sizes or measured if size and (work, size) not in own]
        if model.system.ranks > 1:
            mine += [(work.collective, model.predict(work.collective, size).algorithm) for size in sizes]
    for key, model in models.items():
        memory = communicator_memory(model, calls[key])
        names = ", ".join(dict.fromkeys(work.collective for work in scenario.collectives if _same(scenario, work, key)))
        yield CommunicatorUse(names, memory)


def _own_kernels(result: Result) -> set[tuple[Any, int]]:
    """Items and sizes that a framework's own kernels run."""
    if result.scenario.library.name != "custom_all_reduce":
        return set()
    pairs = zip(result.scenario.workload, result.answers, strict=True)
    of_items = [(work, item) for work, item in pairs if isinstance(item, Item)]
    return {(work, r.size_bytes) for work, item in of_items for r in item.rows if not r.algorithm.startswith("nccl")}


def _same(scenario: Any, work: Any, key: tuple[tuple[str, str], ...]) -> bool:
    return tuple(sorted(scenario.nccl_env(work).items())) == key


def _of_trainings(result: Result) -> Iterator[CommunicatorUse]:
    for item in result.answers:
        if isinstance(item, TrainingItem) and item.communicators is not None:
            for stage, held in enumerate(item.communicators.stages):
                yield from (
                    CommunicatorUse(f"stage {stage}", memory, f"{item.name}, stage {stage},") for memory in held
                )
