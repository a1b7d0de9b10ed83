"""Which layers lie where: the model cut into pipeline stages and chunks, and the weights one rank of each holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

from commsim.errors import ScenarioError
from commsim.training.columns import Number, where
from commsim.training.model import Model
from commsim.training.spec import Step, Steps


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

    def moe_layers(self, model: Model) -> int:
        """Layers with experts: they come after the dense ones."""
        return max(0, self.last - max(self.first, model.layers - model.moe_layers))


@dataclass(frozen=True, eq=False)
class Weights:
    """Parameters that one rank holds: those cut by tp, and those of experts, which have axes of their own."""

    dense: Number
    expert: Number
    words: Number = 0.0  # of the dense ones those of embedding and output

    @property
    def total(self) -> Number:
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
    return chunks_in_order(step.model, step.pp, step.virtual_stages, layers, v_shaped=bool(step.v_shaped))


def chunks_in_order(
    model: Model, pp: int, virtual_stages: int, layers: Sequence[int] | None = None, *, v_shaped: bool = False
) -> list[Chunk]:
    """`chunks_of` for so many stages and chunks of each; ``v_shaped``: every second round goes back up the stages."""
    number = pp * virtual_stages
    counts = split_layers(model.layers, number) if layers is None else list(layers)
    if len(counts) != number or sum(counts) != model.layers or min(counts) < 0:
        raise ScenarioError(
            f"found {'+'.join(map(str, counts))} = {sum(counts)} layers on {len(counts)} stages, expected "
            f"{model.layers} layers on pp * virtual_stages = {number}"
        )
    last = list(accumulate(counts))
    return [
        Chunk(_stage(i, pp, v_shaped), i // pp, end - count, end, i == 0, i == number - 1)
        for i, (count, end) in enumerate(zip(counts, last, strict=True))
    ]


def _stage(chunk: int, pp: int, v_shaped: bool) -> int:
    return pp - 1 - chunk % pp if v_shaped and chunk // pp % 2 else chunk % pp


@dataclass(frozen=True, eq=False)
class Share:
    """What of the model one stage (or chunk) holds: numbers, or arrays of one per step."""

    dense: Number  # layers with an ordinary MLP
    moe: Number  # layers with experts
    embeds: Number
    outputs: Number

    @property
    def layers(self) -> Number:
        """Number of layers."""
        return self.dense + self.moe


def share_of(model: Model, chunks: Sequence[Chunk]) -> Share:
    """What some chunks hold together."""
    moe = sum(c.moe_layers(model) for c in chunks)
    return Share(
        sum(c.layers for c in chunks) - moe, moe, any(c.embeds for c in chunks), any(c.outputs for c in chunks)
    )


def telling_stages(step: Steps) -> list[tuple[Number, Share]]:
    """The stages among which the slowest and the fullest are, with their shares, for a table of steps as well.

    They are the first two, the first of those between with most layers (of experts, where there are), and the last.
    """
    models, of = ((step.model,), 0) if isinstance(step.model, Model) else step.model.distinct
    cuts = np.stack(np.broadcast_arrays(of, step.pp, step.virtual_stages, step.v_shaped))
    unique, inverse = np.unique(cuts.reshape(4, -1), axis=1, return_inverse=True)
    held = np.array([_layers_of_stages(models[i], pp, v, bool(bent)) for i, pp, v, bent in unique.T.tolist()])
    held = held[inverse.reshape(cuts.shape[1:])]
    return [
        (stage, Share(dense, moe, stage == 0, stage == where(step.v_shaped, 0, step.pp - 1)))
        for stage, dense, moe in (np.moveaxis(held[..., i, :], -1, 0) for i in range(held.shape[-2]))
    ]


@lru_cache(maxsize=4096)
def _layers_of_stages(model: Model, pp: int, virtual_stages: int, v_shaped: bool) -> tuple[tuple[int, int, int], ...]:
    """(stage, dense layers, expert layers) of each of `telling_stages`."""
    chunks = chunks_in_order(model, pp, virtual_stages, v_shaped=v_shaped)
    shares, second = [share_of(model, [c for c in chunks if c.stage == s]) for s in range(pp)], min(1, pp - 1)
    most = max(range(second, max(pp - 1, second + 1)), key=lambda s: (shares[s].moe, shares[s].layers))
    return tuple((s, shares[s].dense, shares[s].moe) for s in (0, second, most, pp - 1))


def weights_of(step: Step, share: Share) -> Weights:
    """The parameters of a share on one rank: matrices over tp, norms and routers whole, experts over ep and expert_tp.

    A tied output is a second copy on the last stage, kept equal by an all_reduce between the two (Megatron-LM).
    """
    model, tp = step.model, step.tp
    norms = 2 * model.norm_parameters
    dense = (model.mixer_parameters + model.mlp_parameters) / tp + norms
    beside = (model.mixer_parameters + model.shared_expert_parameters) / tp + norms + model.router_parameters
    word = model.vocab * model.hidden
    positions = model.seq_len * model.hidden if model.positions == "learned" else 0
    copied = (share.embeds == 0) & model.tied_embeddings
    output = where(copied, word, model.output_parameters) / tp + model.norm_parameters
    ends = share.embeds * (word / tp + positions) + share.outputs * output
    experts = share.moe * model.routed_parameters / (step.ep * step.expert_tp)
    return Weights(share.dense * dense + share.moe * beside + ends, experts, ends)


def chunk_weights(step: Step, chunk: Chunk) -> Weights:
    """The parameters of a chunk on one rank, with embedding and output where it has them."""
    return weights_of(step, share_of(step.model, [chunk]))
