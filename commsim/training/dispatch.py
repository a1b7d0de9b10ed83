"""Seconds of sending tokens to their experts and back, by the dispatcher that does it.

These are NCCL's all_to_all, DeepEP's normal and low-latency kernels, HybridEP, and kernels over multi-node NVLink.

What it is not: the router, the permutation of tokens and the products of the experts are in `commsim.training.compute`.
Numbers of an exchange are numbers or arrays of one per step. `dispatch.yaml` has the parameters with their sources;
`validation/fit_dispatch.py` fits them to measured kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from commsim.training.columns import Number, where
from commsim.training.compute import Values
from commsim.training.experts_reached import distinct_nodes, distinct_ranks
from commsim.training.parameters import Parameter, parameters, shipped_values

PATH = Path(__file__).with_name("dispatch.yaml")

Kind = Literal["nccl", "deepep", "deepep_low_latency", "hybrid", "nvlink", "nvlink_two_sided"]
KINDS: tuple[Kind, ...] = ("nccl", "deepep", "deepep_low_latency", "hybrid", "nvlink", "nvlink_two_sided")
Phase = Literal["dispatch", "combine"]

BF16_BYTES = 2.0
FP8_BYTES = 1.0 + 4.0 / 128.0
"""An element of fp8 and its share of a 32-bit scale per 128 elements (DeepEP, `tests/test_low_latency.py`)."""

NVFP4_BYTES = 0.5 + 1.0 / 16.0
"""An element of 4 bits and its share of an 8-bit scale per 16 elements (NVIDIA, NVFP4)."""

DEFAULT_SMS: Mapping[Kind, int] = MappingProxyType({"nccl": 24, "deepep": 20, "hybrid": 16})
"""SMs that compute lacks meanwhile. DeepEP: `Buffer.num_sms`; HybridEP: Megatron-LM, `moe_hybridep_num_sms`; NCCL: see
`slowdown` of `parameters.yaml`; low-latency kernels hold none while messages are on their way."""

CORNER: Mapping[Kind, int] = MappingProxyType({"nvlink_two_sided": 1})
"""Exponents of the corner between what SMs, NVLink and NICs allow, as powers of two, 3 where none is named: how far
they work at the same time. Two-sided kernels gather into buffers before they send: 3 misses by 10 %, 1 by 2 %."""


MEASURED: Mapping[str, Mapping[str, tuple[int, ...]]] = MappingProxyType({
    "deepep": {"hopper": (1, 2, 4, 8), "blackwell": (1,)},
    "deepep_low_latency": {"hopper": (1, 2, 4, 8), "blackwell": (1,)},
    "nvlink": {"blackwell": (1,)},
    "nvlink_two_sided": {"blackwell": (1,)},
})  # fmt: skip
"""Nodes (NVLink domains) by GPU generation on which kernels were measured that the parameters are fitted to; of
`hybrid` none were. A test holds it to the shared data."""


@dataclass(frozen=True, eq=False)
class ExpertExchange:
    """What a group of expert-parallel ranks exchanges in one layer, and where its ranks are.

    `imbalance`: rows of the busiest rank over the mean. `even`: experts of a token are spread over the ranks on
    purpose, as benchmarks with forced balance do, not drawn.
    """

    tokens: Number  # of one rank
    hidden: Number
    top_k: Number
    experts: Number
    ranks: Number
    inside: Number  # ranks of the group in one NVLink domain
    node_limit: Number = 0  # nodes that a token may go to; 0: all
    imbalance: Number = 1.0
    even: Number = False

    @property
    def nodes(self) -> Number:
        """NVLink domains of the group."""
        return self.ranks / self.inside

    @cached_property
    def distinct_nodes(self) -> Number:
        """Nodes that a token goes to, its own counted where it has an expert there."""
        drawn = distinct_nodes(self.nodes, self.experts, self.top_k, self.node_limit)
        return where(self.even, np.minimum(self.top_k, self.nodes), drawn)

    @cached_property
    def distinct_ranks(self) -> Number:
        """Ranks that a token goes to, its own counted alike."""
        drawn = distinct_ranks(self.nodes, self.inside, self.experts, self.top_k, self.node_limit)
        return where(self.even, np.minimum(self.top_k, self.ranks), drawn)


@dataclass(frozen=True, eq=False)
class RankLinks:
    """What one rank has for it, of one direction; `latency`: that of its GPU generation over Hopper's."""

    nvlink_bytes_per_s: Number
    nic_bytes_per_s: Number
    sms: Number
    latency: Number = 1.0

    @staticmethod
    def of(accelerator: Any, nic_bytes_per_s: Number) -> RankLinks:
        """From the datasheet of an `Accelerator`, or a column of them; newer generations wait as Blackwell does."""
        v = dispatch_values()
        latency: Number = v["latency.blackwell"]
        for generation in ("hopper", "ampere", "ada", "volta"):
            known = v["latency.hopper"] if generation == "hopper" else v["latency.ampere"]
            latency = where(accelerator.generation == generation, known, latency)
        return RankLinks(accelerator.near_bytes_per_s, nic_bytes_per_s, accelerator.sms, latency)


