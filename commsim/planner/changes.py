"""What could be changed about a run: the machine, the library's choices, how a step is cut; each as scenario paths.

A change names the values that it sets, so that `commsim run FILE PATH=VALUE` repeats it. Whether it can be built is for
the scenario's own checks to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from commsim.collectives import registry
from commsim.nccl.environment import FUNCTIONS
from commsim.nccl.symmetric import COLLECTIVES, SINCE
from commsim.nccl.version import parse_version
from commsim.scenario.rows import Pace
from commsim.topology.kinds import LinkKind
from commsim.training.pipeline_schedules import SCHEDULES, V_SHAPED
from commsim.units import gb_per_s, gbit_per_s

if TYPE_CHECKING:
    from commsim.scenario.generation_result import GenerationItem
    from commsim.scenario.schema import Scenario
    from commsim.scenario.workload.collective import CollectiveWork
    from commsim.topology.graph import Topology
    from commsim.training.spec import Step

ITEM = "workload.0"
"""The path of the item that is explained: it stands alone in its scenario."""


@dataclass(frozen=True)
class Change:
    """One change in words, the scenario paths that it sets, and the pace of hops and launches.

    ``runs``: the (algorithm, protocol) that it must lead to; NCCL takes another where it has not the one asked for.
    """

    what: str
    values: dict[str, Any] = field(default_factory=dict)
    pace: Pace | None = None
    runs: tuple[str, str] | None = None

    @property
    def overrides(self) -> str:
        """What to write behind `commsim run FILE`; empty for a change that no path can say."""
        words = (f"{name}={str(v).lower() if isinstance(v, bool) else v}" for name, v in self.values.items())
        return " ".join(f"'{word}'" if " " in word else word for word in words)


def faulty(topology: Topology) -> bool:
    """Whether a machine has faults."""
    return topology.link_share is not None or topology.link_failed is not None or topology.node_gdr is not None


def machine_changes(topology: Topology) -> Iterator[Change]:
    """No faults, twice the rates, one more NIC, no oversubscription, half the latency: of what the machine has."""
    if faulty(topology):
        yield Change("the machine without its faults", {"topology.faults": []})
    if topology.world_size > 1:
        yield Change("half the latency of every hop", pace=Pace(latency=0.5))
    if not topology.uniform:  # the knobs are those of each group
        return
    nics = topology.nics_per_node
    if topology.nodes > 1 and nics:
        if topology.oversubscription > 1:
            words = f"no oversubscription (1 instead of {topology.oversubscription:g})"
            yield Change(words, {"topology.oversubscription": 1})
        rate = topology.nic_bandwidth
        faster = {"topology.nic_bandwidth": _gbps(2 * rate)}
        yield Change(f"NICs of twice the rate ({_gbps(2 * rate)})", faster)
        pcie = _rate(topology, LinkKind.PCIE)
        if pcie:
            both = faster | {"topology.node.pcie.bandwidth": _gb_per_s(2 * pcie)}
            yield Change(f"NICs and PCIe of twice the rate ({_gbps(2 * rate)}, {_gb_per_s(2 * pcie)})", both)
        yield Change(f"one more NIC per node ({nics + 1} instead of {nics})", {"topology.nics_per_node": nics + 1})
        yield Change(f"twice the NICs per node ({2 * nics})", {"topology.nics_per_node": 2 * nics})
    if topology.ranks_per_node > 1 and topology.nvlink_links:
        rate = topology.nvlink_link_bandwidth
        yield Change("NVLinks of twice the rate", {"topology.node.nvlink.bandwidth": _gb_per_s(2 * rate)})
    elif topology.ranks_per_node > 1 and (pcie := _rate(topology, LinkKind.PCIE)):
        words = f"PCIe of twice the rate ({_gb_per_s(2 * pcie)})"
        yield Change(words, {"topology.node.pcie.bandwidth": _gb_per_s(2 * pcie)})


def _rate(topology: Topology, kind: LinkKind) -> float:
    """Bytes/s of the links of a kind that leave the first GPU; 0.0 if it has none."""
    mine = (topology.link_src == topology.rank_vertex[0]) & (topology.link_kind == kind)
    return float(topology.link_bandwidth[mine].max(initial=0.0))


def _gbps(bytes_per_s: float) -> str:
    return f"{gbit_per_s(bytes_per_s):g} Gb/s"


def _gb_per_s(bytes_per_s: float) -> str:
    return f"{gb_per_s(bytes_per_s):g} GB/s"


def collective_changes(scenario: Scenario, topology: Topology, work: CollectiveWork) -> Iterator[Change]:
    """What the library could do differently; what the scenario fixes may be changed too."""
    library = scenario.library.name
    if library == "nccl":
        yield from _nccl_changes(scenario, work)
        if scenario.library.launch_mode == "one_process" and topology.ranks_per_node > 1:
            yield Change("a process or a thread for each GPU", {"library.launch_mode": "process_per_gpu"})
        library_has_it = work.collective in COLLECTIVES and parse_version(scenario.library.version) >= SINCE
        if library_has_it and scenario.library.registered == "none" and topology.nodes == 1:
            yield Change("buffers registered as windows (symmetric memory)", {"library.registered": "window"})
        yield Change("launches in half the time (CUDA graphs, a faster host)", pace=Pace(launch=0.5))
    elif library == "gloo":
        yield Change("calls from Python in half the time", pace=Pace(launch=0.5))
        if topology.cpu.cores:
            yield Change(f"twice the cores ({2 * topology.cpu.cores})", {"topology.cpu.cores": 2 * topology.cpu.cores})
    elif library == "none":
        names = [a for c, a in registry.names() if c == work.collective]
        if work.algorithm != "auto":  # which has tried them all
            own = work.algorithm or names[0]
            yield from (Change(f"algorithm {a}", {f"{ITEM}.algorithm": a}) for a in names if a != own)
        channels = 2 * (work.channels or 1)
        if channels <= 64:
            yield Change(f"{channels} channels", {f"{ITEM}.channels": channels})


_NCCL_ALGORITHMS = {"Ring": "ring", "Tree": "tree", "NVLS": "nvls", "NVLSTree": "nvls_tree"}


def _nccl_changes(scenario: Scenario, work: CollectiveWork) -> Iterator[Change]:
    """Every algorithm with every protocol, and other numbers of channels."""
    if work.collective not in FUNCTIONS:
        return
    for algorithm, name in _NCCL_ALGORITHMS.items():
        protocols = ("Simple",) if algorithm.startswith("NVLS") else ("LL", "LL128", "Simple")
        for protocol in protocols:
            env = {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
            values: dict[str, Any] = {f"library.env.{name}": value for name, value in env.items()}
            if work.protocol is not None:
                values[f"{ITEM}.protocol"] = protocol
            yield Change(f"NCCL runs {algorithm} with {protocol}", values, runs=(name, protocol))
    for channels in (4, 8, 16, 32):
        if channels != work.channels:
            yield Change(f"{channels} channels", {f"{ITEM}.channels": channels})


def step_changes(step: Step) -> Iterator[Change]:
    """Other batches, schedules, recomputation, overlap, and cuts of the model, each a single change of a step."""

    def say(words: str, **values: Any) -> Change:
        return Change(words, {f"{ITEM}.training.{name}": value for name, value in values.items()})

    def cut(words: str, **sizes: int) -> Change:
        mesh = {"tp": step.tp, "pp": step.pp, "cp": step.cp, "dp": step.dp} | sizes
        return Change(words, {f"{ITEM}.training.mesh.{axis}": size for axis, size in mesh.items()})

    size = step.micro_batch_size
    yield say(f"micro-batches of {2 * size} instead of {size}", micro_batch_size=2 * size)
    if size > 1:
        yield say(f"micro-batches of {size // 2} instead of {size}", micro_batch_size=size // 2)
    if step.pp > 1:
        for name in SCHEDULES:
            if name not in (step.schedule, "naive"):
                chunks = max(2, step.virtual_stages) if name == "interleaved_1f1b" else 1 + (name in V_SHAPED)
                yield say(f"schedule {name}", pipeline_schedule=name, virtual_stages=chunks)
        if step.schedule == "interleaved_1f1b":
            for chunks in (2 * step.virtual_stages, step.virtual_stages // 2):
                if chunks > 1:
                    yield say(f"{chunks} chunks per stage instead of {step.virtual_stages}", virtual_stages=chunks)
    for name in ("none", "selective", "full"):
        if name != step.recompute:
            yield say(f"recompute {name}", recompute=name)
    for flag, words, ranks in (
        ("overlap_dp", "gradients move during the backward pass", step.dp * step.cp),
        ("overlap_tp", "tensor-parallel sends move during the products", step.tp),
        (
            "overlap_ep",
            "experts' exchanges hide behind another micro-batch's pass",
            0 if step.pairs_passes else step.ep,
        ),
        ("overlap_pp", "stages send while they compute", step.pp),
        ("flash_attention", "fused attention", 2),
        ("cuda_graphs", "CUDA graphs", 2),
    ):
        if not getattr(step, flag) and ranks > 1:
            yield say(words, **{flag: True})
    if step.tp > 1 and not step.sequence_parallel:
        yield say("sequence parallelism", sequence_parallel=True)
    yield from (say(f"ZeRO {z}", zero_stage=z) for z in (0, 1, 2, 3) if z != step.zero_stage and step.dp > 1)
    if step.precision.gemm in ("bf16", "fp16"):
        yield say("fp8 products", precision="fp8")
    yield from _cuts(step, cut)


def generation_changes(item: GenerationItem) -> Iterator[Change]:
    """Other formats, frameworks, schedulers and cuts of a model that answers requests, each a single change."""
    replica, policy, most = item.replica, item.policy, item.gpus
    path = f"{ITEM}.generation"

    def say(words: str, **values: Any) -> Change:
        return Change(words, {f"{path}.{name.replace('__', '.')}": value for name, value in values.items()})

    for name, product in (("fp8", "fp8"), ("nvfp4", "fp4")):
        if replica.formats.weights.name == "bf16" and replica.gpu.supports(product):
            yield say(f"weights in {name}", precision=name)
    if replica.formats.cache == "bf16":
        yield say("a cache in fp8", cache_precision="fp8")
    if not replica.engine.cuda_graph:
        yield say("CUDA graphs", cuda_graphs=True)
    for name in ("vllm", "sglang", "tensorrt_llm"):
        if name != replica.engine.framework and item.spec.release is None:
            yield say(f"the framework {name}", framework=name)
    if not policy.static:
        for budget in (policy.token_budget // 2, 2 * policy.token_budget):
            yield say(f"steps of {budget:,} tokens instead of {policy.token_budget:,}", scheduler__token_budget=budget)
        if item.reader is None and item.replicas % 2 == 0:
            half = item.replicas // 2
            mesh = {"tp": replica.tp, "pp": replica.pp, "attention_dp": replica.attention_dp, "ep": replica.moe_ep}
            words = f"{half} replica{'s' if half > 1 else ''} for prompts, {half} for answers"
            yield say(words, prefill={"replicas": half, "mesh": mesh})
    for tp in (2 * replica.tp, replica.tp // 2):
        if tp >= 1 and item.reader is None and most % (tp * replica.pp * replica.attention_dp) == 0:
            yield say(f"tp {tp} instead of {replica.tp}", mesh__tp=tp, mesh__ep=min(replica.moe_ep, tp))
    if replica.model.moe is not None:
        across = replica.tp * replica.attention_dp
        for ep in {1, across} - {replica.moe_ep}:
            yield say(f"ep {ep} instead of {replica.moe_ep}", mesh__ep=ep)
        if replica.attention_dp == 1 and replica.tp > 1:
            words = f"data parallel attention, {replica.tp} groups of one"
            yield say(words, mesh__tp=1, mesh__attention_dp=replica.tp, mesh__ep=replica.tp)


def network_changes(topology: Topology) -> Iterator[Change]:
    """Those of the machine's that are about NICs and the network."""
    paths = ("topology.nic", "topology.oversubscription", "topology.faults")
    for change in machine_changes(topology):
        if change.pace is None and any(name.startswith(paths) for name in change.values):
            yield change


def _cuts(step: Step, cut: Any) -> Iterator[Change]:
    """Two ranks of one axis moved to another."""
    for source in ("tp", "pp", "cp", "dp"):
        for target in ("tp", "pp", "cp", "dp"):
            few, many = getattr(step, source), getattr(step, target)
            if source != target and few % 2 == 0 and (target != "tp" or 2 * many <= step.gpus_per_node):
                yield cut(f"{source} {few // 2}, {target} {2 * many}", **{source: few // 2, target: 2 * many})
