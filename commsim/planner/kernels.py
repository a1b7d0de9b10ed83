"""From which size which all-reduce: NCCL or the kernels of serving frameworks, on the GPUs of one host.

For 2, 4 and 8 GPUs of the machine every kernel that a framework has is predicted at every size that it ships memory
for, beside NCCL: plain, on registered buffers, and by its kernels on symmetric memory. What a framework's own rules
would run is set against the quickest of its own and plain NCCL, to which it falls back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.bounds import lower_bound_s
from commsim.errors import CommsimError, InfeasibleError, ScenarioError
from commsim.kernels.choice import (
    AUTO_SINCE,
    FRAMEWORKS,
    PUSH_SINCE,
    RULE_RELEASES,
    WORKSPACE,
    Framework,
    KernelCall,
    Release,
    choose,
)
from commsim.kernels.device import KernelDevice
from commsim.kernels.predict import beyond_rules, kernel_time, unfitted
from commsim.nccl.operation import Operation
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.version import Version, format_version, parse_version
from commsim.scenario.kernel_rows import KERNELS_REDUCE, NCCL_BESIDE, device_of, kernels_fault, multicasts, unmeasured
from commsim.scenario.setting import build_topology

if TYPE_CHECKING:
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology

SIZES = tuple(1 << k for k in range(10, 29))
"""1 KiB to 256 MiB."""

COUNTS = (2, 4, 8)

OF_FRAMEWORK: dict[Framework, tuple[str, ...]] = {
    "vllm": ("peer.one_shot", "peer.two_shot", "symmetric.two_shot", "symmetric.multimem"),
    "sglang": ("push.one_shot", "pull.one_shot", "pull.two_shot"),
    "tensorrt_llm": ("lamport.one_shot", "lamport.two_shot"),
    "flashinfer": ("lamport.one_shot", "lamport.two_shot", "multicast.one_shot", "multicast.two_shot"),
}
"""What may run on one host in the newest release."""

BEFORE_PUSH = ("peer.one_shot", "peer.two_shot")
"""The same of SGLang before it pushed."""

SERVED_DTYPE = "bfloat16"
"""The type where the scenario names none: that of the models served."""

NCCL_SINCE: dict[str, tuple[str, Version]] = {
    "nccl": ("none", (0, 0, 0)),
    "nccl registered": ("buffer", (2, 19, 0)),
    "nccl symmetric": ("window", (2, 27, 0)),
}
"""NCCL's candidates: the buffers that are registered for each, and the first release where that changes an all-reduce
in a node (`commsim.nccl.registered`, `commsim.nccl.symmetric`)."""


@dataclass(frozen=True)
class KernelContest:
    """What is compared: type, NCCL with its release and variables, releases of frameworks, and how they are called.

    `notes`: what of the scenario has no effect here, or was not measured.
    """

    dtype: str
    nccl: Options
    candidates: tuple[str, ...]  # of NCCL, keys of `NCCL_SINCE`
    releases: dict[Framework, Release]
    cuda_graph: bool
    notes: tuple[str, ...] = ()

    @property
    def calls(self) -> str:
        """How the calls are made, in words."""
        return "calls in a CUDA graph" if self.cuda_graph else "calls from Python"


def contest_of(scenario: Scenario) -> KernelContest:
    """What a scenario wants compared: with NCCL's release named, or buffers registered, all that the release can do."""
    library, document = scenario.library, scenario.document
    reduces = [work for work in scenario.collectives if work.collective == KERNELS_REDUCE]
    named = [work.dtype for work in reduces if "dtype" in work.model_fields_set]
    dtype, releases = named[0] if named else SERVED_DTYPE, {name: RULE_RELEASES[name][1] for name in FRAMEWORKS}
    version, env = parse_version(NCCL_BESIDE), dict[str, str]()
    candidates: tuple[str, ...] = ("nccl",)
    idle = {
        ("mode",): scenario.mode != "back_to_back",
        ("params",): scenario.params is not None,
        ("variation",): scenario.variation is not None,
        ("placement",): scenario.placement is not None,
        ("library", "measured"): bool(library.measured),
        ("library", "graph"): library.graph is not None,
    }
    notes = [
        str(document.fault(key, "has no effect on --kernels", at_key=True)) for key, is_set in idle.items() if is_set
    ]
    if len({*named}) > 1:
        notes.append(f"the all-reduces are of {', '.join(dict.fromkeys(named))}: compared are those of {dtype}")
    if any(work.redop != "sum" for work in reduces):
        notes.append("redop has no effect on --kernels: sums are compared, for which the kernels are")
    if library.name == "nccl":
        env = dict(library.env)
        version = library.named_version or version
        if library.named_version is not None or library.registered != "none":
            candidates = tuple(name for name, (_, since) in NCCL_SINCE.items() if version >= since)
        if library.registered != "none" and not any(NCCL_SINCE[name][0] == library.registered for name in candidates):
            text = f"found {library.registered}, which NCCL {format_version(version)} makes nothing of: no candidate"
            notes.append(str(document.fault(("library", "registered"), text, at_key=True)))
    elif library.framework is not None:
        if "version" in library.model_fields_set:
            releases[library.framework] = parse_version(library.version)
        notes += filter(None, [beyond_rules(library.framework, releases[library.framework])])
    else:
        notes.append(f"library {library.name} has no effect on --kernels: NCCL {NCCL_BESIDE} is compared")
    options = Options(version, env, launch=library.launch_mode, operation=Operation(dtype, "sum"))
    return KernelContest(dtype, options, candidates, releases, library.cuda_graph is not False, tuple(notes))


