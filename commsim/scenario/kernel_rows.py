"""Rows of a serving framework's all-reduce: its own kernels where its rules take them, else NCCL's row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from commsim.errors import CommsimError
from commsim.kernels.choice import (
    HIDDEN,
    MEASURED_RANKS,
    MEASURED_RELEASES,
    RULE_RELEASES,
    KernelCall,
    KernelChoice,
    by_tokens,
    choose,
)
from commsim.kernels.costs import LATENCIES, wait_seconds
from commsim.kernels.device import KernelDevice, kernel_device
from commsim.kernels.predict import beyond_rules, kernel_costs, kernel_time, kernel_values, unfitted
from commsim.nccl.version import parse_version
from commsim.scenario.item import Row
from commsim.scenario.rows import Pace, RowPredictor
from commsim.scenario.setting import Library
from commsim.topology.kinds import LinkKind

if TYPE_CHECKING:
    from commsim.scenario.collective import CollectiveSpec
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology

S = TypeVar("S", bound="Setting")

NCCL_BESIDE = "2.27.5"
"""NCCL of torch 2.9, which vLLM 0.14 and SGLang 0.5.9 require; taken for all releases."""

KERNELS_REDUCE = "all_reduce"
"""The collective that the kernels are for."""


def beside_kernels(scenario: S) -> S:
    """The scenario with the NCCL that frameworks fall back to."""
    one = scenario.model_copy(update={"library": Library(name="nccl", version=NCCL_BESIDE)})
    one._document, one._base_dir = scenario.document, scenario.base_dir
    return one


def device_of(topology: Topology) -> KernelDevice:
    """A machine's GPU, with the least NVLink rate of any; CommsimError where the kernels were not measured on it."""
    from commsim.scenario.training import accelerator_of

    if len(models := sorted({group.gpu.model for group in topology.groups})) > 1:
        raise CommsimError(f"its GPUs are {' and '.join(models)}, expected one model")
    nvlink = topology.works & (topology.link_kind == LinkKind.NVLINK)
    out = np.bincount(topology.link_src[nvlink], topology.link_bandwidth[nvlink], len(topology.vertex_kind))
    rate = float(out[topology.rank_vertex].min())
    if not rate:
        raise CommsimError("without NVLink two GPUs run the kernel over PCIe, which was not measured")
    device = replace(kernel_device(accelerator_of(topology), topology.cpu.vendor), nvlink_bytes_per_s=rate)
    if device.domain > 1:
        return device
    # The datasheet of a superchip knows it alone; NVLink of the machine joins those of a node, which is one host.
    return replace(device, tray=topology.ranks_per_node, domain=topology.ranks_per_node)


def kernels_fault(topology: Topology) -> str:
    """Why frameworks take their kernels on none of a machine's GPUs together; empty where they may."""
    if topology.nodes > 1:
        return "the ranks are on several nodes, which no NVLink joins"
    n = topology.world_size
    if n == 1:
        return "there is one GPU"
    joined = all(topology.path_type(a, b) == "NVL" for a in range(n) for b in range(a + 1, n))
    return "" if joined or n == 2 else "NVLink does not join all of the GPUs with each other"


def unmeasured(topology: Topology, device: KernelDevice) -> list[str]:
    """What of a machine no rows are of, as sentences: its kernels' times are extrapolated."""
    n, outside = topology.world_size, []
    if n > device.tray:
        outside.append(f"{n} GPUs over several trays")
    elif n not in MEASURED_RANKS:
        outside.append(f"{n} GPUs")
    if not all(group.has_nvswitch for group in topology.groups):
        outside.append("GPUs that no NVSwitch joins")
    known = f"{', '.join(map(str, MEASURED_RANKS[:-1]))} or {MEASURED_RANKS[-1]} GPUs of one host behind NVSwitch"
    return [f"kernels on {what} are outside what was measured: {known}" for what in outside]


def multicasts(topology: Topology) -> bool:
    """Whether the switches of the machine multicast and reduce: NVSwitch of Hopper and later."""
    return all(group.has_nvswitch and group.gpu.sm >= 90 for group in topology.groups)


