"""What a step sends: every collective call of one rank, by axis, with exact bytes.

What it is not: it says nothing about time or overlap. Sizes are those of nccl-tests: for all_gather and
reduce_scatter the whole array.

Per rank and step with N ranks and m accumulated micro-batches, in units of (N-1)/N, with the bytes of all parameters
(Φp) and gradients (Φg) of the rank in their own types: DDP, which reduces once a step, 2Φg; ZeRO-1 Φg + Φp; ZeRO-2
mΦg + Φp; ZeRO-3 and FSDP m(2Φp + Φg) (Rajbhandari et al. 2020, section 7; Zhao et al. 2023, section 3.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["parameter_server", "ddp", "zero1", "zero2", "zero3"]
ZERO: tuple[Scheme, ...] = ("ddp", "zero1", "zero2", "zero3")
"""By ZeRO stage."""

_FACTOR = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


@dataclass(frozen=True)
class AxisCalls:
    """``count`` calls of one rank: a collective of ``nbytes`` over ``ranks`` ranks of an axis.

    ``phase``: forward or backward for what belongs to a pass, step for the rest.
    """

    axis: str
    collective: str
    nbytes: float
    ranks: int
    count: float = 1.0
    phase: Literal["forward", "backward", "step"] = "step"

    @property
    def sent_bytes(self) -> float:
        """Bytes that the rank sends in all calls, by the bandwidth-optimal algorithm; a broadcast's root sends all."""
        if self.ranks == 1:
            return 0.0
        if self.collective in _FACTOR:
            return self.count * self.nbytes * _FACTOR[self.collective] * (self.ranks - 1) / self.ranks
        return self.count * self.nbytes


def sent_bytes(calls: Iterable[AxisCalls]) -> float:
    """Bytes that a rank sends in all calls."""
    return sum(call.sent_bytes for call in calls)


# -- data parallel ---------------------------------


def data_parallel(
    scheme: Scheme,
    parameter_bytes: float,
    gradient_bytes: float,
    ranks: int,
    micro_batches: int = 1,
) -> tuple[AxisCalls, ...]:
    """The gradient and parameter traffic of one rank per step; Φp and Φg are those of the rank before sharding.

    The parameter server's worker sends Φg and is sent Φp; the server, one rank, carries that N times, see
    `server_bytes`.
    """
    if ranks == 1:
        return ()
    m = float(micro_batches)

    def calls(**counts: tuple[float, float]) -> tuple[AxisCalls, ...]:
        return tuple(AxisCalls("dp", name, nbytes, ranks, count) for name, (nbytes, count) in counts.items() if count)

    if scheme == "parameter_server":
        return (AxisCalls("dp", "send_recv", gradient_bytes, ranks), AxisCalls("dp", "receive", parameter_bytes, ranks))
    if scheme == "ddp":
        return calls(all_reduce=(gradient_bytes, 1.0))
    if scheme == "zero1":
        return calls(reduce_scatter=(gradient_bytes, 1.0), all_gather=(parameter_bytes, 1.0))
    if scheme == "zero2":
        return calls(reduce_scatter=(gradient_bytes, m), all_gather=(parameter_bytes, 1.0))
    return calls(all_gather=(parameter_bytes, 2.0 * m), reduce_scatter=(gradient_bytes, m))


def hybrid_shard(
    scheme: Scheme,
    parameter_bytes: float,
    gradient_bytes: float,
    shard: int,
    replicas: int,
    micro_batches: int = 1,
) -> tuple[AxisCalls, ...]:
    """HSDP: ZeRO inside groups of ``shard`` ranks, and an all_reduce of each shard over the groups, once per step.

    Under ZeRO-2 whenever gradients are reduced (torch's FSDP does unless `set_requires_all_reduce` puts it off).
    """
    inside = data_parallel(scheme, parameter_bytes, gradient_bytes, shard, micro_batches)
    if replicas == 1 or scheme == "ddp":
        return inside
    count = micro_batches if scheme == "zero2" else 1
    return (*inside, AxisCalls("dp", "all_reduce", gradient_bytes / shard, replicas, float(count)))


def server_bytes(parameter_bytes: float, gradient_bytes: float, workers: int) -> tuple[float, float]:
    """(received, sent) bytes of the one parameter server per step: all gradients in, all parameters out."""
    return workers * gradient_bytes, workers * parameter_bytes


def refuse_sharded_gradients(zero_stage: int, pp: int, framework: str) -> str | None:
    """Why a framework cannot run ZeRO-2 or 3 with a pipeline; None where it can.

    DeepSpeed's pipeline engine asserts ZeRO below stage 2 (deepspeed/runtime/pipe/engine.py): gradients are reduced
    once per step, so they cannot be sharded in between. FSDP2 keeps or reduces them per micro-batch.
    """
    if pp > 1 and zero_stage >= 2 and framework == "deepspeed":
        return (
            f"found zero_stage={zero_stage} with pp={pp} and framework deepspeed, whose pipeline needs zero_stage 0 "
            "or 1; expected framework fsdp2 or megatron, or pp=1"
        )
    return None