@dataclass(frozen=True, eq=False)
class Dispatcher:
    """Which kernels send, the bytes of an element there and back, and the SMs that they get (0: the default).

    `kind` is one of `KINDS`, or a column of such names.
    """

    kind: Any = "deepep"
    dispatch_bytes: Number = FP8_BYTES
    combine_bytes: Number = BF16_BYTES
    sms: Number = 0

    def sms_taken(self, links: RankLinks) -> Number:
        """SMs that compute beside the exchange lacks: those given, or the default; NVLink kernels fill the GPU."""
        taken: Number = 0
        for kind in KINDS:
            of_kind = 0 if kind == "deepep_low_latency" else self.sms_of(kind, links)
            taken = where(self.kind == kind, of_kind, taken)
        return taken

    def sms_of(self, kind: Kind, links: RankLinks) -> Number:
        """SMs that kernels of a kind run on where it can be said beforehand."""
        return where(self.sms > 0, self.sms, DEFAULT_SMS.get(kind, links.sms))


def dispatch_seconds(d: Dispatcher, e: ExpertExchange, links: RankLinks, v: Values | None = None) -> Number:
    """Seconds from tokens on their ranks to tokens on the ranks of their experts; 0 for one rank.

    DeepSeek-V3's layer on four nodes of H100, 4096 tokens on each rank:

    >>> from commsim.training.accelerator import accelerator
    >>> links = RankLinks.of(accelerator("H100"), nic_bytes_per_s=50e9)
    >>> layer = ExpertExchange(tokens=4096, hidden=7168, top_k=8, experts=256, ranks=32, inside=8, node_limit=4)
    >>> round(float(dispatch_seconds(Dispatcher("deepep"), layer, links)) * 1e6)  # measured: 1861 us
    1861
    """
    return _seconds("dispatch", d, e, links, v)


def combine_seconds(d: Dispatcher, e: ExpertExchange, links: RankLinks, v: Values | None = None) -> Number:
    """Seconds of bringing the experts' results back and summing them; 0 for one rank."""
    return _seconds("combine", d, e, links, v)


def beyond_measured(kind: str, generation: str, nodes: int) -> str | None:
    """What a dispatcher's parameters were not measured on, as a sentence; None where they were, and of `nccl`, whose
    are those of other collectives."""
    on = MEASURED.get(kind, {})
    if kind == "nccl" or nodes in on.get(generation, ()):
        return None
    known = [f"{', '.join(map(str, counts))} node{'s' * (counts[-1] > 1)} of {name}" for name, counts in on.items()]
    here = f"{nodes} node{'s' * (nodes > 1)} of {generation} GPUs"
    return f"{kind} was not measured on {here}, but on {' and '.join(known) or 'none'}: its times are extrapolated"


