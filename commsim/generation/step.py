"""Seconds of one step of an engine: a token of every sequence that decodes, and a chunk of prompts beside them."""

from __future__ import annotations

from dataclasses import dataclass, field

from commsim.generation.attention import decode_seconds, prompt_seconds, recurrent_seconds
from commsim.generation.batch import Batch, StepSeconds
from commsim.generation.collectives import Collectives, preset_collectives
from commsim.generation.elementwise import elementwise_seconds, kernels_of, sampling_seconds
from commsim.generation.experts import ExpertRows, expert_seconds, family, touched_experts
from commsim.generation.layers import Layers, logits_product, step_products
from commsim.generation.parameters import generation_values
from commsim.generation.products import product_time
from commsim.generation.replica import Replica
from commsim.generation.terms import Kernels, kernels
from commsim.training.compute import Values
from commsim.training.dispatch import Dispatcher, ExpertExchange, RankLinks, combine_seconds, dispatch_seconds

NIC_BYTES_PER_S = 50e9
"""One direction of a GPU's NIC of 400 Gb/s, where an exchange of experts leaves a domain of NVLink."""


@dataclass(eq=False)
class StepModel:
    """A replica with its collectives: what a step of any batch takes.

    >>> from commsim.training.accelerator import accelerator
    >>> from commsim.training.model import model
    >>> step = StepModel(Replica(model("llama-3-8b"), accelerator("H100")))
    >>> 5e-3 < step.seconds(Batch(sequences=8, cached=1024)).total_s < 15e-3
    True
    """

    replica: Replica
    collectives: Collectives | None = None  # None: of the shipped machine of such GPUs
    values: Values = field(default_factory=generation_values)
    kernels: Kernels = field(default_factory=kernels)

    def __post_init__(self) -> None:
        r = self.replica
        if self.collectives is None:
            self.collectives = preset_collectives(r.gpu, r.engine)
        self._layers = Layers(r)
        self._links = RankLinks.of(r.gpu, NIC_BYTES_PER_S)

    def seconds(self, batch: Batch) -> StepSeconds:
        """What the step takes, by cause. Groups of attention dp have equal shares of the batch."""
        r, v, layers = self.replica, self.values, self._layers
        share = 1.0 / r.attention_dp
        decoding = _at_least_one(batch.sequences * share)
        prompts = batch.prompt_tokens * share
        tokens = decoding + prompts
        rows = decoding + batch.prompt_sequences * share
        k, framework = self.kernels, r.engine.framework
        products = sum(
            p.count * product_time(p, r.gpu, k, framework) for p in step_products(r, layers, decoding, prompts)
        )
        products += product_time(logits_product(r, rows), r.gpu, k, framework)
        attention = decode_seconds(r, layers, decoding, batch.cached, k)
        attention += prompt_seconds(r, layers, batch, share, k)
        attention += recurrent_seconds(r, layers, decoding, prompts, v)
        parts = {
            "products": products,
            "attention": attention,
            "experts": self._experts(float(batch.tokens)),
            "collectives": self._collectives(tokens, rows),
            "dispatch": self._dispatch(tokens),
            "elementwise": elementwise_seconds(r, layers, tokens, v),
            "sampling": sampling_seconds(r, rows, v),
        }
        times = {name: s * (r.pp if name != "sampling" else 1) for name, s in parts.items()}
        return StepSeconds(**times, host=self._host(batch, sum(times.values())))

    def _experts(self, tokens: float) -> float:
        """Of all layers of experts; `tokens`: of the whole replica."""
        r, moe = self.replica, self.replica.model.moe
        if moe is None:
            return 0.0
        local = moe.experts / r.moe_ep
        rows = ExpertRows(
            tokens=tokens if r.attention_dp == 1 else tokens / r.attention_dp,
            rows=tokens * moe.top_k / r.moe_ep,
            touched=touched_experts(local, moe.experts, moe.top_k, tokens),
            hidden=r.model.hidden,
            inner=moe.expert_ffn / r.moe_tp,
            matrices=r.model.up_matrices,
        )
        kind = r.formats.experts
        of = family(r.engine.framework, r.gpu.generation, kind, attention_dp=r.attention_dp > 1)
        return self._layers.experts * expert_seconds(rows, kind, r.gpu, self.kernels, of)

    def _collectives(self, tokens: float, rows: float) -> float:
        """All-reduces after attention and after the MLP, of the embedding, and gathering the logits."""
        r, c, layers = self.replica, self.collectives, self._layers
        assert c is not None
        h, width = r.model.hidden, 2.0
        reduce_s = c.all_reduce(r.tp, tokens * h * width)
        seconds = (layers.attending + layers.recurrent) * reduce_s
        together = r.attention_dp == 1 and r.model.moe is not None  # tokens are on all ranks, sums are shared by all
        seconds += layers.dense * reduce_s
        if together:
            seconds += layers.experts * c.all_reduce(r.tp, tokens * h * width)
        seconds += c.all_reduce(r.tp, tokens * h * width) / r.pp
        return seconds + c.all_gather(r.tp, rows * r.model.vocab * width)

    def _dispatch(self, tokens: float) -> float:
        """Sending tokens to experts and back where groups of attention dp have their own: gathered and scattered
        where experts are cut by moe_tp too, else by the dispatcher."""
        r, c, layers, moe = self.replica, self.collectives, self._layers, self.replica.model.moe
        assert c is not None
        if r.attention_dp == 1 or moe is None:
            return 0.0
        ranks, all_bytes = r.attention_dp * r.tp, tokens * r.attention_dp * r.model.hidden
        gathered = c.all_gather(ranks, all_bytes * r.formats.experts.input_bytes) + c.reduce_scatter(
            ranks, all_bytes * 2.0
        )
        if r.moe_tp > 1 or r.engine.framework == "hf":
            return layers.experts * gathered
        exchange = ExpertExchange(
            tokens=tokens / r.tp, hidden=r.model.hidden, top_k=moe.top_k, experts=moe.experts, ranks=ranks,
            inside=r.inside, node_limit=0,
        )  # fmt: skip
        kind = "nvlink" if r.gpu.generation == "blackwell" and r.inside == ranks else "deepep_low_latency"
        d = Dispatcher(kind, dispatch_bytes=r.formats.experts.input_bytes)
        both = dispatch_seconds(d, exchange, self._links) + combine_seconds(d, exchange, self._links)
        return layers.experts * min(float(both), gathered)

    def _host(self, batch: Batch, gpu_s: float) -> float:
        """What the GPU waits for: the scheduler, and launches where no graph is replayed."""
        r, v, name = self.replica, self.values, self.replica.engine.framework
        seconds = v[f"host.step.{name}"] + v[f"host.sequence.{name}"] * (batch.sequences + batch.prompt_sequences)
        if batch.prompt_tokens or not r.engine.cuda_graph:
            launched = (kernels_of(r, self._layers) + 10.0 * self._layers.total) * r.pp
            seconds += max(launched * v[f"host.kernel.{name}"] - gpu_s, 0.0)
        return seconds


def _at_least_one(sequences: float) -> float:
    """Of a group's share: the fullest group has a whole sequence where there are fewer than groups."""
    return max(sequences, 1.0) if sequences > 0 else 0.0