# -- activations: `passes` micro-batches through a layer ---------------------------------


def _in_passes(axis: str, ranks: int, *rows: tuple[str, float, float, float]) -> tuple[AxisCalls, ...]:
    """Calls over an axis, from rows of collective, bytes, and how often it is called forward and backward."""
    phases: tuple[Literal["forward", "backward"], ...] = ("forward", "backward")
    return tuple(
        AxisCalls(axis, name, nbytes, ranks, count, phase)
        for name, nbytes, *counts in rows
        for phase, count in zip(phases, counts, strict=True)
        if ranks > 1 and count
    )


def tensor_parallel(
    passes: float, activation_bytes: float, tp: int, *, sequence_parallel: bool, recompute: bool, early: bool = False
) -> tuple[AxisCalls, ...]:
    """TP traffic of transformer layers (Shoeybi et al. 2019; sequence parallel: Korthikanti et al. 2022).

    ``activation_bytes``: of one micro-batch's hidden states before tp cuts them. Two all_reduce forward and two
    backward per layer; with sequence parallelism an all_gather and a reduce_scatter in place of each, and backward
    the two inputs gathered once more for the weights' gradients. ``recompute``: the forward's again; ``early``: but
    for its last sum (`Step.ends_early`).
    """
    n, again = 2.0 * passes, 2 if recompute else 1
    sums = n * again - passes * early
    if not sequence_parallel:
        return _in_passes("tp", tp, ("all_reduce", activation_bytes, n, sums))
    gathers = ("all_gather", activation_bytes, n, n * (again + 1))
    return _in_passes("tp", tp, gathers, ("reduce_scatter", activation_bytes, n, sums))


def adapter_parallel(
    passes: float, element_bytes: float, calls: Iterable[tuple[str, float, int, int]], tp: int, *, recompute: bool
) -> tuple[AxisCalls, ...]:
    """What LoRA's matrices exchange over tp; ``calls``: (collective, elements per token, times forward, backward) of a
    layer; ``element_bytes``: of one element of all tokens. ``recompute``: the forward's again."""
    return tuple(
        call
        for name, elements, forward, back in calls
        for call in _in_passes(
            "tp", tp, (name, element_bytes * elements, passes * forward, passes * (back + recompute * forward))
        )
    )


def vocabulary_parallel(
    activation_bytes: float, tokens: float, tp: int, *, embeds: bool, outputs: bool
) -> tuple[AxisCalls, ...]:
    """Embedding rows and output columns over tp, of one micro-batch: one sum forward, one backward, and three numbers
    per token of loss."""
    sums = ("all_reduce", activation_bytes, 1.0 * embeds, 1.0 * outputs)
    return _in_passes("tp", tp, sums, ("all_reduce", 4.0 * tokens, 3.0 * outputs, 0.0))


def context_parallel(
    kind: str,
    passes: float,
    q_bytes: float,
    kv_bytes: float,
    cp: int,
    *,
    recompute: bool = False,
) -> tuple[AxisCalls, ...]:
    """CP traffic; ``q_bytes`` and ``kv_bytes`` are a rank's own queries, and its keys and values together.

    Ring attention passes keys and values on cp - 1 times forward, and backward those and their gradients (Liu et al.
    2023); all_gather collects them once each way and scatters the gradients (Llama 3, section 3.3.2); Ulysses
    exchanges heads for tokens before and after attention (Jacobs et al. 2023).
    """
    n, again = float(passes), 1 if recompute else 0
    if kind == "ring":
        return _in_passes("cp", cp, ("send_recv", kv_bytes, (cp - 1) * n, (cp - 1) * n * (2 + again)))
    if kind == "all_gather":
        gathers = ("all_gather", cp * kv_bytes, n, n * (1 + again))
        return _in_passes("cp", cp, gathers, ("reduce_scatter", cp * kv_bytes, 0.0, n))
    # Queries, keys and values there, the result (as wide as the queries) back; the gradients the other way.
    return _in_passes("cp", cp, ("all_to_all", 2 * q_bytes + kv_bytes, n, n * (1 + again)))


def expert_parallel(
    passes: float, routed_bytes: float, ep: int, etp: int, *, recompute: bool = False, early: bool = False
) -> tuple[AxisCalls, ...]:
    """Dispatch and combine: the copies of a rank's tokens go to their experts and come back, forward and backward.

    ``routed_bytes``: of these copies. With etp > 1 the ranks of an expert gather its tokens and sum. ``recompute``: the
    forward's again; ``early``: but for the way back (`Step.ends_early`).
    """
    n, back = float(passes), float(passes * (2 if recompute else 1))
    gathered = routed_bytes * etp
    home = back - n * early
    exchanged = _in_passes("ep", ep, ("all_to_all", routed_bytes, 2 * n, back + home))
    return exchanged + _in_passes("etp", etp, ("all_gather", gathered, n, back), ("reduce_scatter", gathered, n, home))