@dataclass(frozen=True)
class KernelStretch:
    """Sizes from `low` on that the same thing runs: a kernel with its framework, or NCCL."""

    low: int
    framework: str  # empty for NCCL
    kernel: str

    @property
    def name(self) -> str:
        """Framework and kernel in a word; of NCCL its candidate."""
        return f"{self.framework} {self.kernel}" if self.framework else self.kernel


@dataclass(frozen=True)
class KernelTuning:
    """On so many GPUs: by framework what it ships and what would be quickest of its own, the winner of all, losses.

    `lost`: mean share by which what is shipped takes longer than the quickest of the framework's own, or NCCL.
    """

    machine: str
    contest: KernelContest
    ranks: int
    shipped: dict[Framework, tuple[KernelStretch, ...]]
    best: dict[Framework, tuple[KernelStretch, ...]]
    winners: tuple[KernelStretch, ...]
    lost: dict[Framework, float]
    seconds: dict[int, dict[str, float]]  # by size, of the winner and of each candidate of NCCL
    notes: tuple[str, ...] = ()  # why no kernel runs, and what NCCL says of itself


def kernel_tuning(scenario: Scenario) -> tuple[KernelTuning, ...]:
    """For every number of GPUs that a host of the machine has; InfeasibleError where it has one GPU."""
    contest = contest_of(scenario)
    tunings = [_of_count(contest, *machine) for machine in _machines(scenario)]
    if not tunings:
        raise InfeasibleError("found a machine with fewer than two GPUs on a host, which has nothing to choose")
    return tuple(tunings)


def _machines(scenario: Scenario) -> Iterator[tuple[Topology, KernelDevice]]:
    """One host of the machine with 2, 4 and 8 of its GPUs, or all that it has where they are others."""
    spec = scenario.topology.model_copy(update={"nodes": 1})
    spec.model_fields_set.add("nodes")
    whole = _built(scenario, spec)
    try:
        device = device_of(whole)
    except CommsimError as error:
        raise ScenarioError(f"topology: {error}") from None
    most = min(whole.ranks_per_node, device.tray)
    for count in [n for n in COUNTS if n < most] + [most] * (most > 1):
        part = spec.model_copy(update={"gpus_per_node": count})
        part.model_fields_set.add("gpus_per_node")
        topology = _built(scenario, part) if count != whole.ranks_per_node else whole
        yield topology, device_of(topology)


def _built(scenario: Scenario, spec: Any) -> Topology:
    one = scenario.model_copy(update={"topology": spec})
    one._document, one._base_dir = scenario.document, scenario.base_dir
    return build_topology(one)


def _of_count(contest: KernelContest, topology: Topology, device: KernelDevice) -> KernelTuning:
    ranks, fault = topology.world_size, kernels_fault(topology)
    models = {
        name: Predictor(topology, replace(contest.nccl, registered=NCCL_SINCE[name][0])) for name in contest.candidates
    }
    call = KernelCall("vllm", (0, 0, 0), device, ranks, 0, multicasts(topology), contest.dtype)
    shipped: dict[Framework, list[KernelStretch]] = {name: [] for name in FRAMEWORKS}
    best: dict[Framework, list[KernelStretch]] = {name: [] for name in FRAMEWORKS}
    lost: dict[Framework, list[float]] = {name: [] for name in FRAMEWORKS}
    winners: list[KernelStretch] = []
    seconds: dict[int, dict[str, float]] = {}
    for size in SIZES:
        by_nccl = {name: _nccl_seconds(contest, model, replace(call, nbytes=size)) for name, model in models.items()}
        of_all = {KernelStretch(size, "", name): of for name, of in by_nccl.items()}
        bound = lower_bound_s(KERNELS_REDUCE, size, topology, in_network=call.multicast).seconds
        for framework in FRAMEWORKS:
            one = replace(call, framework=framework, release=contest.releases[framework], nbytes=size)
            chosen = "nccl" if fault else choose(one).kernel
            times = {} if chosen == "nccl" else _times(one, chosen, contest.cuda_graph, bound)
            own = {KernelStretch(size, "", "nccl"): by_nccl["nccl"], **times}
            now = KernelStretch(size, "" if chosen == "nccl" else framework, chosen)
            quickest = min(own, key=lambda stretch: own[stretch])
            shipped[framework].append(now)
            best[framework].append(quickest)
            lost[framework].append(own[now] / own[quickest] - 1.0)
            of_all.update(own)
        winner = min(of_all, key=lambda stretch: of_all[stretch])
        winners.append(winner)
        seconds[size] = {"winner": of_all[winner], **by_nccl}
    said = [
        f"{name}: {text.removeprefix('library.registered: ')}"
        for name, model in models.items()
        for text in model.warnings
    ]
    alone = [f"{ranks} GPUs: no kernel of a framework runs: {fault}"] if fault else unmeasured(topology, device)
    run = [name for name, of in shipped.items() if any(stretch.framework for stretch in of)]
    alone += filter(None, map(unfitted, run))
    return KernelTuning(
        topology.name,
        contest,
        ranks,
        {name: _merged(of) for name, of in shipped.items()},
        {name: _merged(of) for name, of in best.items()},
        _merged(winners),
        {name: float(np.mean(of)) for name, of in lost.items()},
        seconds,
        tuple(dict.fromkeys([*alone, *said])),
    )


