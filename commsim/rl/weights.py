"""The weights of a model as tensors, as a checkpoint of Hugging Face names them: what a trainer hands to engines."""

from __future__ import annotations

from dataclasses import dataclass

from commsim.training.model import Model


@dataclass(frozen=True)
class Tensors:
    """Tensors that are alike in size: how many, and elements of one, the mean."""

    count: int
    elements: float


@dataclass(frozen=True)
class ModelWeights:
    """All tensors of a model: those that every token meets, and those of routed experts."""

    dense: Tensors
    experts: Tensors

    @property
    def elements(self) -> float:
        """Of all of them."""
        return self.dense.count * self.dense.elements + self.experts.count * self.experts.elements

    @property
    def count(self) -> int:
        """Tensors."""
        return self.dense.count + self.experts.count


def weights_of(model: Model) -> ModelWeights:
    """The tensors of a model: of attention a matrix for queries, keys, values, output (low ranks: five), of an MLP and
    of every expert one for each of its matrices; norms and biases go with them and cost no more.

    >>> from commsim.training.model import model
    >>> weights_of(model("llama3-8b")).count
    226
    """
    attention = 5 if model.mla is not None else 4
    matrices = model.up_matrices + 1
    moe = model.moe_layers
    vocabulary = 1 if model.tied_embeddings else 2
    count = model.layers * attention + (model.layers - moe) * matrices + vocabulary
    routed, each = 0.0, 0
    if model.moe is not None:
        count += moe * (1 + (matrices if model.moe.shared_experts else 0))  # the router
        routed, each = float(moe * model.routed_parameters), moe * model.moe.experts * matrices
    return ModelWeights(
        Tensors(count, (model.parameters() - routed) / count), Tensors(each, routed / each if each else 0.0)
    )
