"""Seconds of an all-reduce of a serving framework: its kernel in a CUDA graph, or called from Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from commsim.kernels.choice import MEASURED_RELEASES, PUSH_SINCE, RULE_RELEASES, Framework, KernelCall, Release
from commsim.kernels.costs import KERNELS, Costs, copies, joined, seconds
from commsim.training.compute import Values
from commsim.training.parameters import Parameter, parameters

PATH = Path(__file__).with_name("parameters.yaml")

COPIES = {"peer.one_shot": 1, "peer.two_shot": 1, "pull.one_shot": 1, "pull.two_shot": 2}
"""Copies into and out of the registered buffer outside of a graph; inside one the tensors themselves are registered
(vLLM, `custom_all_reduce.py`; SGLang, `custom_all_reduce_pull.cuh`). What is pushed needs none."""


def kernel_parameters() -> tuple[Parameter, ...]:
    """All parameters of the kernels, in the order of the file."""
    return parameters(PATH)


@lru_cache(maxsize=1)
def kernel_values() -> Values:
    """By name, what ships."""
    return MappingProxyType({p.name: p.value for p in kernel_parameters()})


@dataclass(frozen=True)
class KernelTime:
    """Seconds of a call: all of it, on the GPU, and of the host before it can make the next one."""

    time_s: float
    kernel_s: float
    launch_s: float


def kernel_costs(call: KernelCall, kernel: str, *, cuda_graph: bool, copied: int = 0) -> Costs:
    """What the GPU does for a call; `copied`: copies that the caller makes beside. With "nccl" the copies alone."""
    own: Costs = {} if kernel == "nccl" else KERNELS[kernel](call.device, call.ranks, float(call.nbytes))
    count = copied + (0 if cuda_graph else COPIES.get(kernel, 0))
    return joined(own, copies(call.device, float(call.nbytes), float(count)))


def host_name(call: KernelCall) -> str:
    """The parameter of the seconds that a call takes the host from Python; FlashInfer hands over by DLPack, too."""
    by_dlpack = call.framework == "flashinfer" or (call.framework == "sglang" and call.release >= PUSH_SINCE)
    return "host.push" if by_dlpack else "host.call"


def host_seconds(call: KernelCall, v: Values) -> float:
    """Seconds from one call to the next where Python makes each of them."""
    return v[host_name(call)] * (1.0 if call.device.host == "intel" else v[f"host.{call.device.host}"])


def kernel_time(
    call: KernelCall,
    kernel: str,
    *,
    cuda_graph: bool,
    nccl_s: float = 0.0,
    single: bool = False,
    v: Values | None = None,
) -> KernelTime:
    """The time of a call by a kernel, or by NCCL, which takes `nccl_s`.

    In a graph launches are part of what the kernel costs. From Python the host makes the next call meanwhile: the
    longer one counts; of a `single` call that somebody waits for, both.

    >>> from commsim.kernels.device import kernel_device
    >>> from commsim.training.accelerator import accelerator
    >>> call = KernelCall("vllm", (0, 24, 0), kernel_device(accelerator("H100")), ranks=2, nbytes=1 << 20)
    >>> round(kernel_time(call, "peer.one_shot", cuda_graph=True).time_s * 1e6, 1)  # measured: 8.3 us
    8.0
    """
    v = kernel_values() if v is None else v
    kernel_s = nccl_s + seconds(kernel_costs(call, kernel, cuda_graph=cuda_graph), call.device, v)
    host_s = 0.0 if cuda_graph else host_seconds(call, v)
    return KernelTime(kernel_s + host_s if single else max(kernel_s, host_s), kernel_s, host_s)


def beyond_rules(framework: Framework, release: Release) -> str:
    """Where a release is none of those whose rules are known, a sentence that says so; else empty."""
    first, last = RULE_RELEASES[framework]
    if first <= release <= last:
        return ""
    text = ".".join(map(str, release))
    known = " to ".join(".".join(map(str, end)) for end in (first, last))
    nearest = "older" if release < first else "newer"
    how = "measured" if framework in MEASURED_RELEASES else "whose sources were read"
    others = [name for name, (low, high) in MEASURED_RELEASES.items() if low <= release <= high]
    of = f"; {' and '.join(others)} has such a release" if others else ""
    return f"{framework} {text} is {nearest} than the releases {how} ({known}): the rules of the nearest are taken{of}"


def unfitted(framework: Framework) -> str:
    """Where no row is of a framework's kernels, a sentence that says whose parameters they take; else empty."""
    if framework in MEASURED_RELEASES:
        return ""
    return (
        f"kernels of {framework} are outside what was measured: their times are by the parameters of TensorRT-LLM's "
        "kernels, from which they came"
    )
