"""Seconds of the collectives of a step: the framework's own all-reduce where its rules take it, else NCCL.

NCCL answers through a function from a collective, ranks and bytes to seconds: of a scenario's machine, or, by
`preset_nccl`, of the machine that ships with such GPUs. It is asked at powers of two, and between them a line is drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, floor, log2

from commsim.errors import CommsimError
from commsim.generation.replica import NEWEST, Engine
from commsim.kernels.choice import KernelCall, choose
from commsim.kernels.device import KernelDevice, kernel_device
from commsim.kernels.predict import kernel_time
from commsim.training.accelerator import Accelerator

NcclSeconds = Callable[[str, int, float], float]
"""Seconds of a collective of so many ranks and bytes (the size of nccl-tests)."""

MACHINES = {
    "V100-SXM2-32GB": ("dgx-1v", "dgx-1v-edr100"),
    "A100-SXM4-40GB": ("dgx-a100", "dgx-a100-hdr200"),
    "A100-SXM4-80GB": ("dgx-a100", "dgx-a100-hdr200"),
    "A800-SXM4-80GB": ("a800", "dgx-a100-hdr200"),
    "H100-SXM5-80GB": ("hgx-h100", "hgx-h100-ndr400"),
    "H800-SXM5-80GB": ("h800", "h800-ndr400"),
    "H20-SXM5-96GB": ("h20", "h800-ndr400"),
    "H200-SXM5-141GB": ("hgx-h200", "hgx-h200-ndr400"),
    "B200-SXM-180GB": ("hgx-b200", "hgx-b200-ndr400"),
    "B300-SXM-288GB": ("hgx-b300", "hgx-b300-xdr800"),
    "GB200-NVL72": ("gb200-nvl72", "gb200-nvl72"),
    "GB300-NVL72": ("gb300-nvl72", "gb300-nvl72"),
    "A100-PCIe-80GB": ("a100-pcie", "a100-pcie"),
    "H100-PCIe-80GB": ("h100-pcie", "h100-pcie"),
    "RTX-4090-24GB": ("rtx4090", "rtx4090"),
}
"""By GPU the machine whose NCCL answers on one node, and on several."""

NCCL_VERSION = (2, 27, 5)
"""Of torch 2.9, which the frameworks of 2026 require."""

LEAST_BYTES = 256.0

NIC_BYTES_PER_S = 50e9
"""One direction of a GPU's NIC of 400 Gb/s, as the shipped machines of such GPUs have it."""

FUSED_SINCE = 90
"""Compute capability from which SGLang runs FlashInfer's all-reduce, which is TensorRT-LLM's, fused with the norm after
it (`python/sglang/srt/layers/flashinfer_comm_fusion.py`). Its own would jump by 3 ms a step from 16 to 32 sequences of
DeepSeek-V3 on eight B200, which its runs do not."""


@lru_cache(maxsize=64)
def preset_nccl(gpu: str) -> NcclSeconds:
    """NCCL on the shipped machine of such GPUs; a ring over PCIe where none ships."""
    from commsim.nccl.predict import Options, Predictor
    from commsim.topology.presets import load_preset
    from commsim.training.accelerator import accelerator

    one = accelerator(gpu)
    models: dict[int, Predictor] = {}

    def seconds(collective: str, ranks: int, nbytes: float) -> float:
        if one.name not in MACHINES:
            return _ring_seconds(one, collective, ranks, nbytes)
        if ranks not in models:
            domain = one.rack if one.rack > 1 else 8
            nodes = -(-ranks // domain)
            each = min(ranks, domain)
            name = MACHINES[one.name][nodes > 1]
            if one.rack > 1:
                tray = 4 if each % 4 == 0 else 2 if each % 2 == 0 else 1
                topology = load_preset(name, nodes=max(ranks // tray, 1), gpus_per_node=tray)
            else:
                topology = load_preset(name, nodes=nodes, gpus_per_node=each)
            models[ranks] = Predictor(topology, Options(version=NCCL_VERSION))
        return models[ranks].predict(collective, int(nbytes)).time_s

    return seconds


def _ring_seconds(gpu: Accelerator, collective: str, ranks: int, nbytes: float) -> float:
    """A ring over the GPU's near links, 12 us and 2.5 us a step, four fifths of the rate."""
    passes = 2.0 if collective == "all_reduce" else 1.0
    moved = passes * (ranks - 1) / ranks * nbytes
    return 12e-6 + 2.5e-6 * passes * (ranks - 1) + moved / (0.8 * gpu.near_bytes_per_s)


@dataclass(eq=False)
class Collectives:
    """Seconds of the collectives of a framework on GPUs of one kind.

    ``near``: ranks whose memory is joined, so that the framework's own kernels reach it (0: those of the GPU's NVLink).
    ``nic_bytes_per_s``: one direction of a GPU's share of the NICs, where exchanges of experts leave that domain.
    """

    gpu: Accelerator
    engine: Engine
    nccl: NcclSeconds
    multicast: bool = True
    near: int = 0
    nic_bytes_per_s: float = NIC_BYTES_PER_S
    _device: KernelDevice | None = field(init=False, default=None)
    _knots: dict[tuple[str, int, int], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self._device = kernel_device(self.gpu)
        except CommsimError:  # no NVLink, or a generation that no kernels are known of
            self._device = None

    def all_reduce(self, ranks: int, nbytes: float) -> float:
        """Of a tensor of so many bytes on each rank."""
        if ranks < 2 or nbytes <= 0:
            return 0.0
        own = self._own(ranks, nbytes)
        return self._nccl("all_reduce", ranks, nbytes) if own is None else own

    def _own(self, ranks: int, nbytes: float) -> float | None:
        framework = self.engine.framework
        if self._device is None or framework == "hf" or 0 < self.near < ranks:
            return None
        release = self.engine.release
        if framework == "sglang" and self._device.capability >= FUSED_SINCE:
            framework, release = "tensorrt_llm", NEWEST["tensorrt_llm"]
        size = max(16, int(-(-nbytes // 16) * 16))
        call = KernelCall(framework, release, self._device, ranks, size, self.multicast)
        choice = choose(call)
        if choice.kernel == "nccl":
            return None
        return kernel_time(call, choice.kernel, cuda_graph=True).kernel_s

    def all_gather(self, ranks: int, nbytes: float) -> float:
        """Of so many bytes that every rank has in the end."""
        return self._nccl("all_gather", ranks, nbytes) if ranks > 1 and nbytes > 0 else 0.0

    def reduce_scatter(self, ranks: int, nbytes: float) -> float:
        """Of so many bytes that every rank has at first."""
        return self._nccl("reduce_scatter", ranks, nbytes) if ranks > 1 and nbytes > 0 else 0.0

    def _nccl(self, collective: str, ranks: int, nbytes: float) -> float:
        at = log2(max(nbytes, LEAST_BYTES))
        low, high = floor(at), ceil(at)
        below = self._knot(collective, ranks, low)
        if low == high:
            return below
        share = (max(nbytes, LEAST_BYTES) - 2.0**low) / (2.0**high - 2.0**low)
        return below + share * (self._knot(collective, ranks, high) - below)

    def _knot(self, collective: str, ranks: int, power: int) -> float:
        key = (collective, ranks, power)
        if key not in self._knots:
            self._knots[key] = self.nccl(collective, ranks, 2.0**power)
        return self._knots[key]


@lru_cache(maxsize=64)
def preset_collectives(gpu: Accelerator, engine: Engine) -> Collectives:
    """Those of a framework on the shipped machine of such GPUs."""
    return Collectives(gpu, replace(engine), preset_nccl(gpu.name))
