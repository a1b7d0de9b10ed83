"""Seconds of an all-reduce kernel: a sum of costs, each an amount (messages, bytes over a datasheet rate) times a
parameter of `parameters.yaml`.

A kernel is launched, its blocks tell each other over NVLink that they are there (flags), load from peers or store to
them, and may have to fence what they stored before the others read it. Latencies are in clocks of an SM, and longer on
a GPU of two dies. Bytes go at a share of the NVLink rate; where only some SMs load, at what they have in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commsim.kernels.device import KernelDevice
from commsim.training.compute import Values

Costs = dict[str, float]
"""Amount of each parameter: counts of messages have the unit 1, bytes are seconds at a datasheet rate."""

PEER_BLOCKS, PEER_THREADS = 36, 512
"""Blocks and threads of vLLM's kernel (`csrc/custom_all_reduce.cuh`: block_limit, threads)."""

LOAD_BYTES = 16
"""Of a load or store of a thread (ld.128, st.128)."""

PEER_WAVE = PEER_BLOCKS * PEER_THREADS * LOAD_BYTES
"""Bytes of a peer that all threads of vLLM's kernel load at once."""


def _peer_one_shot(d: KernelDevice, n: int, nbytes: float) -> Costs:
    """Every rank loads all of every peer: flags before and after."""
    return {"peer.base": 1.0, "peer.flags": n - 2.0, **_peer_loads(d, n - 1.0, nbytes)}


def _peer_two_shot(d: KernelDevice, n: int, nbytes: float) -> Costs:
    """A share of every peer is loaded and summed; after a fenced barrier the sums of all shares are loaded."""
    loads = _peer_loads(d, 2.0 * (n - 1.0), nbytes / n)
    return {"peer.base": 1.0, "peer.flags": n - 2.0, "fence.base": 1.0, "fence.peer": n - 2.0, **loads}


def _peer_loads(d: KernelDevice, times: float, nbytes: float) -> Costs:
    """What is loaded `times` over: the first wave at NVLink's rate, later ones as SMs have room in flight."""
    first = min(nbytes, PEER_WAVE)
    return {
        "peer.wave": times * first / d.nvlink_bytes_per_s,
        "peer.sm": times * (nbytes - first) / (PEER_BLOCKS * d.clock_hz),
    }


def _push_one_shot(d: KernelDevice, n: int, nbytes: float) -> Costs:
    """Every rank stores all it has at every peer, who polls for it: one way, no flag."""
    return {"push.base": 1.0, "push.peer": n - 2.0, "push.bytes": (n - 1.0) * nbytes / d.nvlink_bytes_per_s}


def _pull_one_shot(d: KernelDevice, n: int, nbytes: float) -> Costs:
    return {
        "push.base": 1.0,
        "pull.flags": 1.0,
        "push.peer": n - 2.0,
        "push.bytes": (n - 1.0) * nbytes / d.nvlink_bytes_per_s,
    }


def _pull_two_shot(d: KernelDevice, n: int, nbytes: float) -> Costs:
    """A share is loaded from every peer, summed, stored at every peer, fenced: out of a GPU go both."""
    return {
        "push.base": 1.0,
        "pull.flags": 1.0,
        "pull.fence": 1.0,
        "pull.fence_peer": n - 2.0,
        "pull.bytes": 2.0 * (n - 1.0) / n * nbytes / d.nvlink_bytes_per_s,
    }


def _lamport_one_shot(d: KernelDevice, n: int, nbytes: float) -> Costs:
    """As pushed, with the buffer of the call before cleared meanwhile."""
    return {"lamport.base": 1.0, "lamport.peer": n - 2.0, "lamport.bytes": (n - 1.0) * nbytes / d.nvlink_bytes_per_s}


def _lamport_two_shot(d: KernelDevice, n: int, nbytes: float) -> Costs:
    """Copied into the shared buffer, a barrier, a share summed and stored at all, a barrier, copied out."""
    return {
        "lamport.base": 1.0,
        "lamport.peer": n - 2.0,
        "lamport.barriers": 1.0,
        "lamport.barriers_peer": n - 2.0,
        "lamport.two_bytes": 2.0 * (n - 1.0) / n * nbytes / d.nvlink_bytes_per_s,
    }


