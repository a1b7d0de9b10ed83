"""A training step that tests change field by field."""

from __future__ import annotations

from typing import Any

import numpy as np

from commsim.training.accelerator import accelerator
from commsim.training.model import model
from commsim.training.pipeline import Order
from commsim.training.precision import precision
from commsim.training.spec import Step
from commsim.training.stages import Weights, chunks_of, share_of, weights_of


def pipeline_bytes(nbytes: float, stage: int, pp: int, virtual_stages: int, micro_batches: int) -> float:
    """Sent by a rank of a stage: every activation to the next chunk, every gradient to the one before.

    The first chunk has none before it and the last none after it.
    """
    return nbytes * micro_batches * (2 * virtual_stages - (stage == pp - 1) - (stage == 0)) if pp > 1 else 0.0


def stage_weights(one: Step) -> list[Weights]:
    """The parameters of one rank of every stage, (pp,)."""
    chunks = chunks_of(one)
    return [weights_of(one, share_of(one.model, [c for c in chunks if c.stage == s])) for s in range(one.pp)]


def step(**changes: Any) -> Step:
    """Llama 3 8B on one H100, 64 sequences of 4,096 tokens."""
    fields: dict[str, Any] = {
        "model": model("llama3-8b"),
        "accelerator": accelerator("H100"),
        "precision": precision("bf16"),
        "seq_len": 4096,
        "micro_batch_size": 1,
        "global_batch_size": 64,
    }
    return Step(**(fields | changes))


def most_in_flight(order: Order, weight_share: float = 0.0) -> np.ndarray:
    """Most activations that each stage keeps at once, (stages,), in activations of a whole stage.

    A chunk's forward keeps 1/chunks of them until its backward; after a split backward ``weight_share`` of them stays
    until W. DualPipe's two chunks are whole stages, so that it counts each as 1.
    """
    unit = 1.0 if len(set(order.routes)) > 1 else 1.0 / order.chunks
    kept = {"F": unit, "B": -unit, "I": -(1 - weight_share) * unit, "W": -weight_share * unit}
    return np.array([max(np.cumsum([kept[a.kind] for a in mine]), default=0.0) for mine in order.actions])
