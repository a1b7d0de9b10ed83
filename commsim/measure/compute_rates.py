"""What this computer computes: rates of matrix products, attention and copies, and the time of a launch.

For the closed form of a training step (`commsim.training.parameters`). One device, no communication.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

PRODUCTS = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (2048, 4096, 1024), (8192, 8192, 8192))
"""Rows, columns and inner length of C = A B; the last one only on a GPU."""

ATTENTIONS = ((1, 8, 512, 64), (1, 8, 1024, 128), (2, 32, 4096, 128))
"""Batch, heads, length and head width; the last one only on a GPU."""

COPY_BYTES = (1 << 20, 64 << 20, 512 << 20)
LAUNCHES = 1000


@dataclass(frozen=True)
class Rate:
    """One measurement: ``amount`` FLOP, bytes or calls of one repeat, and the median seconds of a repeat."""

    kind: str  # matmul | attention | attention_backward | copy | launch
    shape: str
    dtype: str
    amount: float
    seconds: float
    least_s: float

    @property
    def per_second(self) -> float:
        """FLOP/s, bytes/s (read and written), or calls/s."""
        return self.amount / self.seconds


def compute_rates(device: Any, repeats: int = 9) -> list[Rate]:
    """Rates by shape and type; a product of m x k and k x n has 2mnk FLOP, causal attention half of 4 b h s s d."""
    on_gpu = device.type == "cuda"
    rates = []
    for dtype in (torch.float32, torch.bfloat16, *((torch.float16,) if on_gpu else ())):
        name = str(dtype).removeprefix("torch.")
        for m, n, k in PRODUCTS if on_gpu else PRODUCTS[:-1]:
            a, b = torch.ones(m, k, dtype=dtype, device=device), torch.ones(k, n, dtype=dtype, device=device)
            out = torch.empty(m, n, dtype=dtype, device=device)
            seconds = _timed(partial(torch.mm, a, b, out=out), device, repeats)
            rates.append(Rate("matmul", f"{m}x{n}x{k}", name, 2.0 * m * n * k, *seconds))
        for batch, heads, length, width in ATTENTIONS if on_gpu else ATTENTIONS[:-1]:
            shape, flop = f"{batch}x{heads}x{length}x{width}", 2.0 * batch * heads * length * length * width
            q, k_, v = (
                torch.ones(batch, heads, length, width, dtype=dtype, device=device, requires_grad=True)
                for _ in range(3)
            )
            forward = _attention(q, k_, v)
            rates.append(Rate("attention", shape, name, flop, *_timed(forward, device, repeats)))
            both = _timed(partial(_both_ways, forward), device, repeats)
            rates.append(Rate("attention_backward", shape, name, 3.5 * flop, *both))
    for size in COPY_BYTES if on_gpu else COPY_BYTES[:-1]:
        source = torch.ones(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        seconds = _timed(partial(target.copy_, source), device, repeats)
        rates.append(Rate("copy", f"{size}", "uint8", 2.0 * size, *seconds))
    small = torch.zeros(1, device=device)

    def launches() -> None:
        for _ in range(LAUNCHES):
            small.add_(1.0)

    rates.append(Rate("launch", f"{LAUNCHES} small additions", "float32", LAUNCHES, *_timed(launches, device, repeats)))
    return rates


def _attention(q: Any, k: Any, v: Any) -> Callable[[], Any]:
    return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _both_ways(forward: Callable[[], Any]) -> None:
    forward().sum().backward()


def _timed(call: Callable[[], Any], device: Any, repeats: int) -> tuple[float, float]:
    """Median and least seconds of a call, after two to warm up."""
    seconds = []
    for i in range(repeats + 2):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if i >= 2:
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2], min(seconds)


def rates_csv(rates: list[Rate]) -> str:
    """The rates as CSV."""
    lines = ["kind,shape,dtype,amount,median_s,least_s,per_second"]
    lines += [
        f"{r.kind},{r.shape},{r.dtype},{r.amount:.0f},{r.seconds:.6g},{r.least_s:.6g},{r.per_second:.6g}" for r in rates
    ]
    return "\n".join(lines) + "\n"


def processor_yaml(rates: list[Rate], processor: str, memory_bytes: int, threads: int) -> str:
    """A processor's rates for `commsim.training.accelerator.read_processor`: the best product, the largest copy."""

    def best(kind: str, dtype: str) -> float:
        return max(r.per_second for r in rates if (r.kind, r.dtype) == (kind, dtype))

    copies = [r for r in rates if r.kind == "copy"]
    noun = "thread" if threads == 1 else "threads"
    return (
        f"# Measured by `commsim rates` with {threads} {noun} per process: accelerator of a training item.\n"
        f"processor: {json.dumps(processor)}\n"
        f"source: commsim rates, torch {torch.__version__}, {threads} {noun}\n"
        f"fp32: {best('matmul', 'float32'):.0f}\n"
        f"bf16: {best('matmul', 'bfloat16'):.0f}\n"
        f"memory_bytes: {memory_bytes}\n"
        f"memory_bytes_per_s: {copies[-1].per_second:.0f}  # a copy that no cache holds\n"
    )


def parameter_yaml(rates: list[Rate], gpu: str) -> str | None:
    """The parameters of the training model that the rates determine, as shares of the datasheet's peaks.

    None where the GPU has no datasheet among the presets of `commsim.training.accelerator`.
    """
    from commsim.errors import ScenarioError
    from commsim.training.accelerator import accelerator

    found = None
    words = gpu.replace("NVIDIA", "").split()
    for name in ("-".join(words), *words):
        try:
            found = accelerator(name)
            break
        except ScenarioError:
            continue
    if found is None:
        return None

    def best(kind: str) -> float:
        return max(r.per_second for r in rates if r.kind == kind and (r.dtype == "bfloat16" or kind == "copy"))

    values = {
        f"gemm.{found.generation}": best("matmul") / found.peak("bf16"),
        f"attention.{found.generation}": best("attention") / found.peak("bf16"),
        "hbm": best("copy") / found.memory_bytes_per_s,
        "host": next(r.seconds / r.amount for r in rates if r.kind == "launch"),
    }
    head = f"# Measured on one {found.name} by `commsim rates`: shares of its peaks; host: seconds per launch.\n"
    return head + "".join(f"{name}: {value:.9f}\n" for name, value in values.items())
