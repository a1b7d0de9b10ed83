"""A training step that tests change field by field."""

from __future__ import annotations

from typing import Any

from commsim.training.accelerator import accelerator
from commsim.training.model import model
from commsim.training.precision import precision
from commsim.training.spec import Step


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
