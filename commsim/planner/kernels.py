"""From which size which all-reduce: NCCL or the kernels of serving frameworks, on the GPUs of one host.

For 2, 4 and 8 GPUs of the machine every kernel that a framework has is predicted at every size that it ships memory
for, beside NCCL. What its own rules would run is set against the quickest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.errors import CommsimError, InfeasibleError, ScenarioError
from commsim.kernels.choice import FRAMEWORKS, MEASURED_RELEASES, Framework, KernelCall, choose
from commsim.kernels.device import KernelDevice
from commsim.kernels.predict import kernel_time
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.version import parse_version
from commsim.scenario.kernel_rows import NCCL_BESIDE, device_of, multicasts
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
}
"""What may run on one host in the newest release."""


@dataclass(frozen=True)
class KernelStretch:
    """Sizes from `low` on that the same thing runs: a kernel with its framework, or NCCL."""

    low: int
    framework: str  # empty for NCCL
    kernel: str

    @property
    def name(self) -> str:
        """Framework and kernel in a word."""
        return f"{self.framework} {self.kernel}" if self.framework else "nccl"


@dataclass(frozen=True)
class KernelTuning:
    """On so many GPUs: by framework what it ships and what would be quickest of its own, the winner of all, losses.

    `lost`: mean share by which what is shipped takes longer than the quickest of the framework's own, or NCCL.
    """

    machine: str
    ranks: int
    shipped: dict[Framework, tuple[KernelStretch, ...]]
    best: dict[Framework, tuple[KernelStretch, ...]]
    winners: tuple[KernelStretch, ...]
    lost: dict[Framework, float]
    seconds: dict[int, dict[str, float]]  # by size, of the winner and of NCCL


def kernel_tuning(scenario: Scenario) -> tuple[KernelTuning, ...]:
    """For every number of GPUs that a host of the machine has; InfeasibleError where it has one GPU."""
    tunings = [_of_count(*machine) for machine in _machines(scenario)]
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


def _of_count(topology: Topology, device: KernelDevice) -> KernelTuning:
    ranks, multicast = topology.world_size, multicasts(topology)
    nccl = Predictor(topology, Options(version=parse_version(NCCL_BESIDE)))
    shipped: dict[Framework, list[KernelStretch]] = {name: [] for name in FRAMEWORKS}
    best: dict[Framework, list[KernelStretch]] = {name: [] for name in FRAMEWORKS}
    lost: dict[Framework, list[float]] = {name: [] for name in FRAMEWORKS}
    winners: list[KernelStretch] = []
    seconds: dict[int, dict[str, float]] = {}
    for size in SIZES:
        nccl_s = nccl.predict("all_reduce", size).time_s
        of_all = {KernelStretch(size, "", "nccl"): nccl_s}
        for framework in FRAMEWORKS:
            call = KernelCall(framework, MEASURED_RELEASES[framework][1], device, ranks, size, multicast)
            own = {KernelStretch(size, "", "nccl"): nccl_s, **_times(call)}
            chosen = choose(call).kernel
            now = KernelStretch(size, "" if chosen == "nccl" else framework, chosen)
            quickest = min(own, key=lambda stretch: own[stretch])
            shipped[framework].append(now)
            best[framework].append(quickest)
            lost[framework].append(own[now] / own[quickest] - 1.0)
            of_all.update(own)
        winner = min(of_all, key=lambda stretch: of_all[stretch])
        winners.append(winner)
        seconds[size] = {"winner": of_all[winner], "nccl": nccl_s}
    return KernelTuning(
        topology.name,
        ranks,
        {name: _merged(of) for name, of in shipped.items()},
        {name: _merged(of) for name, of in best.items()},
        _merged(winners),
        {name: float(np.mean(of)) for name, of in lost.items()},
        seconds,
    )


def _times(call: KernelCall) -> dict[KernelStretch, float]:
    """Seconds of the framework's kernels in a graph; none beyond the sizes that it ships memory for."""
    if choose(call).kernel == "nccl":
        return {}
    kernels = [
        kernel
        for kernel in OF_FRAMEWORK[call.framework]
        if (call.multicast and call.device.capability >= 90) or not kernel.startswith("symmetric")
        if call.ranks > 2 or kernel not in ("peer.two_shot", "symmetric.multimem")
    ]
    return {
        KernelStretch(call.nbytes, call.framework, kernel): kernel_time(call, kernel, cuda_graph=True).time_s
        for kernel in kernels
    }


def _merged(stretches: Sequence[KernelStretch]) -> tuple[KernelStretch, ...]:
    """Where another one begins."""
    kept: list[KernelStretch] = []
    for stretch in stretches:
        if not kept or kept[-1].name != stretch.name:
            kept.append(stretch)
    return tuple(kept)


def tuning_document(tunings: Sequence[KernelTuning]) -> dict[str, Any]:
    """The thresholds as plain values: sizes in bytes from which each thing runs, in ascending order."""

    def plain(stretches: Sequence[KernelStretch]) -> list[dict[str, Any]]:
        return [{"from_bytes": s.low, "framework": s.framework or None, "kernel": s.kernel} for s in stretches]

    return {
        "machine": tunings[0].machine,
        "nccl": NCCL_BESIDE,
        "smallest_bytes": SIZES[0],
        "largest_bytes": SIZES[-1],
        "releases": {name: ".".join(map(str, MEASURED_RELEASES[name][1])) for name in FRAMEWORKS},
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