# -- parameters ---------------------------------


def dispatch_parameters() -> tuple[Parameter, ...]:
    """All parameters of dispatchers, in the order of the file."""
    return parameters(PATH)


@lru_cache(maxsize=1)
def dispatch_values() -> Values:
    """By name, what ships, with the parameters of steps beside them."""
    return MappingProxyType({**shipped_values(), **{p.name: p.value for p in dispatch_parameters()}})


@dataclass(frozen=True)
class DispatchTerms:
    """What one phase of a dispatcher costs; whatever it has no parameter for costs nothing.

    Seconds, of an SM where work is done by SMs; rates in bytes/s of an SM; shares of links' rates.
    """

    launch: float = 0.0  # the same on every generation
    start: float = 0.0  # times the latency of the generation, as the next three
    peer: float = 0.0  # per further rank of the domain: its flag is awaited
    expert: float = 0.0  # per expert: its count is sent and awaited
    byte: float = 0.0  # per byte of one token: the way of the first, which nothing hides
    hop: float = 0.0  # per doubling of nodes: a barrier and counts across them
    message: float = 0.0  # per expert on another node: a message of its own
    token: float = 0.0  # SM-seconds of reading a token and its choice
    copy: float = 0.0  # SM-seconds of a copy to a rank, beside its bytes
    token_rate: float = np.inf  # of a token's own bytes, which a combine sums and writes
    copy_rate: float = np.inf  # of the bytes of copies to ranks
    node_rate: float = np.inf  # of the bytes of copies to nodes, where there are several
    across: float = 1.0  # work on a copy to a rank where there are several nodes, over that on one
    uneven: float = 0.0  # standard deviations by which the fullest queue exceeds the mean one
    nvlink: float = 1.0  # share of NVLink's rate that is reached
    nic: float = 1.0  # share of the NIC's

    @staticmethod
    def of(kind: Kind, phase: Phase, v: Values) -> DispatchTerms:
        """Those of a kind, by its parameters."""
        if kind == "nccl":
            return DispatchTerms(launch=v["alpha"], nvlink=v["nvlink"], nic=v["nic"])
        own = "deepep" if kind == "hybrid" else kind
        own_terms = {}
        for name in (f.name for f in fields(DispatchTerms)):
            for key in (f"{own}.{name}", f"{own}.{phase}.{name}"):  # of both phases, or of this one
                if key in v:
                    own_terms[name] = v[key]
        if kind == "hybrid":  # unmeasured: DeepEP's way and start, and SMs that never bind, as Megatron-LM says of 16
            kept = {name: own_terms[name] for name in ("launch", "start", "byte", "hop", "nic") if name in own_terms}
            return DispatchTerms(**kept, nvlink=v["nvlink.nvlink"])
        return DispatchTerms(**own_terms)


# -- time ---------------------------------


def _seconds(phase: Phase, d: Dispatcher, e: ExpertExchange, links: RankLinks, v: Values | None) -> Number:
    values = dispatch_values() if v is None else v
    token_bytes = e.hidden * (d.dispatch_bytes if phase == "dispatch" else d.combine_bytes)
    out: Number = 0.0
    for kind in KINDS:
        here = d.kind == kind
        if np.any(here):
            out = where(here, kind_seconds(kind, DispatchTerms.of(kind, phase, values), token_bytes, d, e, links), out)
    return where(e.ranks > 1, out, 0.0)


