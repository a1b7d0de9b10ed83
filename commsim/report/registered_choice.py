"""What NCCL runs on registered buffers in place of the tuner's choice, in the words of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.nccl.symmetric import open_kernels
from commsim.nccl.symmetric_choice import counted_bytes, expected, held_bytes

if TYPE_CHECKING:
    from commsim.nccl.registered import Registration

_NAMES = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AlltoAll",
    "gather": "Gather",
    "scatter": "Scatter",
}

_THREADS = 512  # 16 warps, of every kernel


def instead_lines(registration: Registration, collective: str, nbytes: int) -> list[str]:
    """The line of NCCL's log of one size, and NCCL's costs of the kernels it compares; empty: the tuner chooses."""
    own = registration.instead(collective, nbytes)
    if own is None:
        return []
    ranks = registration.system.ranks
    held = held_bytes(collective, nbytes, ranks)
    if own.choice is None:
        return [f"{_NAMES[collective]} [Copy Engine]: {held} Bytes -> cudaMemcpy"]
    costs = []
    system, version, env = registration.system, registration.version, registration.env
    for kernel in open_kernels(system, version, env, collective, held, registration.operation):
        time, blocks = expected(kernel, system, counted_bytes(held, version), version, env, registration.domain.nic)
        costs.append(f"{kernel.short} {time:.1f} by {blocks}")
    return [
        f"# us that NCCL expects, by thread blocks, each 2.5 % dearer: {', '.join(costs)}",
        f"{_NAMES[collective]} [Symmetric]: {held} Bytes -> Kernel {own.choice.kernel.name} "
        f"nchannels {own.channels} nthreads {_THREADS}",
    ]