class KernelRows(RowPredictor):
    """`nccl` predicts the rows of the same item by NCCL."""

    def __init__(self, scenario: Setting, topology: Topology, work: CollectiveSpec, nccl: RowPredictor) -> None:
        switches = multicasts(topology)
        super().__init__(work, topology, in_network=switches)
        self.nccl = nccl
        library = scenario.library
        assert library.framework is not None  # the scenario is refused without one
        self.framework, self.cuda_graph = library.framework, library.cuda_graph is not False
        newest = RULE_RELEASES[self.framework][1]
        self.release = parse_version(library.version) if "version" in library.model_fields_set else newest
        self.single = scenario.mode == "single"
        self.values, self.multicast = kernel_values(), switches
        self.never = self._never()
        self.device = None if self.never else self._device(scenario)
        self.fitted = self.framework in MEASURED_RELEASES
        self.notes = [] if self.device is None else unmeasured(topology, self.device)
        self.notes += [] if self.fitted else [unfitted(self.framework)]
        if self.single and self.cuda_graph:
            self.notes.append(
                "mode single has no effect on kernels in a CUDA graph: launches are part of what they cost"
            )
        of = "" if self.fitted else " of tensorrt_llm"
        self.provenance = (
            f"kernels of {self.framework} {'.'.join(map(str, self.release))}, fitted to rows of silicon{of}"
        )
        if text := beyond_rules(self.framework, self.release):
            self.warnings.append(text)
        if by_tokens(self.framework, self.release) and not self.never:
            self.warnings.append(f"{self.framework} chooses by tokens: they are taken as of {HIDDEN} elements")

    def _never(self) -> str:
        """Why the framework does not take its kernels on this machine or for this item at all; empty where it may."""
        topology, work = self.topology, self.work
        if work.collective != KERNELS_REDUCE or work.redop != "sum":
            return f"its kernels are for {KERNELS_REDUCE} with sum"
        return kernels_fault(topology)

    def _device(self, scenario: Setting) -> KernelDevice:
        """The machine's GPU; a ScenarioError at `topology` where the kernels were not measured on its like."""
        try:
            return device_of(self.topology)
        except CommsimError as error:
            text = f"found {self.topology.gpu.model} with library custom_all_reduce: {str(error).splitlines()[0]}"
            raise scenario.document.error(("topology",), text) from None

    def at_pace(self, pace: Pace) -> None:
        """Scales the latencies of kernels and the host's seconds, and NCCL's."""
        super().at_pace(pace)
        self.nccl.at_pace(pace)
        by = dict.fromkeys(LATENCIES, pace.latency) | dict.fromkeys(("host.call", "host.push"), pace.launch)
        self.values = {name: value * by.get(name, 1.0) for name, value in self.values.items()}

    def choose(self, size: int) -> tuple[str, ...]:
        """The algorithm that runs, which needs no time."""
        choice = self._choice(size)
        return self.nccl.choose(size) if choice.kernel == "nccl" else (choice.algorithm,)

    def _call(self, size: int) -> KernelCall:
        assert self.device is not None
        return KernelCall(
            self.framework,
            self.release,
            self.device,
            self.n_ranks,
            size,
            multicast=self.multicast,
            dtype=self.work.dtype,
        )

    def _choice(self, size: int) -> KernelChoice:
        return KernelChoice("nccl", self.never) if self.never else choose(self._call(size))

    def __call__(self, size: int) -> Row:
        choice = self._choice(size)
        if choice.kernel == "nccl":
            return self._by_nccl(size, choice)
        call, v = self._call(size), self.values
        self.warnings += [text for text in self.notes if text not in self.warnings]
        time = kernel_time(call, choice.kernel, cuda_graph=self.cuda_graph, single=self.single, v=v)
        waits = wait_seconds(kernel_costs(call, choice.kernel, cuda_graph=self.cuda_graph), call.device, v)
        row = self.row(size, time.time_s)
        bound = row.lower_bound_s or 0.0
        if time.time_s < bound:
            row = self.row(size, bound)
        by = "latency" if waits > 0.5 * time.kernel_s else "NVLink"
        low, high = (row.time_s * v[f"band.{end}"] for end in ("low", "high"))
        banded = self.fitted and not self.single
        return replace(
            row,
            low_s=max(low, min(bound, row.time_s)) if banded else None,
            high_s=high if banded else None,
            kernel_s=max(time.kernel_s, bound),
            launch_s=time.launch_s,
            algorithm=choice.algorithm,
            bottleneck="launch" if time.launch_s > time.kernel_s else by,
            level="closed_form",
        )

    def _by_nccl(self, size: int, choice: KernelChoice) -> Row:
        """NCCL's row, whose algorithm says so; from Python the host makes each call."""
        row = self.nccl(size)
        for text in [*self.nccl.warnings, f"{self.framework} falls back to NCCL {NCCL_BESIDE}: {choice.why}"]:
            if text not in self.warnings:
                self.warnings.append(text)
        named = replace(row, algorithm=f"nccl {row.algorithm}".strip())
        if self.cuda_graph or self.device is None:
            return named
        time = kernel_time(
            self._call(size), "nccl", cuda_graph=False, nccl_s=row.kernel_s, single=self.single, v=self.values
        )
        if time.time_s <= row.time_s:
            return named
        slower = time.time_s / row.time_s
        return replace(
            named,
            time_s=time.time_s,
            algbw=row.algbw / slower,
            busbw=row.busbw / slower,
            launch_s=time.launch_s,
            low_s=row.low_s and row.low_s * slower,
            high_s=row.high_s and row.high_s * slower,
            bottleneck="launch",
        )
