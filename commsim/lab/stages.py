"""What a laboratory measures, the most valuable first: whenever time ends, what is there is a usable curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from commsim.collectives.semantics import NCCL_TESTS
from commsim.measure.tasks import Task, TrainingTask

COLLECTIVES, SINGLE, FORCED, STEPS, RATES = "collectives", "single", "forced", "steps", "rates"
GRAPHS, REGISTERED = "graphs", "registered"
"""Folders of a laboratory."""

PARAMS = "params.yaml"
"""What was calibrated."""

SMALLEST_BYTES = 8
LARGEST_BYTES = 8 << 30
SHARED_LARGEST_BYTES = 256 << 20
"""Of ranks that share a GPU: their times say nothing of links, and sockets take seconds for more."""

_FIRST = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv", "reduce")
"""By how much of the traffic of training they are."""

_LAST = tuple(name for name in NCCL_TESTS if name not in _FIRST)

MEASURED = (*_FIRST, *_LAST)
"""All collectives of a laboratory."""

BUFFERS = 3
"""Arrays of the size of a message that a rank holds at most: what it sends, what it receives, and room to check it."""

_RINGS_AND_TREES = product(("Ring", "Tree"), ("Simple", "LL128", "LL"))
_FORCED = (*_RINGS_AND_TREES, ("NVLS", "Simple"), ("NVLSTree", "Simple"))


@dataclass(frozen=True)
class Forced:
    """An algorithm and a protocol that NCCL is told to take, by its variables."""

    algorithm: str
    protocol: str

    @property
    def name(self) -> str:
        """As a folder is called."""
        return f"{self.algorithm}-{self.protocol}".lower()

    @property
    def env(self) -> dict[str, str]:
        """NCCL's variables for it."""
        return {"NCCL_ALGO": self.algorithm, "NCCL_PROTO": self.protocol}


def largest_bytes(memory_bytes: int) -> int:
    """The largest message that a GPU of so much free memory can take, a power of two, at most `LARGEST_BYTES`."""
    most = max(SMALLEST_BYTES, min(LARGEST_BYTES, memory_bytes // BUFFERS))
    return 1 << (most.bit_length() - 1)


def sizes(largest: int) -> list[tuple[int, ...]]:
    """Powers of two up to `largest` in three portions: each sixteenfold, then each fourfold, then the rest.

    The first portion holds the smallest and the largest size, so that a curve has both ends from the beginning.

    >>> sizes(2048)
    [(8, 128, 2048), (32, 512), (16, 64, 256, 1024)]
    """
    first, last = SMALLEST_BYTES.bit_length() - 1, largest.bit_length() - 1
    coarse, middle, fine = ({*range(first, last + 1, each), last} for each in (4, 2, 1))
    return [tuple(1 << k for k in sorted(new)) for new in (coarse, middle - coarse, fine - middle)]


def collective_tasks(largest: int) -> Iterator[Task]:
    """The collectives by portions of their sizes, the most valuable portion first."""
    coarse, middle, fine = sizes(largest)
    yield from (Task(name, coarse) for name in _FIRST)
    yield Task("all_reduce", middle)
    yield Task("all_reduce", fine)
    yield from (Task(name, middle) for name in _FIRST[1:])
    yield from (Task(name, coarse) for name in _LAST)
    yield from (Task(name, fine) for name in _FIRST[1:])


def forced_tasks(largest: int) -> tuple[Task, ...]:
    """What is measured under one forced algorithm and protocol."""
    coarse, middle, _ = sizes(largest)
    return Task("all_reduce", coarse), Task("all_reduce", middle)


GRAPH_LAUNCHES = 5
"""How often the CUDA graph of a row's calls is launched."""

_WINDOWS_SINCE = (2, 27)


def registration(nccl_version: str) -> str:
    """How memory is registered: as a window of all ranks where NCCL has them (ncclCommWindowRegister), else alone."""
    major, minor, *_ = map(int, nccl_version.split("."))
    return "window" if (major, minor) >= _WINDOWS_SINCE else "buffer"


def forced(possible: Sequence[tuple[str, str]]) -> list[Forced]:
    """The pairs worth forcing among those for which NCCL's own table has a bandwidth, the most valuable first."""
    known = {(algorithm.replace("_", "").lower(), protocol.lower()) for algorithm, protocol in possible}
    return [Forced(a, p) for a, p in _FORCED if (a.lower(), p.lower()) in known]


def variant_tasks(largest: int) -> tuple[Task, ...]:
    """What is measured as CUDA graphs, and with registered memory."""
    coarse, *_ = sizes(largest)
    return tuple(Task(name, coarse) for name in _FIRST[:3])


_WIDTHS = (4096, 2048, 1024, 256, 64, 32)
_LAYERS, _TOKENS, _STATE_BYTES = 4, 2, 16
"""Layers, tokens of the vocabulary for each width, and bytes of a parameter with its gradient and Adam's state."""

_HEAD = 128


def step_tasks(ranks: int, memory_bytes: int, largest: int = LARGEST_BYTES) -> list[TrainingTask]:
    """Training steps of a dense model in bf16 that fills a part of a GPU, under each parallelism over all ranks.

    A layer, which FSDP gathers at once, is no larger than the largest message.
    """
    fitting = (h for h in _WIDTHS if _step_bytes(h) <= memory_bytes // 2 and 2 * _layer(h) <= largest)
    hidden = next(fitting, _WIDTHS[-1])
    heads = max(ranks if hidden % ranks == 0 else 1, hidden // _HEAD)
    sequence = min(2048, 2 * hidden)
    schemes = ("ddp", "zero3", "tp", "pp") if ranks > 1 else ("ddp",)
    tasks = [
        TrainingTask(
            name=f"{scheme} {hidden} wide",
            scheme=scheme,
            ranks=ranks,
            layers=-(-_LAYERS // ranks) * ranks if scheme == "pp" else _LAYERS,
            hidden=hidden,
            ffn_hidden=4 * hidden,
            heads=heads,
            kv_heads=heads,
            vocab=_TOKENS * hidden,
            seq_len=sequence,
            micro_batches=2 * ranks if scheme == "pp" else 2,
            over_gloo=False,
            precision="bf16-fp32",
        )
        for scheme in schemes
    ]
    return [task for task in tasks if not any(task.faults())]


def _step_bytes(hidden: int) -> int:
    """Bytes that a step of the model needs at least: its layers and two tables."""
    return _STATE_BYTES * (_LAYERS * _layer(hidden) + 2 * _TOKENS * hidden * hidden)


def _layer(hidden: int) -> int:
    """Parameters of a layer: 4 h^2 of attention and 8 h^2 of the MLP."""
    return 12 * hidden * hidden
