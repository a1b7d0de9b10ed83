"""What NCCL makes of buffers that the ranks of a communicator registered with it (``-R`` of nccl-tests).

``buffer`` (ncclCommRegister, ``-R 1``): NVLS works on the arrays of the call, without copies into its buffers and out
of them, on fewer channels (`nvls_channels`). ``window`` (ncclCommWindowRegister, ``-R 2``, from 2.27): kernels on
symmetric memory (`commsim.nccl.symmetric`), from 2.28 on also copies by copy engines; where NCCL has neither, a window
is a registered buffer. Rings and trees between GPUs of a node write a registered array straight at its place, which
changes no time here: published runs gain nothing from it (NVIDIA/nccl issue 1821).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from commsim.collectives.semantics import DIVIDED, ITEM_BYTES, RING_PASSES, ROOTED
from commsim.nccl.channels import shrink
from commsim.nccl.environment import whole
from commsim.nccl.operation import Operation, passed_over
from commsim.nccl.protocols import PROTOCOLS, heads
from commsim.nccl.symmetric import COLLECTIVES, Domain, domain_of, unsupported, why_not
from commsim.nccl.symmetric_choice import SymmetricChoice, pick
from commsim.nccl.system import System
from commsim.nccl.version import Version, format_version
from commsim.topology.graph import Topology
from commsim.units import GIB

REGISTERED = ("none", "buffer", "window")

POLICY = "NCCL_CTA_POLICY"

COPY_ENGINES: Version = (2, 28, 0)
"""From here on copy engines move the data of some calls (src/ce_coll.cc)."""

_COPIED = DIVIDED - {"reduce_scatter"}
"""Collectives whose calls copy engines can do, where a program does not build them of sends and receives."""

_COPIES_UNASKED: Version = (2, 29, 0)
"""From here on Blackwell's large all_gathers are copied so whatever the policy (src/enqueue.cc, taskAppend)."""

_COPIES_OVER_NODES: Version = (2, 30, 7)
"""From here on over several nodes too, of all_gather and all_to_all, where the policy asks for it."""

_COPY_ELEMENTS = 8 << 20
"""Elements of a rank above which (NCCL_SYM_CE_THRESHOLD)."""

MEASURED_TO: dict[tuple[str, str], int] = {
    ("hopper", "all_reduce"): int(4 * GIB),
    ("hopper", "all_gather"): 128 << 20,
    ("hopper", "reduce_scatter"): 32 << 20,
    ("blackwell", "all_reduce"): int(8 * GIB),
}
"""Largest size with a published time of kernels on symmetric memory, by generation of the GPUs and collective
(validation/registered)."""

_NVLS_SINCE: Version = (2, 19, 0)
_BY_HEADS: Version = (2, 27, 0)
_MNNVL_RANKS = 8
"""A domain of more GPUs with NVLS is of several hosts, where NCCL registers no buffers for it (src/init.cc)."""


@dataclass(frozen=True)
class Instead:
    """What runs in place of the tuner's choice: the algorithm, and which of its kernels, as a table shows them."""

    algorithm: str  # symmetric | copy_engine
    name: str
    channels: int
    choice: SymmetricChoice | None = None


