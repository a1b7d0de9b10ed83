"""Seconds of one step of an engine: a token of every sequence that decodes, and a chunk of prompts beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from commsim.generation.attention import decode_seconds, prompt_seconds, recurrent_seconds
from commsim.generation.batch import Batch, StepSeconds
from commsim.generation.collectives import Collectives, preset_collectives
from commsim.generation.elementwise import elementwise_bytes, sampling_bytes, small_kernels
from commsim.generation.exchanges import dispatch_time, reduce_time
from commsim.generation.experts import ExpertRows, busiest_rank, expert_seconds, family, touched_experts
from commsim.generation.layers import Layers, logits_product, step_products
from commsim.generation.parameters import generation_values
from commsim.generation.products import product_time
from commsim.generation.replica import Replica
from commsim.generation.terms import NOTHING, Kernels, KernelSeconds, kernels
from commsim.training.compute import Values

GROUPED_KERNELS = 8.0
"""Launches of a layer beside its small kernels where no graph is replayed: products and their casts, attention, the
grouped products of experts and their permutations, all-reduces."""


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
    _known: dict[tuple[Batch, float | None], dict[str, KernelSeconds]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        r = self.replica
        self.communication = self.collectives or preset_collectives(r.gpu, r.engine)
        self.layers = Layers(r)

    def with_values(self, values: Values) -> StepModel:
        """The same replica by other parameters; what kernels take is computed once for both."""
        return replace(self, values=values)

    def seconds(self, batch: Batch) -> StepSeconds:
        """What the step takes, by cause. Groups of attention dp have equal shares of what decodes; of prompts the
        busiest has its share of those that read, for which the others wait."""
        v, layers = self.values, self.layers
        graph = self.replica.engine.cuda_graph and not batch.prompt_tokens
        launch = v["graph.launch"] if graph else 1.0
        times = {name: s.work + launch * s.launch for name, s in self._kernels(batch).items()}
        bandwidth = v["elementwise.memory"] * self.replica.gpu.memory_bytes_per_s
        times["elementwise"] = times["elementwise"] / bandwidth + v["elementwise.kernel"] * small_kernels(
            self.replica, layers
        )
        times["sampling"] /= bandwidth
        return StepSeconds(**times, host=self._host(batch, sum(times.values())))

    def _kernels(self, batch: Batch) -> dict[str, KernelSeconds]:
        """Seconds of the kernels by cause, and bytes of the small ones; cached, since parameters of the host change
        nothing about them."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        key = (batch, self.values["routing.spread"])
        if (batch, None) not in self._known:
            self._known[batch, None] = self._computed(batch)
        if key not in self._known:
            experts = self._experts(float(batch.tokens)) * self.replica.pp
            self._known[key] = {**self._known[batch, None], "experts": experts}
        return self._known[key]

    def _computed(self, batch: Batch) -> dict[str, KernelSeconds]:
        r, v, layers, k = self.replica, self.values, self.layers, self.kernels
        framework, share = r.engine.framework, 1.0 / r.attention_dp
        decoding = _at_least_one(batch.sequences * share)
        reading = 1.0 / batch.prompt_groups if batch.prompt_groups else share
        prompts = batch.prompt_tokens * reading
        tokens = decoding + prompts
        rows = decoding + batch.prompt_sequences * reading
        products = product_time(logits_product(r, rows), r.gpu, k, framework)
        for p in step_products(r, layers, decoding, prompts):
            products += product_time(p, r.gpu, k, framework) * (p.count * r.pp)
        attention = decode_seconds(r, layers, decoding, batch.cached, k)
        attention += prompt_seconds(r, layers, batch, reading, k)
        attention += KernelSeconds(recurrent_seconds(r, layers, decoding, prompts, v), 0.0)
        return {
            "products": products,
            "attention": attention * r.pp,
            "collectives": KernelSeconds(reduce_time(r, layers, self.communication, tokens, rows), 0.0),
            "dispatch": KernelSeconds(dispatch_time(r, layers, self.communication, tokens), 0.0),
            "elementwise": KernelSeconds(elementwise_bytes(r, layers, tokens) * r.pp, 0.0),
            "sampling": KernelSeconds(sampling_bytes(r, rows), 0.0),
        }

    def _experts(self, tokens: float) -> KernelSeconds:
        """Of all layers of experts of a stage; `tokens`: of the whole replica."""
        r, moe, spread = self.replica, self.replica.model.moe, self.values["routing.spread"]
        if moe is None:
            return NOTHING
        local = moe.experts / r.moe_ep
        rows = ExpertRows(
            tokens=tokens / r.attention_dp,
            rows=tokens * moe.top_k / r.moe_ep * busiest_rank(local, r.moe_ep, spread),
            touched=touched_experts(local, moe.experts, moe.top_k, tokens, spread),
            hidden=r.model.hidden,
            inner=moe.expert_ffn / r.moe_tp,
            matrices=r.model.up_matrices,
        )
        kind = r.formats.experts
        of = family(r.engine.framework, r.gpu.generation, kind, attention_dp=r.attention_dp > 1)
        return expert_seconds(rows, kind, r.gpu, self.kernels, of) * self.layers.experts

    def _host(self, batch: Batch, gpu_s: float) -> float:
        """What the GPU waits for: the scheduler, new requests, and launches where no graph is replayed."""
        r, v, name = self.replica, self.values, self.replica.engine.framework
        each = 1.0 / r.attention_dp  # groups have schedulers of their own
        seconds = v[f"host.step.{name}"] + v[f"host.sequence.{name}"] * batch.sequences * each
        seconds += v[f"host.request.{name}"] * batch.prompt_sequences * each
        if batch.prompt_tokens or not r.engine.cuda_graph:
            launched = (small_kernels(r, self.layers) + GROUPED_KERNELS * self.layers.total) * r.pp
            seconds += max(launched * v[f"host.kernel.{name}"] - gpu_s, 0.0)
        return seconds


MOST_KNOWN = 4096
"""Batches that are remembered."""


def _at_least_one(sequences: float) -> float:
    """Of a group's share: the fullest group has a whole sequence where there are fewer than groups."""
    return max(sequences, 1.0) if sequences > 0 else 0.0
