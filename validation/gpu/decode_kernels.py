"""Measures what a decode step of a GPU is made of, beside its products: small kernels, gaps of a CUDA graph, copies.

    python validation/gpu/decode_kernels.py OUT.csv

Needs a GPU and torch (`beside` also cupy). A row is a kind, a shape, FLOP, bytes, and the median seconds of a call:

    gap        an addition of one number, in a CUDA graph and launched one by one
    norm, gate, add_norm, rope, argmax, top_p    what lies between products, fused by torch.compile, in a CUDA graph
    product    few rows by a weight that is cold, bfloat16 and fp8, in a CUDA graph
    layer      a whole decode layer of Llama (8B; 70B as one of eight ranks has it), its kernels one by one and together
    host_copy  to and from pinned and pageable memory
    beside     a product, an attention and a copy beside a kernel that holds so many SMs and does nothing, or copies

Weights of a layer or a product are so many that none is in a cache when its turn comes.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch.nn import functional

Row = tuple[str, str, str, float, float, float]
"""Kind, shape, how it was called, FLOP, bytes, seconds."""

ROWS = (1, 4, 16, 64, 256, 1024)
COLD_BYTES = 256 << 20
"""Weights that a repeat goes through: five times an H100's cache."""

_DEVICE, _TYPE = "cuda", torch.bfloat16


def graph_of(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    """A graph of one call, which has been warmed up."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def seconds_of(call: Callable[[], Any], repeats: int = 15, inner: int = 1) -> float:
    """Median seconds of a call by device events; ``inner`` calls between two events."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(inner):
            call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / inner)
    return float(statistics.median(times))


def in_graph(call: Callable[[], Any], calls: int) -> float:
    """Seconds of a call among so many in one graph."""

    def many() -> None:
        for _ in range(calls):
            call()

    return seconds_of(graph_of(many).replay) / calls


def draw(*shape: int) -> torch.Tensor:
    """Random numbers of a layer's size, not zeros, on which products are quicker."""
    return torch.randn(*shape, device=_DEVICE, dtype=_TYPE) * 0.05


def gaps() -> Iterator[Row]:
    """Of kernels that do nothing."""
    one = torch.zeros(1, device=_DEVICE)
    yield "gap", "1", "graph", 0.0, 0.0, in_graph(lambda: one.add_(1.0), 500)
    begin = time.perf_counter()
    for _ in range(2000):
        one.add_(1.0)
    host = (time.perf_counter() - begin) / 2000
    torch.cuda.synchronize()
    yield "gap", "1", "eager host", 0.0, 0.0, host
    yield "gap", "1", "eager", 0.0, 0.0, seconds_of(lambda: one.add_(1.0), inner=500)