@dataclass(frozen=True)
class Registration:
    """The registered buffers of a communicator: `kind` is one of `REGISTERED`."""

    kind: str
    system: System
    domain: Domain
    version: Version
    env: Mapping[str, str]
    operation: Operation
    own_process: bool  # every GPU is driven by a process of its own

    def instead(self, collective: str, nbytes: int) -> Instead | None:
        """What runs in place of the tuner's choice for a call of `nbytes` (the nccl-tests size)."""
        if self.kind != "window" or self.system.ranks == 1 or nbytes == 0:
            return None
        if self._copied(collective, nbytes):
            return Instead("copy_engine", "cudaMemcpy", 0)
        if self._against(collective):
            return None
        nic = self.domain.nic
        choice = pick(self.system, self.version, self.env, collective, nbytes, self.operation, nic)
        return None if choice is None else Instead("symmetric", choice.kernel.short, choice.blocks, choice)

    def _against(self, collective: str) -> str:
        """Why no kernel on symmetric memory runs the collective; blank where one does."""
        return why_not(self.system, self.domain, self.version, self.env, collective, self.operation)

    def _copied(self, collective: str, nbytes: int) -> bool:
        """Whether copy engines do a call (ncclCeAvailable)."""
        if collective not in _COPIED or self.version < COPY_ENGINES:
            return False
        if self.system.nodes > 1:
            return policy(self.env) == "zero" and self._copied_over_nodes(collective)
        if why_not(self.system, self.domain, self.version, {**self.env, "NCCL_SYM_KERNEL": ""}, "all_gather", _ANY):
            return False
        if policy(self.env) == "zero":
            return True
        each = nbytes // self.system.ranks // ITEM_BYTES[self.operation.dtype]
        threshold = whole(self.env, "NCCL_SYM_CE_THRESHOLD")
        many = each > (_COPY_ELEMENTS if threshold is None else threshold)
        new = self.version >= _COPIES_UNASKED and self.system.sm >= 100
        return collective == "all_gather" and new and many and self.domain.nvlink

    def _copied_over_nodes(self, collective: str) -> bool:
        """Whether copy engines and a proxy do a call over nodes (ncclHierCeAvailable)."""
        if collective not in _COPIED - ROOTED or self.version < _COPIES_OVER_NODES:
            return False
        contexts = whole(self.env, "NCCL_NUM_RMA_CTX")
        return self.domain.peers and not self.domain.no_gin and contexts != 0 and not unsupported(self.env)

    @property
    def by_nvls(self) -> bool:
        """Whether NVLS works on registered buffers here (nvlsRegSupport of src/init.cc)."""
        if self.kind == "none" or self.version < _NVLS_SINCE or not self.own_process or self._scales:
            return False
        return whole(self.env, "NCCL_LOCAL_REGISTER") != 0 and self.system.ranks_per_node <= _MNNVL_RANKS

    @property
    def _scales(self) -> bool:
        return self.operation.on_device == "PreMulSum"

    def nvls_channels(self, collective: str) -> int:
        """Channels of NVLS and NVLSTree on registered buffers (src/transport/nvls.cc, ncclNvlsRegResourcesQuery).

        From 2.27 on as many as keep the same number of heads busy; before (src/register/coll_reg.cc) whatever there
        are, and to 2.24 whatever the GPU.
        """
        new = self.system.sm >= 100 and self.version >= (2, 25, 0)
        if self.system.nodes > 1:
            channels = 7 if new and (collective == "all_reduce" or self.version < _BY_HEADS) else 6
        elif collective == "reduce_scatter":
            channels = 6 if new else 5
        else:
            channels = 8 if new and (collective == "all_reduce" or self.version < _BY_HEADS) else 4
        if self.version >= _BY_HEADS:
            channels = -(-channels * 8 // max(1, heads(self.system)))
        most, least = whole(self.env, "NCCL_MAX_CTAS"), whole(self.env, "NCCL_MIN_CTAS")
        return max(least or 1, min(most or channels, channels))

    def prefers_nvls(self, collective: str, nbytes: int, chosen: tuple[str, str]) -> bool:
        """Whether NCCL_CTA_POLICY=EFFICIENCY overrules the choice with NVLS, which needs fewer channels here.

        For all_gather and reduce_scatter of one node (src/enqueue.cc, ncclGetAlgoInfo).
        """
        if policy(self.env) != "efficiency" or self.version < _BY_HEADS or not self.by_nvls:
            return False
        if collective not in RING_PASSES or self.system.nvls is None or self.system.nodes > 1:
            return False
        if any(self.env.get(name) for name in ("NCCL_ALGO", "NCCL_PROTO")) or whole(self.env, "NCCL_NVLS_ENABLE") == 0:
            return False
        algorithm, protocol = chosen
        limit = self.system.coll_channels
        used, _ = shrink(limit, nbytes, algorithm, PROTOCOLS[protocol], self.system.ranks)
        return self.nvls_channels(collective) <= used

    def notes(self, collective: str) -> list[str]:
        """What the user should know of a setting that has no effect on a collective, or not the one it asks for."""
        notes = [self._policy_note()]
        if self.kind != "none":
            against = "" if self.kind == "buffer" or self._copied(collective, 1 << 62) else self._against(collective)
            plain = self._no_nvls(collective)
            if against:
                rest = (
                    f"and as registered buffers they change nothing: {plain}"
                    if plain
                    else "as registered buffers they change the sizes that NVLS runs, and no others"
                )
                notes.append(
                    f"library.registered: window has no kernels of its own for {collective}: {against}; {rest}"
                )
            elif self.kind == "buffer" and plain:
                notes.append(f"library.registered: buffer has no effect on {collective}: {plain}")
        return [note for note in notes if note]

    def _no_nvls(self, collective: str) -> str:
        """Why registered buffers change no time of a collective; blank where NVLS may work on them."""
        system = self.system
        if self.version < _NVLS_SINCE:
            return f"NCCL {format_version(self.version)} uses them for the network alone"
        if collective not in COLLECTIVES or system.nvls is None or whole(self.env, "NCCL_NVLS_ENABLE") == 0:
            return "NCCL writes straight into them, which published runs gain nothing from"
        across = "nvls_tree" if system.nodes > 1 else "nvls"
        if reason := passed_over(system, collective, across, self.version, self.operation):
            return f"NVLS does not run it, for {reason}"
        if system.nodes > 1 and collective in RING_PASSES:
            return "over nodes rings run it, which write straight into them"
        if not self.own_process:
            return "NVLS takes them where each GPU has a process of its own"
        if self._scales:
            return f"NVLS takes none of {self.operation.one}"
        if system.ranks_per_node > _MNNVL_RANKS:
            return "NVLS takes none where several hosts share an NVLink domain"
        return "" if self.by_nvls else "NCCL_LOCAL_REGISTER=0 turns it off"

    def _policy_note(self) -> str:
        asked = policy(self.env)
        if asked == "zero" and self.kind != "none" and (self.kind != "window" or self.version < COPY_ENGINES):
            return f"{POLICY}: ZERO has no effect without library.registered: window and NCCL 2.28 or later"
        if asked == "efficiency" and self.kind != "none" and self.version < _BY_HEADS:
            return f"{POLICY}: EFFICIENCY has no effect before NCCL 2.27"
        return ""


def registration_of(
    kind: str,
    topology: Topology,
    system: System,
    version: Version,
    env: Mapping[str, str],
    operation: Operation,
    launch: str,
) -> Registration:
    """The registered buffers (`REGISTERED`) of a job's calls, on nodes as in `topology`."""
    domain = Domain(peers=False, nvlink=False)
    if kind == "window":
        domain = domain_of(topology, version, env)
    own_process = launch == "process_per_gpu" or topology.ranks_per_node == 1
    return Registration(kind, system, domain, version, env, operation, own_process)


_ANY = Operation()


def policy(env: Mapping[str, str]) -> str:
    """The policy that NCCL_CTA_POLICY asks for: default, efficiency or zero, which goes before efficiency."""
    names = ("default", "efficiency", "zero")
    words = [w.strip().lower() for w in env.get(POLICY, "").split("|")]
    asked = [
        int(w) if w.isdecimal() and int(w) < len(names) else names.index(w) for w in words if w in (*names, *"012")
    ]
    return names[max(asked, default=0)]
