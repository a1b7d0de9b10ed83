"""The best published training steps: what a plan's winner is held against.

`best_published.csv` holds, for every accelerator, kind of model and width of products, the published step with the most
model FLOP/s per GPU and its source (`validation/decisions.py --write` writes it, from `validation/training/`).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from commsim.training.spec import Step

BEST = Path(__file__).with_name("best_published.csv")

Kind = tuple[str, str, str]


@dataclass(frozen=True)
class Published:
    """A published step: model TFLOP/s of one GPU, attention counted without its mask, and where it was published."""

    accelerator: str
    model_kind: str
    products: str
    tflops_per_gpu: float
    model: str
    gpus: int
    row: str
    source: str

    @property
    def words(self) -> str:
        """In one phrase."""
        return f"{self.tflops_per_gpu:.0f}, {self.model} on {self.gpus:,} GPUs ({self.source})"


def kind_of(step: Step) -> Kind:
    """What published steps are compared by: accelerator, dense or experts, width of the products."""
    products = "4 bit" if step.precision.fp4 else "8 bit" if step.precision.fp8 else "16 bit"
    return step.accelerator.name, "experts" if step.model.moe else "dense", products


@lru_cache(maxsize=1)
def _best() -> dict[Kind, Published]:
    with BEST.open(encoding="utf-8", newline="") as stream:
        rows = [
            Published(
                **{k: v for k, v in row.items() if k not in ("tflops_per_gpu", "gpus")},
                tflops_per_gpu=float(row["tflops_per_gpu"]),
                gpus=int(row["gpus"]),
            )
            for row in csv.DictReader(stream)
        ]
    return {(row.accelerator, row.model_kind, row.products): row for row in rows}


def best_published(step: Step) -> Published | None:
    """The best published step of a step's kind; None where none of its kind was published."""
    return _best().get(kind_of(step))
