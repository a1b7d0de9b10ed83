"""Which all-reduce kernel a framework runs, by its release, the GPUs and the size: the rules of its sources.

What they fall back to is NCCL; `KernelChoice.why` says why. Sizes are bytes of the message, one rank's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from commsim.kernels.device import KernelDevice
from commsim.units import format_size

Framework = Literal["vllm", "sglang", "tensorrt_llm", "flashinfer"]
FRAMEWORKS: tuple[Framework, ...] = ("vllm", "sglang", "tensorrt_llm", "flashinfer")
Release = tuple[int, int, int]

KIB, MIB = 1024, 1024 * 1024

MEASURED_RELEASES: Mapping[Framework, tuple[Release, Release]] = {
    "vllm": ((0, 14, 0), (0, 24, 0)),
    "sglang": ((0, 5, 9), (0, 5, 14)),
    "tensorrt_llm": ((1, 0, 0), (1, 3, 0)),
}
"""The oldest and the newest that rows are of (validation/kernels/custom_all_reduce.csv)."""

RULE_RELEASES: Mapping[Framework, tuple[Release, Release]] = {
    **MEASURED_RELEASES,
    "flashinfer": ((0, 4, 0), (0, 6, 17)),
}
"""The oldest and the newest whose rules are here; no rows are of FlashInfer, whose rules were read in its sources."""

MEASURED_RANKS = (2, 4, 8)
"""Numbers of GPUs that rows are of, all of one host."""

DTYPES = ("bfloat16", "float16", "float32")
"""Types that the kernels of all are compiled for (vLLM and SGLang to 0.5.10, `custom_all_reduce.cu`; SGLang from
0.5.12, `type.cuh`, which packs no others; TensorRT-LLM, `allReduceFusionKernels.cu`, allreduce_fusion_op; FlashInfer,
`csrc/trtllm_allreduce_fusion.cu` and `csrc/trtllm_mnnvl_allreduce.cu`)."""

NEVER, ALWAYS = 0, 1 << 62


@dataclass(frozen=True)
class KernelChoice:
    """What runs: a kernel of `commsim.kernels.costs.KERNELS`, or "nccl"; why, where it is NCCL."""

    kernel: str
    why: str = ""

    @property
    def algorithm(self) -> str:
        """What rows call it, without the framework's own way to do it."""
        return self.kernel.split(".")[-1]


@dataclass(frozen=True)
class KernelCall:
    """One all-reduce of a framework.

    `multicast`: whether the machine's NVSwitches multicast for its processes; `dtype`: of the elements.
    """

    framework: Framework
    release: Release
    device: KernelDevice
    ranks: int
    nbytes: int
    multicast: bool = True
    dtype: str = "bfloat16"


def choose(call: KernelCall) -> KernelChoice:
    """The kernel that the framework runs."""
    if call.nbytes % 16:
        return KernelChoice("nccl", "its size is no multiple of 16 B")
    if call.dtype not in DTYPES:
        return KernelChoice("nccl", f"its kernels are for {', '.join(DTYPES[:-1])} and {DTYPES[-1]}, not {call.dtype}")
    return RULES[call.framework](call)


def by_tokens(framework: Framework, release: Release) -> bool:
    """Whether the rules count tokens, which are taken as of `HIDDEN` elements."""
    return framework == "tensorrt_llm" or (framework == "flashinfer" and release < BY_BYTES_SINCE)


# -- vLLM ---------------------------------

PEER_RANKS = (2, 4, 6, 8)
"""Ranks that the kernels of vLLM and of SGLang before 0.5.12 are compiled for (vLLM, `custom_all_reduce.py`)."""

PEER_MOST = 8 * MIB
"""Bytes from which vLLM's kernel is not taken (`custom_all_reduce.py`, max_size; v0.14 to v0.24); SGLang takes it up to
and with them: rows of 8 MiB of 0.5.9 and 0.5.10 go on the line of the smaller ones."""

ONE_SHOT_BELOW = {4: 512 * KIB, 8: 256 * KIB}
"""Bytes below which one shot is taken on up to so many ranks; on two always (vLLM, `csrc/custom_all_reduce.cuh`)."""

