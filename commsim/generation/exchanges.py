"""Seconds of what the ranks of a replica exchange in one step: sums of tensor parallelism, tokens for experts."""

from __future__ import annotations

from commsim.generation.collectives import Collectives
from commsim.generation.layers import Layers
from commsim.generation.replica import Replica
from commsim.training.dispatch import (
    Dispatcher,
    ExpertExchange,
    RankLinks,
    combine_seconds,
    dispatch_seconds,
)

WIDE_BYTES = 2.0
"""Of an element that is summed."""


def reduce_time(r: Replica, layers: Layers, c: Collectives, tokens: float, rows: float) -> float:
    """All-reduces after attention and after the MLP, of the embedding, and gathering the logits of so many rows.

    Without attention dp all ranks have all tokens, and the sum after a layer of experts is one all-reduce, whether they
    are cut by tp or by ep.
    """
    h = r.model.hidden
    reduce_s = c.all_reduce(r.tp, tokens * h * WIDE_BYTES)
    times = layers.attending + layers.recurrent + layers.dense
    seconds = times * reduce_s
    if r.attention_dp == 1:
        seconds += layers.experts * c.all_reduce(r.moe_tp * r.moe_ep, tokens * h * WIDE_BYTES)
    return seconds * r.pp + reduce_s + c.all_gather(r.tp, rows * r.model.vocab * WIDE_BYTES)


def dispatch_time(r: Replica, layers: Layers, c: Collectives, tokens: float) -> float:
    """Sending tokens to experts and back where groups of attention dp have their own: gathered and scattered where
    experts are cut by moe_tp too, else by the dispatcher where it is the quicker one."""
    moe = r.model.moe
    if r.attention_dp == 1 or moe is None:
        return 0.0
    ranks, elements = r.attention_dp * r.tp, tokens * r.attention_dp * r.model.hidden
    gathered = c.all_gather(ranks, elements * r.formats.experts.input_bytes)
    gathered += c.reduce_scatter(ranks, elements * WIDE_BYTES)
    if r.moe_tp == 1 and r.engine.framework != "hf":
        gathered = min(gathered, _dispatcher_time(r, c, tokens))
    return layers.experts * r.pp * gathered


def _dispatcher_time(r: Replica, c: Collectives, tokens: float) -> float:
    moe = r.model.moe
    assert moe is not None
    ranks, inside = r.attention_dp * r.tp, min(r.inside, c.near or r.inside)
    exchange = ExpertExchange(
        tokens=tokens / r.tp, hidden=r.model.hidden, top_k=moe.top_k, experts=moe.experts, ranks=ranks, inside=inside
    )
    nvlink = r.gpu.generation == "blackwell" and inside == ranks
    d = Dispatcher("nvlink" if nvlink else "deepep_low_latency", dispatch_bytes=r.formats.experts.input_bytes)
    links = RankLinks.of(r.gpu, c.nic_bytes_per_s)
    return float(dispatch_seconds(d, exchange, links) + combine_seconds(d, exchange, links))
