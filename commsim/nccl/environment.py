"""The NCCL_* variables, and one of libfabric's, that have their effect here, and the reading of their values.

Whether a variable is modelled is decided in this one place; any other NCCL_* variable of a job is reported as having
no effect (`unmodelled`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from commsim.collectives.semantics import NCCL_TESTS
from commsim.errors import ScenarioError

FUNCTIONS = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
"""The collectives with kernels of their own, whose algorithm the tuner chooses, in NCCL's order.

ncclFunc_t of src/include/nccl_common.h, 2.26.2.
"""

POINT_TO_POINT = tuple(name for name in NCCL_TESTS if name not in FUNCTIONS)
"""All others, which become sends and receives: also those that have calls of their own since 2.28."""

MODELLED_ENV: dict[str, str] = {
    "NCCL_ALGO": "algorithms that may be chosen",
    "NCCL_PROTO": "protocols that may be chosen; naming LL128 also allows it where NCCL would not",
    "NCCL_MIN_NCHANNELS": "least number of collective channels",
    "NCCL_MAX_NCHANNELS": "most collective channels",
    "NCCL_MIN_CTAS": "as NCCL_MIN_NCHANNELS",
    "NCCL_MAX_CTAS": "as NCCL_MAX_NCHANNELS",
    "NCCL_BUFFSIZE": "buffer of a Simple connection, and so its chunks",
    "NCCL_NTHREADS": "threads of a block for LL and Simple, and so when channels are taken away",
    "NCCL_NVLS_ENABLE": "reduction in the NVSwitch: 0 turns it off",
    "NCCL_NVLS_CHUNKSIZE": "chunk of NVLS, and the most of NVLSTree's",
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": "the most of NVLSTree's chunk",
    "NCCL_WIN_ENABLE": "with library.registered: 0 turns symmetric memory off",
    "NCCL_CUMEM_ENABLE": "with library.registered: 0 turns symmetric memory off",
    "NCCL_LOCAL_REGISTER": "with library.registered: 0 turns it off",
    "NCCL_SYM_KERNEL": "with library.registered: the one kernel on symmetric memory that may be chosen",
    "NCCL_SYM_CTAS": "with library.registered: thread blocks of a kernel on symmetric memory",
    "NCCL_SYM_TMA_ENABLE": "with library.registered: 1 allows kernels with Blackwell's bulk copies",
    "NCCL_SYM_GIN_KERNELS_ENABLE": "with library.registered: 0 turns off kernels over nodes",
    "NCCL_GIN_ENABLE": "with library.registered: 0 lets no GPU send over the network by itself",
    "NCCL_NUM_RMA_CTX": "with library.registered: 0 lets no proxy put blocks for copy engines over nodes",
    "NCCL_SYM_RS_GIN_CHUNK_SIZE": "with library.registered: bytes of a put of reduce_scatter over nodes",
    "NCCL_SYM_CE_THRESHOLD": "with library.registered: elements of a rank above which Blackwell's copy engines gather",
    "NCCL_CTA_POLICY": "with library.registered: EFFICIENCY takes NVLS if it needs fewer channels, ZERO copy engines",
    "NCCL_COLLNET_ENABLE": "reduction in the network (SHARP): 1 allows it",
    "NCCL_P2P_DISABLE": "1: GPUs of a node talk through host memory",
    "NCCL_P2P_LEVEL": "how far GPUs may be to write to each other's memory directly",
    "NCCL_PXN_DISABLE": "1: no NIC is reached through another GPU",
    "NCCL_P2P_PXN_LEVEL": "0: sends leave by the NIC of the sender, not of the receiver's place",
    "NCCL_P2P_NET_CHUNKSIZE": "chunk of a send to another node",
    "NCCL_CROSS_NIC": "whether a ring may leave a node by another NIC than it entered",
    "NCCL_TUNER_PLUGIN": "ofi, or a path to libnccl-ofi-tuner.so: what aws-ofi-nccl chooses on EC2's P5 and P6",
    "NCCL_NET_GDR_LEVEL": "how far a NIC may be for it to reach GPU memory directly",
    "NCCL_IB_DISABLE": "1: InfiniBand and RoCE are used as networks of sockets",
    "NCCL_NET": "Socket: so is any network",
    "FI_CXI_RX_MATCH_MODE": "software: the processor, not Slingshot's NIC, matches messages (libfabric's variable)",
    "FI_CXI_SAFE_DEVMEM_COPY_THRESHOLD": "with software matching: largest message of LL that needs no copy by CUDA",
}

OF_REGISTERED = tuple(name for name in MODELLED_ENV if "registered" in MODELLED_ENV[name])
"""Those without effect unless the buffers of the calls are registered."""

BUFFERS = ("NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE")
"""Variables that size the buffers of a connection."""

MEMORY_ENV: dict[str, str] = {
    "NCCL_LL_BUFFSIZE": "buffer of a connection for LL",
    "NCCL_LL128_BUFFSIZE": "buffer of a connection for LL128",
    "NCCL_P2P_NET_CHUNKSIZE": "chunk of the pool of sends between nodes",
    "NCCL_P2P_NVL_CHUNKSIZE": "chunk of that pool inside a node with NVLink",
    "NCCL_P2P_PCI_CHUNKSIZE": "chunk of that pool inside a node without",
    "NCCL_MIN_P2P_NCHANNELS": "least number of channels of sends",
    "NCCL_MAX_P2P_NCHANNELS": "most channels of sends",
    "NCCL_CUMEM_ENABLE": "whether NCCL maps memory: 0 or 1",
    "NCCL_RUNTIME_CONNECT": "whether algorithms connect at their first call: 0 or 1",
    "NCCL_WORK_FIFO_BYTES": "queue of work in the memory of the host, from 2.22",
    "NCCL_WORK_FIFO_DEPTH": "entries of that queue, up to 2.21",
}
"""Variables that count for the memory of a communicator alone, not for its times."""

PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Path types, nearest first (NCCL 2.30.7 src/include/graph.h)."""

