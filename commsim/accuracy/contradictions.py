"""What a measured log says that its scenario does not: another GPU, nodes, version, launch, buffers, variables."""

from __future__ import annotations

from collections.abc import Iterator

from commsim.accuracy.gpu_name import gpu_name, is_gpu
from commsim.accuracy.log_facts import LogFacts, facts_of
from commsim.accuracy.log_machine import SERVER
from commsim.measure.records import Curve
from commsim.nccl.version import format_version
from commsim.scenario.schema import Scenario
from commsim.scenario.setting import build_topology
from commsim.topology.graph import Topology

_SIDE_BY_SIDE = {"thread_per_gpu": "process_per_gpu"}
"""Launches that NCCL makes alike: threads launch beside each other as processes do."""

_CHOOSING = ("NCCL_ALGO", "NCCL_PROTO")
"""Variables of a log that its scenario must have too, or another algorithm is compared."""


def contradictions(scenario: Scenario, curve: Curve) -> list[str]:
    """Sentences on what the log of a curve says against its scenario, the gravest first; a wrong GPU before all."""
    facts = facts_of(curve)
    topology = build_topology(scenario)
    other = (*_other_machine(topology, facts), *_machine(topology, facts))
    return [*other, *(_library(scenario, facts) if scenario.library.name == "nccl" else ())]


def other_machine(scenario: Scenario, curve: Curve) -> str:
    """That the log is of other GPUs, or of another number of ranks on a host: nothing can be judged; else blank."""
    return next(_other_machine(build_topology(scenario), facts_of(curve)), "")


def _other_machine(topology: Topology, facts: LogFacts) -> Iterator[str]:
    model, hosts, each = topology.gpu.model, facts.nodes, facts.ranks_per_node
    if facts.gpu and gpu_name(facts.gpu) and not is_gpu(facts.gpu, model):
        yield f"the log is of {facts.gpu}, the prediction of {model}"
    if hosts is None or each is None or facts.ranks != topology.world_size:
        return
    a_rack = topology.ranks_per_node > each and topology.has_nvswitch and topology.ranks_per_node > SERVER
    if not a_rack and (hosts, each) != (topology.nodes, topology.ranks_per_node):
        yield (
            f"the log is of {hosts} hosts with {each} ranks each, the prediction of {topology.nodes} nodes with "
            f"{topology.ranks_per_node}"
        )


def _machine(topology: Topology, facts: LogFacts) -> Iterator[str]:
    model = topology.gpu.model
    if facts.mixed_gpus:
        yield f"the log is of GPUs of several kinds ({facts.mixed_gpus}), the prediction of {model} alone"
    if facts.shared_gpus:
        yield f"the log has {facts.shared_gpus}, the prediction a GPU for every rank"
    if topology.nodes > 1 and facts.network == "ethernet" and topology.network != "ethernet":
        yield f"NCCL says in the log that it uses TCP sockets, the prediction is of {topology.network}"
    if topology.nodes > 1 and facts.nics is not None and facts.nics < topology.nics_per_node <= SERVER:
        yield f"NCCL lists {facts.nics} NICs of a host in the log, the prediction has {topology.nics_per_node}"


def _library(scenario: Scenario, facts: LogFacts) -> Iterator[str]:
    library = scenario.library
    if facts.version is not None and (stated := library.named_version) is not None and facts.version[:2] != stated[:2]:
        yield f"the log is of NCCL {format_version(facts.version)}, the prediction of {format_version(stated)}"
    launch, meant = (_SIDE_BY_SIDE.get(mode, mode) for mode in (facts.launch, library.launch_mode))
    if launch and launch != meant and facts.ranks_per_node != 1:
        yield (
            f"the log is of {_WORDS[launch]}, the prediction of {_WORDS[meant]} (library.launch_mode={facts.launch})"
        )
    if facts.registered not in ("none", library.registered):
        yield (
            f"the log is of registered buffers (-R), {facts.registered}, the prediction of {library.registered} "
            f"(library.registered={facts.registered})"
        )
    for name in _CHOOSING:
        logged, meant = facts.env.get(name, ""), library.env.get(name, "")
        if logged and logged.lower() != meant.lower():
            yield f"the log has {name}={logged}, the prediction {f'{name}={meant}' if meant else 'leaves it open'}"


_WORDS = {"one_process": "one process for all GPUs of a node", "process_per_gpu": "a process or thread for each GPU"}