def add_norm(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual addition and RMSNorm."""
    s = (x + y).float()
    return s.to(x.dtype), (s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * w


def gate(x: torch.Tensor) -> torch.Tensor:
    """SwiGLU."""
    a, b = x.chunk(2, -1)
    return functional.silu(a) * b


def rope(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions of (rows, heads, width)."""
    a, b = q.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def top_p(x: torch.Tensor) -> torch.Tensor:
    """A word of the likeliest that have 0.9 together, as it is done with a sort."""
    p, order = torch.softmax(x, -1).sort(-1, descending=True)
    p = p * ((p.cumsum(-1) - p) < 0.9)
    drawn = (p / torch.empty_like(p).exponential_()).argmax(-1, keepdim=True)
    return order.gather(-1, drawn)


def small_kernels() -> Iterator[Row]:
    """What lies between the products."""
    fused_norm, fused_gate, fused_rope = (torch.compile(f, dynamic=False) for f in (add_norm, gate, rope))
    for rows in ROWS:
        for hidden in (4096, 8192):
            x, y, w = draw(rows, hidden), draw(rows, hidden), draw(hidden)
            yield (
                "add_norm",
                f"{rows}x{hidden}",
                "graph",
                0,
                8.0 * rows * hidden,
                in_graph(partial(fused_norm, x, y, w), 100),
            )
        for width in (3584, 14336):
            x = draw(rows, 2 * width)
            yield "gate", f"{rows}x{width}", "graph", 0, 6.0 * rows * width, in_graph(partial(fused_gate, x), 100)
        q, cos, sin = draw(rows, 40, 128), draw(rows, 1, 64), draw(rows, 1, 64)
        yield (
            "rope",
            f"{rows}x40x128",
            "graph",
            0,
            4.0 * rows * 5120,
            in_graph(partial(fused_rope, q, cos, sin), 100),
        )
    for rows in (1, 16, 64, 256):
        logits = torch.randn(rows, 128256, device=_DEVICE)
        yield "argmax", f"{rows}x128256", "graph", 0, 4.0 * rows * 128256, in_graph(partial(logits.argmax, -1), 20)
        yield "top_p", f"{rows}x128256", "eager", 0, 4.0 * rows * 128256, seconds_of(partial(top_p, logits), inner=3)


def products() -> Iterator[Row]:
    """Of few rows, each with a weight of its own."""
    for k, n in ((4096, 6144), (4096, 28672), (14336, 4096), (8192, 1280), (8192, 7168), (3584, 8192)):
        count = max(2, COLD_BYTES // (2 * k * n))
        weights = [draw(n, k) for _ in range(count)]
        for rows in ROWS:
            x, turn = draw(rows, k), [0]

            def call(x: torch.Tensor = x, turn: list[int] = turn, weights: list[torch.Tensor] = weights) -> None:
                functional.linear(x, weights[turn[0] % len(weights)])
                turn[0] += 1

            nbytes = 2.0 * (k * n + rows * (k + n))
            yield "product", f"{rows}x{n}x{k}", "bfloat16", 2.0 * rows * n * k, nbytes, in_graph(call, 2 * count)
        one = torch.ones((), device=_DEVICE)
        small = [w.to(torch.float8_e4m3fn) for w in weights]
        for rows in (16, 64, 256, 1024):
            x8, turn = draw(rows, k).to(torch.float8_e4m3fn), [0]

            def call8(
                x: torch.Tensor = x8, turn: list[int] = turn, weights: list[torch.Tensor] = small, s: torch.Tensor = one
            ) -> None:
                torch._scaled_mm(x, weights[turn[0] % len(weights)].t(), s, s, out_dtype=_TYPE)
                turn[0] += 1

            nbytes = 1.0 * (k * n + rows * k) + 2.0 * rows * n
            yield "product", f"{rows}x{n}x{k}", "fp8", 2.0 * rows * n * k, nbytes, in_graph(call8, 2 * count)
        del weights, small


class Layers:
    """Decode layers of a dense model on one rank, each with weights and a cache of its own."""

    def __init__(self, hidden: int, heads: int, kv: int, ffn: int, rows: int, cached: int) -> None:
        self.heads, self.kv, self.rows = heads, kv, rows
        each = 2 * (hidden * (heads + 2 * kv) * 128 + heads * 128 * hidden + 3 * hidden * ffn)
        self.count = max(3, COLD_BYTES // each)
        self.weights = [
            (draw((heads + 2 * kv) * 128, hidden), draw(hidden, heads * 128), draw(2 * ffn, hidden), draw(hidden, ffn))
            for _ in range(self.count)
        ]
        self.caches = [(draw(rows, kv, cached, 128), draw(rows, kv, cached, 128)) for _ in range(self.count)]
        self.x, self.scale = draw(rows, hidden), draw(hidden)
        self.cos, self.sin = draw(rows, 1, 64), draw(rows, 1, 64)
        self.norm, self.gate, self.rope = (torch.compile(f, dynamic=False) for f in (add_norm, gate, rope))

    def one(self, i: int) -> None:
        """Layer i."""
        qkv, out, up, down = self.weights[i]
        x, y = self.norm(self.x, self.x, self.scale)
        mixed = functional.linear(y, qkv).view(self.rows, -1, 128)
        turned = self.rope(mixed[:, : self.heads + self.kv], self.cos, self.sin)
        keys, values = self.caches[i]
        keys[:, :, -1], values[:, :, -1] = turned[:, self.heads :], mixed[:, self.heads + self.kv :]
        self.attend(turned[:, : self.heads], i)
        y = functional.linear(self.seen.reshape(self.rows, -1), out)
        x, y = self.norm(x, y, self.scale)
        functional.linear(self.gate(functional.linear(y, up)), down)

    def attend(self, q: torch.Tensor, i: int) -> None:
        """The attention of layer i."""
        keys, values = self.caches[i]
        self.seen = functional.scaled_dot_product_attention(
            q.view(self.rows, self.heads, 1, 128), keys, values, enable_gqa=self.kv != self.heads
        )

    def all(self) -> None:
        """Every layer."""
        for i in range(self.count):
            self.one(i)


def layers() -> Iterator[Row]:
    """Whole layers, their attention, and the same launched one by one."""
    shapes = {"llama-8b": (4096, 32, 8, 14336), "llama-70b tp 8": (8192, 8, 1, 3584)}
    for name, (hidden, heads, kv, ffn) in shapes.items():
        for rows, cached in ((1, 1024), (16, 1024), (64, 1024), (64, 4096), (256, 1024)):
            of = Layers(hidden, heads, kv, ffn, rows, cached)
            weights = 2.0 * sum(w.numel() for w in of.weights[0])
            cache = 2.0 * 2 * rows * kv * cached * 128
            flop = rows * weights + 4.0 * rows * heads * cached * 128
            q = draw(rows, heads, 128)
            shape = f"{name} {rows}x{cached}"
            yield "layer", shape, "graph", flop, weights + cache, seconds_of(graph_of(of.all).replay) / of.count
            yield "layer", shape, "eager", flop, weights + cache, seconds_of(of.all, repeats=5) / of.count

            def attend(of: Layers = of, q: torch.Tensor = q) -> None:
                for i in range(of.count):
                    of.attend(q, i)

            yield (
                "layer attention",
                shape,
                "graph",
                flop - rows * weights,
                cache,
                seconds_of(graph_of(attend).replay) / of.count,
            )
            del of
            torch.cuda.empty_cache()


def host_copies() -> Iterator[Row]:
    """Between the GPU and the host."""
    nbytes = 1 << 30
    here = torch.empty(nbytes, dtype=torch.uint8, device=_DEVICE)
    for name, there in (
        ("pinned", torch.ones(nbytes, dtype=torch.uint8, pin_memory=True)),
        ("pageable", torch.ones(nbytes, dtype=torch.uint8)),
    ):
        yield (
            "host_copy",
            f"{nbytes}",
            f"{name} to the GPU",
            0,
            nbytes,
            seconds_of(partial(here.copy_, there, non_blocking=True), 5),
        )
        yield (
            "host_copy",
            f"{nbytes}",
            f"{name} to the host",
            0,
            nbytes,
            seconds_of(partial(there.copy_, here, non_blocking=True), 5),
        )


HOLD = r"""
extern "C" __global__ void hold(long long ns, float4* data, long long count, int copies) {
  extern __shared__ char room[];
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  long long step = (long long)gridDim.x * blockDim.x, half = count / 2;
  do {
    if (copies) {
      for (int k = 0; k < 64; ++k) { data[half + i % half] = data[i % half]; i += step; }
    }
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}
"""


def beside() -> Iterator[Row]:
    """Compute beside a kernel that holds SMs: what a collective takes from it."""
    import cupy  # type: ignore[import-not-found]

    hold = cupy.RawKernel(HOLD, "hold")
    hold.max_dynamic_shared_size_bytes = 200 << 10
    data = torch.zeros(64 << 20, dtype=torch.float32, device=_DEVICE)  # 256 MiB
    side = torch.cuda.Stream()
    external = cupy.cuda.ExternalStream(side.cuda_stream)
    a, b = draw(8192, 8192), draw(8192, 8192)
    c, d = draw(4096, 4096), draw(4096, 4096)
    q = draw(2, 32, 4096, 128)
    source = torch.empty(256 << 20, dtype=torch.uint8, device=_DEVICE)
    target = torch.empty_like(source)
    works: dict[str, tuple[float, float, Callable[[], Any]]] = {
        "product 8192x8192x8192": (2.0 * 8192**3, 0, lambda: a @ b),
        "product 4096x4096x4096": (2.0 * 4096**3, 0, lambda: c @ d),
        "attention 2x32x4096x128": (
            2.0 * 2 * 32 * 4096**2 * 128,
            0,
            lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=True),
        ),
        "copy 256 MiB": (0, 512 << 20, lambda: target.copy_(source)),
    }
    for name, (flop, nbytes, work) in works.items():
        alone = seconds_of(work, 9)
        yield "beside", name, "0 SMs", flop, nbytes, alone
        for copies in (0, 1):
            for sms in (4, 8, 16, 24, 32, 48, 64):
                calls = max(1, min(20, int(0.02 / alone)))
                torch.cuda.synchronize()
                with external:
                    hold(
                        (sms,),
                        (512,),
                        (60_000_000 + int(6e9 * alone * calls), data.data_ptr(), data.numel() // 4, copies),
                        shared_mem=200 << 10,
                    )
                time.sleep(0.002)
                times = []
                for _ in range(3):
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    begin.record()
                    for _ in range(calls):
                        work()
                    end.record()
                    end.synchronize()
                    times.append(begin.elapsed_time(end) / 1e3 / calls)
                held = not side.query()  # the kernel must still be there, or the times say nothing
                torch.cuda.synchronize()
                kind = "copying" if copies else "idle"
                if held:
                    yield "beside", name, f"{sms} SMs {kind}", flop, nbytes, statistics.median(times)


def main(out: Path) -> int:
    """Measures all parts; a part that fails is named, and the others go on. 1 if one did."""
    torch._dynamo.config.recompile_limit = 64
    failed = 0
    with out.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("gpu", "torch", "kind", "shape", "call", "flop", "bytes", "seconds"))
        here = (torch.cuda.get_device_name(), torch.__version__)
        for part in (gaps, small_kernels, products, layers, host_copies, beside):
            begin = time.monotonic()
            try:
                for row in part():
                    table.writerow((*here, *row[:3], f"{row[3]:.6g}", f"{row[4]:.6g}", f"{row[5]:.6g}"))
                    file.flush()
            except Exception:
                failed = 1
                traceback.print_exc()
            torch.cuda.empty_cache()
            print(f"# {part.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
