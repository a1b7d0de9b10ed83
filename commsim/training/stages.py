"""Which layers lie where: the model cut into pipeline stages and chunks, and the weights one rank of each holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commsim.errors import ScenarioError
from commsim.training.model import Model
from commsim.training.spec import Step


@dataclass(frozen=True)
class Chunk:
    """Layers ``first`` to ``last`` - 1 on one stage; the first chunk of all embeds, the last one computes the loss."""

    stage: int
    chunk: int
    first: int
    last: int
    embeds: bool
    outputs: bool

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.last - self.first


@dataclass(frozen=True)
class Weights:
    """Parameters that one rank holds: those cut by tp, and those of experts, which have axes of their own."""

    dense: float
    expert: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.dense + self.expert


def split_layers(layers: int, chunks: int) -> list[int]:
    """Layers of each chunk in model order.

    Even where that divides; where two more would, embedding and output count as a layer each (Llama 3 405B: 126 on 16
    stages); else the chunks in the middle have one more than those at the ends.

    >>> split_layers(126, 16)[:2], split_layers(10, 4)
    ([7, 8], [2, 3, 3, 2])
    """
    if layers % chunks == 0:
        return [layers // chunks] * chunks
    if (layers + 2) % chunks == 0 and chunks > 1:
        each = (layers + 2) // chunks
        return [each - 1, *[each] * (chunks - 2), each - 1]
    each, more = divmod(layers, chunks)
    start = (chunks - more) // 2
    return [each + (start <= i < start + more) for i in range(chunks)]


def chunks_of(step: Step, layers: Sequence[int] | None = None) -> list[Chunk]:
    """The chunks in the order in which a forward passes them; ``layers`` overrides how many each has."""
    number = step.pp * step.virtual_stages
    counts = split_layers(step.model.layers, number) if layers is None else list(layers)
    if len(counts) != number or sum(counts) != step.model.layers or min(counts) < 0:
        raise ScenarioError(
            f"found {'+'.join(map(str, counts))} = {sum(counts)} layers on {len(counts)} stages, expected "
            f"{step.model.layers} layers on pp * virtual_stages = {number}"
        )
    found, first = [], 0
    for i, count in enumerate(counts):
        found.append(Chunk(i % step.pp, i // step.pp, first, first + count, i == 0, i == number - 1))
        first += count
    return found


def layer_weights(step: Step, layer: int) -> Weights:
    """The parameters of one layer on one rank: matrices over tp, norms and routers whole, experts over ep and etp."""
    model = step.model
    whole = 2 * model.norm_parameters
    if model.moe is None or not model.is_moe_layer(layer):
        return Weights((model.attention_parameters + model.mlp_parameters) / step.tp + whole, 0.0)
    dense = (model.attention_parameters + model.shared_expert_parameters) / step.tp + whole + model.router_parameters
    return Weights(dense, model.moe.experts * model.expert_parameters / (step.ep * step.expert_tp))


def chunk_weights(step: Step, chunk: Chunk) -> Weights:
    """The parameters of a chunk on one rank, with embedding and output where it has them.

    A tied output is a second copy on the last stage, kept equal by an all_reduce between the two (Megatron-LM).
    """
    model = step.model
    dense = expert = 0.0
    for layer, count in _kinds(model, chunk):
        one = layer_weights(step, layer)
        dense, expert = dense + count * one.dense, expert + count * one.expert
    if chunk.embeds:
        positions = model.seq_len * model.hidden if model.positions == "learned" else 0
        dense += model.vocab * model.hidden / step.tp + positions
    if chunk.outputs:
        copied = model.tied_embeddings and not chunk.embeds
        dense += (model.vocab * model.hidden if copied else model.output_parameters) / step.tp + model.norm_parameters
    return Weights(dense, expert)


def _kinds(model: Model, chunk: Chunk) -> list[tuple[int, int]]:
    """(a layer, how many of its kind): dense layers before those with experts."""
    dense = min(chunk.last, model.layers - model.moe_layers) - chunk.first if model.moe is not None else chunk.layers
    dense = max(0, dense)
    return [(layer, n) for layer, n in ((chunk.first, dense), (chunk.last - 1, chunk.layers - dense)) if n]


def stage_weights(step: Step, chunks: Sequence[Chunk] | None = None) -> list[Weights]:
    """The parameters of one rank of every stage, (pp,)."""
    totals = [(0.0, 0.0)] * step.pp
    for chunk in chunks_of(step) if chunks is None else chunks:
        mine, (dense, expert) = chunk_weights(step, chunk), totals[chunk.stage]
        totals[chunk.stage] = (dense + mine.dense, expert + mine.expert)
    return [Weights(*pair) for pair in totals]