PEER_BESIDE_SYMMETRIC = {
    90: {2: 64 * MIB, 4: 32 * MIB, 6: 512 * KIB, 8: 256 * KIB},
    100: {2: 2 * MIB, 4: 2 * MIB, 6: 1 * MIB, 8: 1 * MIB},
    103: {2: 4 * MIB, 4: 4 * MIB, 6: 8 * MIB, 8: 4 * MIB},
}
SYMMETRIC_MOST = {
    90: {2: 64 * MIB, 4: 32 * MIB, 6: 64 * MIB, 8: 64 * MIB},
    100: {2: 8 * MIB, 4: 32 * MIB, 6: 128 * MIB, 8: 128 * MIB},
    103: {2: 4 * MIB, 4: 32 * MIB, 6: 32 * MIB, 8: 64 * MIB},
}
MULTIMEM_RANKS = {90: (4, 6, 8), 100: (6, 8), 103: (6, 8)}
"""By compute capability and ranks (vLLM, `all_reduce_utils.py` and `symm_mem.py`): what is left to the kernel where
torch's symmetric memory works, how far that goes, and where it multicasts."""

SYMMETRIC_WITH_MOST: Release = (0, 20, 0)
"""vLLM takes symmetric memory at the most bytes, too, by `symm_mem.py` as of v0.24; rows of 0.19 are NCCL's there."""


def peer_ranks_fault(ranks: int, supported: tuple[int, ...]) -> str:
    """Why so many ranks have no kernel; empty where they have one."""
    if ranks in supported:
        return ""
    return f"the kernel is for {', '.join(map(str, supported[:-1]))} or {supported[-1]} GPUs, not {ranks}"


def _vllm(call: KernelCall) -> KernelChoice:
    device, ranks, nbytes = call.device, call.ranks, call.nbytes
    if fault := _off_host(call) or peer_ranks_fault(ranks, PEER_RANKS):
        return KernelChoice("nccl", fault)
    symmetric = call.multicast and device.capability in SYMMETRIC_MOST
    typed = (
        call.dtype == "bfloat16"
    )  # others have the limits of the kernel beside symmetric memory, but not that (`symm_mem.py`)
    most = min(PEER_MOST, PEER_BESIDE_SYMMETRIC[device.capability][ranks]) if symmetric else PEER_MOST
    if nbytes < most:
        return _peer(ranks, nbytes)
    if symmetric and typed:
        end = SYMMETRIC_MOST[device.capability][ranks]
        if nbytes < end or (nbytes == end and call.release >= SYMMETRIC_WITH_MOST):
            multimem = ranks in MULTIMEM_RANKS[device.capability]
            return KernelChoice("symmetric.multimem" if multimem else "symmetric.two_shot")
    return KernelChoice("nccl", f"above the kernels' {format_size(end if symmetric and typed else most)}")


def _peer(ranks: int, nbytes: int) -> KernelChoice:
    below = next((most for group, most in ONE_SHOT_BELOW.items() if ranks <= group), NEVER)
    return KernelChoice("peer.one_shot" if ranks == 2 or nbytes < below else "peer.two_shot")


def _off_host(call: KernelCall) -> str:
    if call.ranks <= call.device.tray:
        return ""
    return (
        f"the ranks stand on several hosts ({call.device.tray} GPUs each), where {call.framework} disables its kernel"
    )


def _off_domain(call: KernelCall) -> str:
    domain = call.device.domain
    return "" if call.ranks <= domain else f"NVLink joins {domain} GPUs, not {call.ranks}"


# -- SGLang ---------------------------------

PUSH_SINCE: Release = (0, 5, 12)
"""SGLang's kernels that push (`custom_all_reduce_v2.py`) are the default since pull request 24363 (release notes)."""

PUSH_RANKS = (2, 3, 4, 5, 6, 7, 8)
PUSH_MOST = 16 * MIB
PUSH_BELOW = {
    90: {2: (2048, ALWAYS), 3: (512, 512), 4: (384, 256), 5: (256, 256), 6: (192, 192), 7: (192, 192), 8: (160, 160)},
    100: {2: (4096, ALWAYS), 3: (4096, 4096), 4: (2048, 2048), 5: (2048, 2048), 6: (1024, 1024), 7: (896, 896),
          8: (720, 720)},
}  # fmt: skip
"""KiB up to which one shot is pushed, then pulled, by ranks; beyond, two shots pull (SGLang, `custom_all_reduce_v2.py`
as of 0.5.14, tuned on H200 and B200): Blackwell and later have the second row, all others the first."""