THROUGH_HOST = ("ethernet", "tcpx")
"""Networks whose data pass the memory of the host, or are handed over by it, on every machine."""

ALGORITHM_NAMES = {
    "tree": "Tree",
    "ring": "Ring",
    "collnet_direct": "CollNetDirect",
    "collnet_chain": "CollNetChain",
    "nvls": "NVLS",
    "nvls_tree": "NVLSTree",
    "pat": "PAT",
}
"""Our names of the algorithms and NCCL's, in NCCL's order: the first of equal candidates wins."""

PROTOCOL_NAMES = ("LL", "LL128", "Simple")

_UNSET = "-2"
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,15}|[0-9]{1,18}")

FUNCTION_NAMES = tuple(name.replace("_", "") for name in FUNCTIONS)


def unmodelled(env: dict[str, str]) -> list[str]:
    """The NCCL_* variables of a job that have no effect here, sorted."""
    rest = (name for name in env if name.startswith("NCCL_") and name not in MODELLED_ENV)
    return sorted([*rest, *(["NCCL_NET"] if "NCCL_NET" in env and not _by_sockets(env) else [])])


def unheeded(env: dict[str, str]) -> Iterator[str]:
    """What to say of each variable that does not change times."""
    for name in unmodelled(env):
        if name in MEMORY_ENV:
            yield f"{name} has no effect on times, only on the memory of communicators"
        else:
            instead = ": name the file as library.graph" if name == "NCCL_GRAPH_FILE" else ""
            yield f"{name} is not modelled and has no effect{instead}"


def over_sockets(network: str, env: Mapping[str, str]) -> bool:
    """Whether a job's variables send through sockets what goes over a network between nodes.

    NCCL_IB_DISABLE=1 concerns InfiniBand and RoCE alone (src/transport/net_ib.cc, ncclIbInit); others have plugins.
    """
    return _by_sockets(env) or (network in ("infiniband", "roce") and whole(env, "NCCL_IB_DISABLE") == 1)


