"""One engine that serves a model: the mesh of its GPUs, the framework, number formats."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from commsim.errors import ScenarioError
from commsim.generation.formats import FORMATS, Formats, as_run
from commsim.training.accelerator import Accelerator
from commsim.training.model import Model

ServingFramework = Literal["vllm", "sglang", "tensorrt_llm", "hf"]
SERVING: tuple[ServingFramework, ...] = ("vllm", "sglang", "tensorrt_llm", "hf")

NEWEST = {"vllm": (0, 24, 0), "sglang": (0, 5, 14), "tensorrt_llm": (1, 3, 0), "hf": (4, 57, 0)}
"""What is taken where no release is named: the newest whose all-reduce kernels were measured; of `hf` transformers."""


@dataclass(frozen=True)
class Engine:
    """The framework and its release; `cuda_graph`: whether decode steps are replayed, not launched one by one."""

    framework: ServingFramework = "vllm"
    release: tuple[int, int, int] = (0, 0, 0)
    cuda_graph: bool = True

    def __post_init__(self) -> None:
        if self.framework not in SERVING:
            raise ScenarioError(f"found the framework {self.framework!r:.60}, expected one of {', '.join(SERVING)}")
        if not any(self.release):
            object.__setattr__(self, "release", NEWEST[self.framework])


@dataclass(frozen=True)
class Replica:
    """A model on tp x attention_dp x pp GPUs; experts are cut by moe_tp x moe_ep, the same GPUs without pp.

    ``attention_dp``: groups of tp ranks that have sequences of their own in attention and share the experts.
    """

    model: Model
    gpu: Accelerator
    engine: Engine = field(default_factory=Engine)
    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    moe_tp: int = 0  # 0: what moe_ep leaves
    moe_ep: int = 1
    formats: Formats = field(default_factory=Formats)

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "attention_dp", "moe_ep"):
            if getattr(self, name) < 1:
                raise ScenarioError(f"found {name} = {getattr(self, name)}, expected at least 1")
        f = self.formats
        run = replace(f, weights=as_run(f.weights, self.gpu), experts=as_run(f.experts, self.gpu))
        object.__setattr__(self, "formats", run)
        across = self.tp * self.attention_dp
        if self.moe_tp == 0:
            object.__setattr__(self, "moe_tp", max(across // self.moe_ep, 1))
        if self.model.moe is None:
            return
        if self.moe_tp * self.moe_ep != across:
            raise ScenarioError(
                f"found moe_tp * moe_ep = {self.moe_tp} * {self.moe_ep}, "
                f"expected tp * attention_dp = {self.tp} * {self.attention_dp} = {across}"
            )
        if self.moe_ep > self.model.moe.experts:
            raise ScenarioError(f"found moe_ep = {self.moe_ep}, expected at most {self.model.moe.experts} (experts)")

    @property
    def wide_products(self) -> str:
        """A sentence where the GPU has no units for the weights' format, else nothing."""
        kinds = [self.formats.weights, *([self.formats.experts] if self.model.moe is not None else [])]
        names = dict.fromkeys(k.name for k in kinds if k.product == "bf16" and FORMATS[k.name].product != "bf16")
        if not names:
            return ""
        what = " and ".join(names)
        return f"{self.gpu.name} has no units for {what}: only weights have that type, products run in 16 bit"

    @property
    def gpus(self) -> int:
        """GPUs of the replica."""
        return self.tp * self.pp * self.attention_dp

    @property
    def layers(self) -> float:
        """Layers of a stage, the mean."""
        return self.model.layers / self.pp

    @property
    def kv_heads(self) -> float:
        """Heads of keys and values on a rank: at least one, which several ranks then hold alike."""
        return max(self.model.kv_heads / self.tp, 1.0) if self.model.mla is None else 1.0

    @property
    def heads(self) -> float:
        """Query heads on a rank."""
        return max(self.model.heads / self.tp, 1.0)

    @property
    def inside(self) -> int:
        """GPUs of a stage that NVLink joins."""
        across = self.tp * self.attention_dp
        return min(across, max(self.gpu.nvlink_domain, 1)) if self.gpu.nvlink_bytes_per_s else across