def _sglang(call: KernelCall) -> KernelChoice:
    if fault := _off_host(call):
        return KernelChoice("nccl", fault)
    if call.release < PUSH_SINCE:
        if fault := peer_ranks_fault(call.ranks, PEER_RANKS):
            return KernelChoice("nccl", fault)
        if call.nbytes > PEER_MOST:
            return KernelChoice("nccl", f"above the kernel's {format_size(PEER_MOST)}")
        return _peer(call.ranks, call.nbytes)
    if fault := peer_ranks_fault(call.ranks, PUSH_RANKS):
        return KernelChoice("nccl", fault)
    push, pull = PUSH_BELOW[100 if call.device.capability >= 100 else 90][call.ranks]
    if call.nbytes > PUSH_MOST:
        return KernelChoice("nccl", f"above the kernels' {format_size(PUSH_MOST)}")
    if call.nbytes <= push * KIB:
        return KernelChoice("push.one_shot")
    return KernelChoice("pull.one_shot" if call.nbytes <= pull * KIB else "pull.two_shot")


# -- TensorRT-LLM ---------------------------------

LAMPORT_RANKS = (2, 4, 8)
HIDDEN = 4096
"""Elements of a token that rules are taken for that count tokens (of TensorRT-LLM, and of FlashInfer to 0.4)."""

TABLE_UNTIL: Release = (1, 3, 0)
TWO_SHOT_FROM = {90: {2: ALWAYS, 4: 2 * MIB, 8: 512 * KIB}, 100: {2: ALWAYS, 4: 4 * MIB, 8: 2 * MIB}}
"""Bytes of 2-byte elements from which two shots are taken (TensorRT-LLM 1.3, `customAllReduceUtils.h`,
HeuristicThresholdLP), by 90 for Hopper and before, else 100."""

TABLE_TWO_SHOT_FROM = {90: {2: ALWAYS, 4: 64 * KIB, 8: 512 * KIB}, 100: {2: ALWAYS, 4: 4 * MIB, 8: 2 * MIB}}
"""The same of 1.1 and 1.2, whose AllReduceBestStrategyTable is looked up by tokens of 4096 elements, single entries
that differ from their neighbours left out."""

WORKSPACE = {2: 16_000_000, 4: 8_000_000, 8: 8_000_000}
"""Bytes above which NCCL runs (`customAllReduceUtils.h`, getMaxRequiredWorkspaceSize)."""

FIRST_MOST = 1 * MIB
"""Of 1.0, by its rows on A100: from 2 MiB on the times are NCCL's."""

ACROSS_ONE_SHOT = 512 * KIB
"""Bytes times ranks up to which one shot runs over multi-node NVLink (`allreduceOp.cpp`, kOneShotSizeThreshold)."""


def _tensorrt_llm(call: KernelCall) -> KernelChoice:
    ranks, nbytes = call.ranks, call.nbytes
    if fault := _off_domain(call):
        return KernelChoice("nccl", fault)
    if ranks > call.device.tray:
        if not call.multicast:
            return KernelChoice("nccl", "its kernels over multi-node NVLink multicast, which this machine does not")
        return KernelChoice("multicast.one_shot" if nbytes * ranks <= ACROSS_ONE_SHOT else "multicast.two_shot")
    if fault := peer_ranks_fault(ranks, LAMPORT_RANKS):
        return KernelChoice("nccl", fault)
    most = WORKSPACE[ranks] if call.release >= (1, 1, 0) else FIRST_MOST
    if nbytes > most:
        return KernelChoice("nccl", f"above the kernels' {format_size(most)}")
    by = TWO_SHOT_FROM if call.release >= TABLE_UNTIL else TABLE_TWO_SHOT_FROM
    two = nbytes >= by[100 if call.device.capability >= 100 else 90][ranks]
    return KernelChoice("lamport.two_shot" if two else "lamport.one_shot")


# -- FlashInfer ---------------------------------

AUTO_SINCE: Release = (0, 6, 0)
"""FlashInfer chooses between its kernels that multicast and those of TensorRT-LLM over IPC memory (`comm/allreduce.py`,
create_allreduce_fusion_workspace with the backend "auto"); before, its callers name the latter."""