def kind_seconds(
    kind: Kind, terms: DispatchTerms, token_bytes: Number, d: Dispatcher, e: ExpertExchange, links: RankLinks
) -> Number:
    """Seconds of one phase by one kind of kernels: what starts it, and the slowest of SMs, NVLink and NIC."""
    several = e.nodes > 1
    first = terms.start + terms.peer * (e.inside - 1.0) + terms.expert * e.experts + terms.byte * token_bytes
    away = 1.0 - 1.0 / e.nodes
    start = terms.launch + first * links.latency + terms.hop * np.log2(e.nodes) + terms.message * e.experts * away
    near, far = sent_copies(kind, e)
    nvlink = e.tokens * near * token_bytes / (links.nvlink_bytes_per_s * terms.nvlink)
    nic = e.tokens * far * token_bytes / where(several, links.nic_bytes_per_s * terms.nic, 1.0)
    slowest = _corner(CORNER.get(kind, 3), _sm_seconds(kind, terms, token_bytes, d, e, links), nvlink, nic)
    return start + e.imbalance * slowest


def sent_copies(kind: Kind, e: ExpertExchange) -> tuple[Number, Number]:
    """Copies of a token that leave a rank over NVLink and over its NIC.

    DeepEP's normal kernels and HybridEP send one to each node, to the rank of the sender's number there, which forwards
    it over NVLink; NVLink kernels send one to each rank; the others one to each expert.
    """
    away = 1.0 - 1.0 / e.nodes
    if kind in {"deepep", "hybrid"}:
        return e.distinct_ranks * (1.0 - 1.0 / e.inside), e.distinct_nodes * away
    copies = e.top_k if kind in {"nccl", "deepep_low_latency"} else e.distinct_ranks
    return copies * (e.inside - 1.0) / e.ranks, copies * away


def _sm_seconds(
    kind: Kind, terms: DispatchTerms, token_bytes: Number, d: Dispatcher, e: ExpertExchange, links: RankLinks
) -> Number:
    """Seconds that the SMs of a phase need for its tokens; of the queues among them the fullest counts."""
    several = e.nodes > 1
    across = where(several, terms.across, 1.0)
    if kind == "deepep_low_latency":
        sms = low_latency_sms(e.experts, links.sms)
        each = terms.token + e.top_k * (terms.copy + token_bytes / terms.copy_rate) * across
        return np.maximum(e.tokens / sms, 1.0) * each  # a token is one SM's
    sms = d.sms_of(kind, links)
    tokens = np.maximum(2.0 * e.tokens / sms, 1.0)  # of a channel, which is two SMs
    copies = _fullest(e.distinct_ranks, e.ranks, tokens, terms.uneven)
    each = terms.token + token_bytes / terms.token_rate + copies * (terms.copy + token_bytes / terms.copy_rate) * across
    to_nodes = where(several, _fullest(e.distinct_nodes, e.nodes, tokens, terms.uneven), 0.0)
    return e.tokens * (each + to_nodes * token_bytes / terms.node_rate) / sms


def _fullest(distinct: Number, places: Number, tokens: Number, uneven: float) -> Number:
    """Copies of a token, `distinct` on average to so many places, as the fullest queue of a channel has them.

    A channel has a queue to each place. Each of its t tokens goes there by the chance p = distinct / places, so p t
    copies do, with a relative standard deviation of sqrt((1 - p) / (p t)); none has more than t.
    """
    chance = np.minimum(distinct / places, 1.0)
    return np.minimum(distinct * (1.0 + uneven * np.sqrt((1.0 - chance) / (chance * tokens))), places)


def low_latency_sms(experts: Number, sms: Number) -> Number:
    """SMs that DeepEP's low-latency kernels run on: one for a group of experts (`csrc/kernels/internode_ll.cu`)."""
    return np.ceil(experts / np.ceil(experts / sms))


def _corner(doublings: int, *seconds: Number) -> Number:
    """The largest of three durations with a soft corner, (a^n + b^n + c^n)^(1/n) with n = 2^doublings."""
    most = np.maximum(np.maximum(seconds[0], seconds[1]), seconds[2])
    scale = where(most > 0, most, 1.0)
    total: Number = 0.0
    for s in seconds:
        power = s / scale
        for _ in range(doublings):  # faster than a power of an array
            power = power * power
        total = total + power
    for _ in range(doublings):
        total = np.sqrt(total)
    return scale * total