def _nccl_seconds(contest: KernelContest, model: Predictor, call: KernelCall) -> float:
    """NCCL's time; from Python the host makes each call meanwhile."""
    row = model.predict(KERNELS_REDUCE, call.nbytes)
    if contest.cuda_graph:
        return row.time_s
    return max(row.time_s, kernel_time(call, "nccl", cuda_graph=False, nccl_s=row.kernel_s).time_s)


def _times(call: KernelCall, chosen: str, cuda_graph: bool, bound: float) -> dict[KernelStretch, float]:
    """Seconds of the framework's kernels at a size that it ships memory for, none below the lower bound.

    TensorRT-LLM's kernels count beyond the sizes that it has them for only where FlashInfer's rules take them.
    """
    before = call.framework == "sglang" and call.release < PUSH_SINCE
    symmetric = call.multicast and call.device.capability >= 90 and call.dtype == "bfloat16"
    multicast = call.multicast and call.release >= AUTO_SINCE
    small = call.nbytes <= WORKSPACE.get(call.ranks, 0)
    kernels = [
        kernel
        for kernel in (BEFORE_PUSH if before else OF_FRAMEWORK[call.framework])
        if symmetric or not kernel.startswith("symmetric")
        if multicast or not kernel.startswith("multicast")
        if small or kernel == chosen or not kernel.startswith("lamport")
        if call.ranks > 2 or kernel not in ("peer.two_shot", "symmetric.multimem")
    ]
    return {
        KernelStretch(call.nbytes, call.framework, kernel): max(
            bound, kernel_time(call, kernel, cuda_graph=cuda_graph).time_s
        )
        for kernel in kernels
    }


def _merged(stretches: Sequence[KernelStretch]) -> tuple[KernelStretch, ...]:
    """Where another one begins."""
    kept: list[KernelStretch] = []
    for stretch in stretches:
        if not kept or kept[-1].name != stretch.name:
            kept.append(stretch)
    return tuple(kept)


def notes_of(tunings: Sequence[KernelTuning]) -> list[str]:
    """What the reader should know of the comparison, each once."""
    return list(dict.fromkeys([*tunings[0].contest.notes, *(text for t in tunings for text in t.notes)]))


def tuning_document(tunings: Sequence[KernelTuning]) -> dict[str, Any]:
    """The thresholds as plain values: sizes in bytes from which each thing runs, in ascending order."""

    def plain(stretches: Sequence[KernelStretch]) -> list[dict[str, Any]]:
        return [{"from_bytes": s.low, "framework": s.framework or None, "kernel": s.kernel} for s in stretches]

    contest = tunings[0].contest
    return {
        "machine": tunings[0].machine,
        "dtype": contest.dtype,
        "cuda_graph": contest.cuda_graph,
        "nccl": format_version(contest.nccl.version or (0, 0, 0)),
        "nccl_env": contest.nccl.env,
        "nccl_candidates": list(contest.candidates),
        "smallest_bytes": SIZES[0],
        "largest_bytes": SIZES[-1],
        "releases": {name: format_version(release) for name, release in contest.releases.items()},
        "notes": notes_of(tunings),
        "by_number_of_gpus": {
            str(t.ranks): {
                "winners": plain(t.winners),
                "frameworks": {
                    name: {
                        "shipped": plain(t.shipped[name]),
                        "best": plain(t.best[name]),
                        "shipped_loses_pct": round(100.0 * t.lost[name], 2),
                    }
                    for name in FRAMEWORKS
                },
            }
            for t in tunings
        },
    }