PROBE_SINCE: Release = (0, 6, 16)
"""It takes those that multicast where all ranks can (all_ranks_support_mnnvl); before, everywhere."""

FLASHINFER_CAPABILITY = 90
"""The kernels over IPC memory are compiled for Hopper and later (`jit/comm.py`, gen_trtllm_comm_module); others do not
multicast."""

MULTICAST_RANKS = (2, 4, 8, 16, 32, 64)
"""Ranks that the kernels that multicast are compiled for (`trtllm_mnnvl_allreduce.cuh`)."""

MULTICAST_ONE_SHOT = 1 * MIB
"""Bytes times ranks up to which one shot multicasts (`comm/trtllm_mnnvl_ar.py`, MNNVL_ONE_SHOT_THRESHOLD)."""

MULTICAST_BUFFER = 2**32 - 1
"""Bytes of a buffer, of which two shots need twice the message, its tokens rounded up to one more for each rank
(MNNVLAllReduceFusionWorkspace)."""

IPC_ONE_SHOT = {2: 512 * MIB, 4: 64 * MIB, 8: 42 * MIB}
"""Bytes times ranks times two up to which one shot is taken over IPC memory (`comm/trtllm_ar.py`,
_use_oneshot_heuristics, tuned on B200); compiled for 16 ranks, too, of which the rule knows nothing."""

IPC_ONE_SHOT_TOKENS = 128
BY_BYTES_SINCE: Release = (0, 5, 0)
"""Before, one shot is taken up to so many tokens."""

IPC_ELEMENTS = 2**31 - 1
"""Elements that a call may have (`trtllm_allreduce_fusion.cuh` counts them in an int)."""


def _flashinfer(call: KernelCall) -> KernelChoice:
    """What its callers run where it has no kernel is taken to be NCCL: it has no way back itself."""
    if call.device.capability < FLASHINFER_CAPABILITY:
        return KernelChoice("nccl", f"its kernels are compiled for Hopper and later, not for {call.device.name}")
    if call.release >= AUTO_SINCE and (call.multicast or call.release < PROBE_SINCE):
        return _flashinfer_multicast(call)
    return _flashinfer_ipc(call)


def _flashinfer_multicast(call: KernelCall) -> KernelChoice:
    ranks, nbytes = call.ranks, call.nbytes
    if not call.multicast:
        return KernelChoice("nccl", "before 0.6.16 it takes kernels that multicast, which this machine does not")
    if fault := _off_domain(call) or peer_ranks_fault(ranks, MULTICAST_RANKS):
        return KernelChoice("nccl", fault)
    if nbytes * ranks <= MULTICAST_ONE_SHOT:
        return KernelChoice("multicast.one_shot")
    most = MULTICAST_BUFFER // 2 // (ranks * _token_bytes(call)) * ranks * _token_bytes(call)
    if nbytes > most:
        return KernelChoice("nccl", f"above the {format_size(most)} that its buffers may hold")
    return KernelChoice("multicast.two_shot")


def _flashinfer_ipc(call: KernelCall) -> KernelChoice:
    ranks, nbytes = call.ranks, call.nbytes
    if ranks > call.device.tray:
        return KernelChoice(
            "nccl", f"the ranks stand on several hosts ({call.device.tray} GPUs each), its memory on one"
        )
    if fault := peer_ranks_fault(ranks, LAMPORT_RANKS):
        return KernelChoice("nccl", fault)
    most = IPC_ELEMENTS * _token_bytes(call) // HIDDEN // 16 * 16
    if nbytes > most:
        return KernelChoice("nccl", f"above the {format_size(most)} that its kernels can count")
    by_bytes = call.release >= BY_BYTES_SINCE
    one_shot = IPC_ONE_SHOT[ranks] // ranks // 2 if by_bytes else IPC_ONE_SHOT_TOKENS * _token_bytes(call)
    return KernelChoice("lamport.one_shot" if nbytes <= one_shot else "lamport.two_shot")


def _token_bytes(call: KernelCall) -> int:
    return HIDDEN * (4 if call.dtype == "float32" else 2)


RULES: Mapping[Framework, Callable[[KernelCall], KernelChoice]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "tensorrt_llm": _tensorrt_llm,
    "flashinfer": _flashinfer,
}
