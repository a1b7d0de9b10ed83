"""Published rows as steps: the rules of their source fill what their columns leave blank.

FLOPs per token of a step, by the convention of the source: ``hardware`` 96 L h^2 (1 + s/6h + V/16Lh), which counts the
recomputed forward (Narayanan et al. 2021, eq. 3); ``full`` and ``causal`` three times the forward products with the
whole score matrix or half of it; ``six`` 6 P + 12 L h s.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commsim.accuracy import training_rows
from commsim.accuracy.training_rows import NEEDED, RowReader, TrainingRow, read_table
from commsim.training.columns import Columns
from commsim.training.model import Model
from commsim.training.precision import with_gradients
from commsim.training.spec import Step
from study.training_sources import PublishedSource, source_of

Float64 = npt.NDArray[np.float64]


def flops_per_token(step: Step, convention: str) -> float:
    """FLOPs per token that a source counts; with frozen weights the weight gradient is left out."""
    m, s = step.model, step.seq_len
    if convention == "hardware":
        h, layers = m.hidden, m.layers
        return 96.0 * layers * h * h * (1 + s / (6 * h) + m.vocab / (16 * layers * h))
    if convention == "six":
        return 6.0 * m.active_parameters() + 12.0 * m.layers * m.hidden * s
    return training_rows.flops_per_token(step, causal=convention == "causal")


@dataclass(frozen=True, kw_only=True)
class PublishedRow(TrainingRow):
    """A row with its cells as printed and the rules of its source."""

    source: PublishedSource
    cells: Mapping[str, str]


class PublishedReader(RowReader):
    """The cells of a published row; blank ones by the rules of its source."""

    def __init__(self, cells: Mapping[str, str], source: PublishedSource) -> None:
        super().__init__(cells)
        self.source = source
        usual = {
            "vocab": str(source.vocab),
            "zero_stage": str(source.zero),
            "sp": "yes" if source.sp else "no",
            "precision": "bf16" if source.flash else "fp16",
            "recompute": source.recompute,
        }
        self.cells |= {name: word for name, word in usual.items() if not self.text(name)}
        if self.text("recompute").lower() == "selective":
            self.cells["recompute"] = source.selective

    def model(self) -> Model | None:
        """The architecture, as the source builds it."""
        model = super().model()
        if model is None:
            return None
        module = model.name == "deepseek-v3" and self.source.multi_token_prediction and not self.named("w/o MTP")
        return replace(model, layers=model.layers + module, gated_mlp=self.source.gated_mlp or model.gated_mlp)

    def step(self) -> Step:
        """The row's step on the source's software."""
        source, step = self.source, super().step()
        moe, chunks = step.model.moe is not None, self._chunks(step)
        words = f"{self.notes}; {self.text('precision')}"
        cut = moe and source.expert_tp and step.cp * step.dp % step.ep == 0
        formats = step.precision
        return replace(
            step,
            precision=formats if source.fp32_gradients or not formats.master else with_gradients(formats, 16),
            virtual_stages=chunks,
            schedule=self._schedule(chunks),
            stack="compiled" if re.search(source.compiled_where, words, re.IGNORECASE) else source.stack,
            flash_attention=source.flash and not self.named(source.unfused_where),
            attention_kernel=source.attention,
            cuda_graphs=moe and self._container() >= source.graphs_from,
            overlap_dp="dp" in source.overlap,
            overlap_param_gather=source.overlap_param_gather,
            overlap_tp="tp" in source.overlap or step.overlap_tp,
            overlap_pp="pp" in source.overlap,
            imbalance=source.imbalance if moe else 1.0,
            expert_tp=step.tp if cut else 1,
            expert_dispatch=self._dispatch(step),
            context_parallel=source.context,
        )

    def _dispatch(self, step: Step) -> str:
        """What sends tokens to their experts: named in the notes, or by the rule of the source."""
        if self.named("DeepEP"):
            return "deepep"
        return (step.accelerator.rack > 1 and self.source.dispatch_in_racks) or self.source.dispatch

    def _chunks(self, step: Step) -> int:
        """Model chunks of a stage: printed, or by the rule of the source."""
        if step.pp == 1 or self.count("vpp"):
            return step.virtual_stages
        if isinstance(self.source.chunks, tuple):
            return dict(self.source.chunks).get(step.model.layers, 1)
        if self.source.chunks == "layers" and self.text("schedule").lower() != "1f1b":
            return max(math.ceil(step.model.layers / step.pp), 1)
        return 1

    def _container(self) -> tuple[int, int]:
        """Year and month of NVIDIA's container that the notes name, (0, 0) where they name none."""
        month = re.search(r"container (\d\d)\.(\d\d)", self.notes)
        return (int(month[1]), int(month[2])) if month else (0, 0)

    def flops_per_token(self, step: Step, *, of_peak: bool = False) -> float:
        """By the convention of the source; a share of the peak counts model FLOPs, whatever its TFLOP/s count."""
        convention = self.source.convention
        return flops_per_token(step, "full" if of_peak and convention == "hardware" else convention)


def row_of(cells: Mapping[str, str]) -> PublishedRow:
    """A row of a table of published steps."""
    source = source_of(cells["source"])
    return PublishedRow(**vars(PublishedReader(cells, source).row()), source=source, cells=cells)


def read_published(path: Path) -> list[PublishedRow]:
    """The rows of a file of published steps; LogFormatError where it is not such a table."""
    return [row_of(cells) for cells in read_table(path, NEEDED)]


def apart(row: PublishedRow) -> str:
    """Why a row is reported apart and not in the figures; blank where it is in them."""
    if row.step is None:
        return ""
    return row.source.apart or (row.source.apart_zero3 if row.step.zero_stage == 3 else "")


def fitted(row: PublishedRow) -> bool:
    """Whether fits may use a row."""
    source = row.source
    if not source.pattern:
        return True
    return source.fit and not apart(row) and not re.search(source.early, row.cells.get("table", ""))


def group_of(row: PublishedRow) -> str:
    """The group that errors are stated for: the source, its models of experts and a table of another kind apart."""
    source = row.source
    if row.step is not None and row.step.model.moe is not None and source.experts_apart:
        return f"{source.name} (experts)"
    if source.group_table and row.cells.get("table", "").startswith(source.group_table):
        return f"{source.name} ({source.group_table})"
    return source.name


# -- rows as a table ---------------------------------


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Rows that can be predicted, as columns, with what was measured."""

    rows: Sequence[PublishedRow]
    columns: Columns
    measured: Float64  # seconds
    source: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: npt.NDArray[np.int64]) -> MeasuredRows:
        """Some of the rows."""
        return MeasuredRows(
            [self.rows[i] for i in index], self.columns.take(index), self.measured[index], self.source[index]
        )


def table_of(rows: Sequence[PublishedRow]) -> MeasuredRows:
    """The rows that have a step and a measured time."""
    known = [row for row in rows if row.step is not None and row.measured_s is not None]
    return MeasuredRows(
        known,
        Columns([row.step for row in known]),
        np.array([row.measured_s for row in known], np.float64),
        np.array([row.source.name for row in known], np.str_),
    )


def errors(table: MeasuredRows, predicted: Float64) -> Float64:
    """Signed error of every row in percent."""
    return 100.0 * (predicted - table.measured) / table.measured
