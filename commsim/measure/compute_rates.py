"""What this computer computes: rates of matrix products, attention and copies, and the time of a launch.

For the closed form of a training step (`commsim.training.parameters`). One device, no communication.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from commsim.errors import MeasurementError
from commsim.measure.gpu import Gpus
from commsim.training.accelerator import accelerator_of_board

PRODUCTS = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (2048, 4096, 1024), (8192, 8192, 8192))
"""Rows, columns and inner length of C = A B; the last one only on a GPU."""

ATTENTIONS = ((1, 8, 512, 64), (1, 8, 1024, 128), (2, 32, 4096, 128))
"""Batch, heads, length and head width; the last one only on a GPU."""

COPY_BYTES = (1 << 20, 64 << 20, 512 << 20)
LAUNCHES = 1000

ENOUGH_S, LONGEST_S = 5.0, 10.0
"""Seconds after which a shape is not repeated any more, and that one call may take at most."""

_WARMUP = 2


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


def compute_rates(
    device: Any, repeats: int = 9, gpu: Gpus | None = None, index: int = 0, until_s: float = math.inf
) -> list[Rate]:
    """Rates by shape and type; a product of m x k and k x n has 2mnk FLOP, causal attention half of 4 b h s s d.

    `gpu` and `index`: the layer and the number of the GPU that `device` is, None on a CPU. After `until_s` of
    time.monotonic no further shape is begun. A shape that would take longer than `LONGEST_S` by the rate of the last
    one of its kind is left out: products of bfloat16 on a processor without units for it.
    """
    rates: list[Rate] = []
    last: dict[tuple[str, str], float] = {}
    for kind, shape, dtype, amount, prepare in _jobs(device, gpu, index):
        if rates and time.monotonic() > until_s:
            break
        per_second = last.get((kind, dtype))
        if per_second is not None and amount / per_second > LONGEST_S:
            continue
        call = prepare()
        rates.append(Rate(kind, shape, dtype, amount, *_timed(call, gpu, repeats)))
        last[kind, dtype] = rates[-1].per_second
        del call  # and its operands
    return rates


def _jobs(
    device: Any, gpu: Gpus | None, index: int
) -> Iterator[tuple[str, str, str, float, Callable[[], Callable[[], Any]]]]:
    """What is measured, the quickest first: as in `Rate`, and what gets the operands ready and returns the call."""
    on_gpu = gpu is not None
    yield "launch", f"{LAUNCHES} small additions", "float32", LAUNCHES, partial(_launches, device)
    for size in COPY_BYTES if on_gpu else COPY_BYTES[:-1]:
        yield "copy", f"{size}", "uint8", 2.0 * size, partial(_copy, size, device)
    for name, dtype, products in _types(gpu, index):
        for m, n, k in PRODUCTS if on_gpu else PRODUCTS[:-1]:
            prepare = partial(_product, (m, n, k), dtype, products, device)
            yield "matmul", f"{m}x{n}x{k}", name, 2.0 * m * n * k, prepare
        if name == "tf32":
            continue  # the fused kernels of attention have no such type
        for shape in ATTENTIONS if on_gpu else ATTENTIONS[:-1]:
            batch, heads, length, width = shape
            text, flop = "x".join(map(str, shape)), 2.0 * batch * heads * length * length * width
            yield "attention", text, name, flop, partial(_attention, shape, dtype, device)
            yield "attention_backward", text, name, 3.5 * flop, partial(_both_ways, shape, dtype, device)


def _launches(device: Any) -> Callable[[], Any]:
    small = torch.zeros(1, device=device)

    def call() -> None:
        for _ in range(LAUNCHES):
            small.add_(1.0)

    return call


def _copy(size: int, device: Any) -> Callable[[], Any]:
    source = torch.randint(256, (size,), dtype=torch.uint8, device=device)
    return partial(torch.empty_like(source).copy_, source)


def _product(shape: tuple[int, int, int], dtype: torch.dtype, products: str, device: Any) -> Callable[[], Any]:
    m, n, k = shape
    a, b = random_operand((m, k), dtype, device), random_operand((k, n), dtype, device)
    out = torch.empty(m, n, dtype=dtype, device=device)

    def call() -> None:
        with float32_products(products):
            torch.mm(a, b, out=out)

    return call


_BFLOAT16_SINCE = 80  # of tensor cores, and tf32: older GPUs compute bfloat16 by detours, 10 times as slow as float16


def _types(gpu: Gpus | None, index: int) -> list[tuple[str, torch.dtype, str]]:
    """Name, type, and how products of float32 are computed, of all that the device has units for."""
    types = [("float32", torch.float32, "highest")]
    new = gpu is None or gpu.properties(index).sm >= _BFLOAT16_SINCE
    types += [("bfloat16", torch.bfloat16, "highest")] * new
    if gpu is not None:
        types += [("float16", torch.float16, "highest"), *[("tf32", torch.float32, "high")] * new]
    return types


@contextmanager
def float32_products(how: str) -> Iterator[None]:
    """Has products of float32 run as told, ``highest`` or ``high`` (tf32); torch's default changed between versions."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(how)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def random_operand(shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Any:
    """Numbers as activations and weights have them, the same each time.

    The power that a tensor core takes grows with the bits that change, and the clock falls with the power: operands of
    equal numbers show a rate that no training reaches.
    """
    generator = torch.Generator(device=device).manual_seed(1)
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def _attention(shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Callable[[], Any]:
    q, k, v = (random_operand(shape, dtype, device).requires_grad_() for _ in range(3))
    return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def _both_ways(shape: tuple[int, ...], dtype: torch.dtype, device: Any) -> Callable[[], Any]:
    forward = _attention(shape, dtype, device)
    return lambda: forward().sum().backward()


def seconds_of(call: Callable[[], Any], gpu: Gpus | None) -> float:
    """Seconds of one call, until the GPU, where there is one, has done everything."""
    wait = gpu.synchronize if gpu is not None else (lambda: None)
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def _timed(call: Callable[[], Any], gpu: Gpus | None, repeats: int) -> tuple[float, float]:
    """Median and least seconds of a call, after two to warm up; of what fits into `ENOUGH_S` where a call is slow."""
    seconds: list[float] = []
    begun = time.perf_counter()
    while len(seconds) < repeats + _WARMUP and (not seconds or time.perf_counter() - begun < ENOUGH_S):
        seconds.append(seconds_of(call, gpu))
    warm = seconds[_WARMUP:] or seconds[-1:]
    return sorted(warm)[len(warm) // 2], min(warm)


def rates_csv(rates: list[Rate]) -> str:
    """The rates as CSV."""
    lines = ["kind,shape,dtype,amount,median_s,least_s,per_second"]
    lines += [
        f"{r.kind},{r.shape},{r.dtype},{r.amount:.0f},{r.seconds:.6g},{r.least_s:.6g},{r.per_second:.6g}" for r in rates
    ]
    return "\n".join(lines) + "\n"


def processor_yaml(rates: list[Rate], processor: str, memory_bytes: int, threads: int) -> str:
    """A processor's rates for `commsim.training.accelerator.read_processor`: the best product, the largest copy.

    MeasurementError where time was too short for one of them.
    """
    copies = [r for r in rates if r.kind == "copy"]
    noun = "thread" if threads == 1 else "threads"
    return (
        f"# Measured by `commsim rates` with {threads} {noun} per process: accelerator of a training item.\n"
        f"processor: {json.dumps(processor)}\n"
        f"source: commsim rates, torch {torch.__version__}, {threads} {noun}\n"
        f"fp32: {_best(rates, 'matmul', 'float32'):.0f}\n"
        f"bf16: {_best(rates, 'matmul', 'bfloat16'):.0f}\n"
        f"memory_bytes: {memory_bytes}\n"
        f"memory_bytes_per_s: {copies[-1].per_second:.0f}  # a copy that no cache holds\n"
    )


def _best(rates: list[Rate], kind: str, dtype: str) -> float:
    of_kind = [r.per_second for r in rates if (r.kind, r.dtype) == (kind, dtype)]
    if not of_kind:
        raise MeasurementError(f"no {kind} of {dtype} was measured in the time given")
    return max(of_kind)


def parameter_yaml(rates: list[Rate], gpu: str, memory_bytes: int = 0) -> str | None:
    """The parameters of the training model that the rates determine, as shares of the datasheet's peaks.

    None where the board has no datasheet among the presets of `commsim.training.accelerator`; MeasurementError where
    time was too short for one of them.
    """
    board = accelerator_of_board(gpu, memory_bytes)
    if board is None:
        return None
    measured, short = ("bfloat16", "bf16") if board.supports("bf16") else ("float16", "fp16")
    best = partial(_best, rates)
    values = {
        f"gemm.{board.generation}": best("matmul", measured) / board.peak(short),
        f"attention.{board.generation}": best("attention", measured) / board.peak(short),
        "hbm": best("copy", "uint8") / board.memory_bytes_per_s,
        "host": next(r.seconds / r.amount for r in rates if r.kind == "launch"),
    }
    head = f"# Measured on one {board.name} by `commsim rates`: shares of its peaks; host: seconds per launch.\n"
    return head + "".join(f"{name}: {value:.9f}\n" for name, value in values.items())