def _by_sockets(env: Mapping[str, str]) -> bool:
    return env.get("NCCL_NET", "").strip().lower() == "socket"


def whole(env: Mapping[str, str], *names: str) -> int | None:
    """The whole number that the first set variable of `names` holds; None where none is set.

    Numbers as NCCL reads them (src/misc/param.cc, strtoll): ``4194304``, ``0x400000``; -2 is its word for not set. Any
    other value is a ScenarioError.
    """
    for name in names:
        text = env.get(name, "").strip()
        if text in ("", _UNSET):
            continue
        if not _NUMBER.fullmatch(text):
            raise ScenarioError(f"{name}: found {text[:40]!r}, expected a whole number, 0 or more")
        return int(text, 16 if text[:2].lower() == "0x" else 10)
    return None


def path_level(env: Mapping[str, str], name: str, default: str) -> int:
    """The farthest path (index into `PATHS`) that a level variable allows, named or as NCCL's old numbers from 0 on."""
    text = env.get(name, "").strip() or default
    if text.upper() in PATHS:
        return PATHS.index(text.upper())
    if text.isdecimal():
        return PATHS.index(("LOC", "PIX", "PXB", "PHB", "SYS")[min(int(text), 4)])
    raise ScenarioError(f"{name}: found {text[:40]!r}, expected one of {', '.join(PATHS[:10])}")


@dataclass(frozen=True)
class Allowed:
    """What NCCL_ALGO and NCCL_PROTO allow for one collective; `forced_ll128` where a list names it."""

    algorithms: frozenset[str]
    protocols: frozenset[str]
    forced_ll128: bool = False

    @classmethod
    def from_env(cls, env: dict[str, str], collective: str) -> Allowed:
        """The rules that the environment of a job sets for one collective (either syntax of both variables).

        ``Ring,Tree``, ``^LL128`` and, from 2.24, ``ring;allreduce:tree,ring;allgather:^nvls``. An unknown name is a
        ScenarioError, as it ends the start of NCCL 2.24 and later.
        """
        algorithms = {name.lower(): ours for ours, name in ALGORITHM_NAMES.items()}
        algorithms["collnet"] = "collnet_direct"
        chosen = _allowed("NCCL_ALGO", env.get("NCCL_ALGO", ""), algorithms, collective)
        if whole(env, "NCCL_NVLS_ENABLE") == 0:
            chosen -= {"nvls", "nvls_tree"}
        text = env.get("NCCL_PROTO", "")
        protocols = _allowed("NCCL_PROTO", text, {p.lower(): p for p in PROTOCOL_NAMES}, collective)
        return cls(chosen, protocols, bool(text.strip()) and "LL128" in protocols)


def _allowed(variable: str, text: str, names: dict[str, str], collective: str) -> frozenset[str]:
    everything = frozenset(names.values())
    chosen = everything
    for part in text.lower().replace("_", "").split(";"):
        scope, colon, listed = part.partition(":")
        if not colon:
            scope, listed = "", part
        scope, listed = scope.strip(), listed.strip()
        if scope and scope not in FUNCTION_NAMES:
            raise ScenarioError(
                f"{variable}: unknown collective {scope[:40]!r}, expected one of {', '.join(FUNCTION_NAMES)}"
            )
        if not listed:
            continue
        inverted, listed = listed.startswith("^"), listed.removeprefix("^")
        wanted = set()
        for name in (n.strip() for n in listed.split(",") if n.strip()):
            if name not in names:
                raise ScenarioError(f"{variable}: unknown name {name[:40]!r}, expected some of {', '.join(names)}")
            wanted.add(names[name])
        if not scope or scope == collective.replace("_", ""):
            chosen = everything - wanted if inverted else frozenset(wanted)
    return chosen