def _symmetric_two_shot(d: KernelDevice, n: int, nbytes: float) -> Costs:
    """Of torch: copied into the symmetric buffer, both shots in place, copied out."""
    return {
        "symmetric.base": 1.0,
        "symmetric.peer": n - 2.0,
        "symmetric.two_bytes": 2.0 * (n - 1.0) / n * nbytes / d.nvlink_bytes_per_s,
        "copy.bytes": 2.0 * _copied(d, nbytes),
    }


def _symmetric_multimem(d: KernelDevice, n: int, nbytes: float) -> Costs:
    """Of torch: the switch sums a share and multicasts it; into a GPU go a share and all of the sums."""
    return {
        "symmetric.base": 1.0,
        "symmetric.peer": n - 2.0,
        "symmetric.multimem_bytes": (1.0 + 1.0 / n) * nbytes / d.nvlink_bytes_per_s,
        "copy.bytes": 2.0 * _copied(d, nbytes),
    }


def _multicast_one_shot(d: KernelDevice, n: int, nbytes: float) -> Costs:
    """Over multi-node NVLink: a rank multicasts all it has, and sums what all have sent it."""
    return {"lamport.base": 1.0, "lamport.peer": n - 2.0, "lamport.bytes": n * nbytes / d.nvlink_bytes_per_s}


def _multicast_two_shot(d: KernelDevice, n: int, nbytes: float) -> Costs:
    """Over multi-node NVLink: shares are stored at their ranks, which multicast the sums."""
    return {
        "lamport.base": 2.0,
        "lamport.peer": 2.0 * (n - 2.0),
        "lamport.bytes": (1.0 + (n - 1.0) / n) * nbytes / d.nvlink_bytes_per_s,
    }


KERNELS: Mapping[str, Callable[[KernelDevice, int, float], Costs]] = {
    "peer.one_shot": _peer_one_shot,
    "peer.two_shot": _peer_two_shot,
    "push.one_shot": _push_one_shot,
    "pull.one_shot": _pull_one_shot,
    "pull.two_shot": _pull_two_shot,
    "lamport.one_shot": _lamport_one_shot,
    "lamport.two_shot": _lamport_two_shot,
    "symmetric.two_shot": _symmetric_two_shot,
    "symmetric.multimem": _symmetric_multimem,
    "multicast.one_shot": _multicast_one_shot,
    "multicast.two_shot": _multicast_two_shot,
}

LATENCIES = frozenset({
    "peer.base", "peer.flags", "fence.base", "fence.peer", "push.base", "push.peer", "pull.flags", "pull.fence",
    "pull.fence_peer", "lamport.base", "lamport.peer", "lamport.barriers", "lamport.barriers_peer", "symmetric.base",
    "symmetric.peer", "copy.launch",
})  # fmt: skip
"""Parameters that are latencies: seconds at the reference's clock."""


def _copied(d: KernelDevice, nbytes: float) -> float:
    """Of one copy in a GPU's memory: read and written."""
    return 2.0 * nbytes / d.memory_bytes_per_s


def copies(d: KernelDevice, nbytes: float, count: float) -> Costs:
    """Copies beside a kernel, each launched."""
    return {"copy.launch": count, "copy.bytes": count * _copied(d, nbytes)} if count else {}


TWO_DIES = "latency.two_dies"
"""The parameter by which latencies of a GPU of two dies are longer."""


def joined(*parts: Costs) -> Costs:
    """The costs of what is done one after the other."""
    out: Costs = {}
    for part in parts:
        for name, amount in part.items():
            out[name] = out.get(name, 0.0) + amount
    return out


def wait_seconds(costs: Costs, d: KernelDevice, v: Values) -> float:
    """What the latencies among the costs sum up to on a GPU."""
    times = d.cycle * (v[TWO_DIES] if d.two_dies else 1.0)
    return times * sum(amount * v[name] for name, amount in costs.items() if name in LATENCIES)


def seconds(costs: Costs, d: KernelDevice, v: Values) -> float:
    """What the costs sum up to on a GPU."""
    return wait_seconds(costs, d, v) + sum(n * v[name] for name, n in costs.items() if name not in LATENCIES)
