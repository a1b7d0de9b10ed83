"""What is known of a source of training rows beside its columns: `training_sources.yaml` as values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from commsim.document import read_documents

_PATH = Path(__file__).with_name("training_sources.yaml")


@dataclass(frozen=True)
class PublishedSource:
    """How to read blank columns of one source's rows, and how they are scored.

    The defaults are vendor-tuned software of today, and those of a source that is not known.
    """

    name: str
    stack: str = "tuned"
    attention: str = "vendor"
    flash: bool = True
    zero: int = 1
    sp: bool = True  # sequence parallelism where tp > 1
    overlap: frozenset[str] = frozenset(("dp", "pp"))
    overlap_param_gather: bool = True
    recompute: str = "none"
    selective: str = "selective"  # what the source's word "selective" means
    chunks: str | tuple[tuple[int, int], ...] = "one"
    vocab: int = 51200
    gated_mlp: bool = False  # whatever the width of the MLP says
    multi_token_prediction: bool = False  # its module of DeepSeek-V3 is one more layer, unless notes name it left out
    convention: str = "causal"  # of printed TFLOP/s: hardware | causal | full | six
    fp32_gradients: bool = True
    imbalance: float = 1.0  # busiest expert over the mean
    expert_tp: bool = False  # experts are cut by tp as well
    dispatch: str = "nccl"  # what sends tokens to their experts, unless notes name DeepEP
    context: str = "ring"  # how cp exchanges keys and values
    dispatch_in_racks: str = ""  # the same where NVLink joins the nodes of a rack; blank: as elsewhere
    graphs_from: tuple[int, int] = (99, 0)  # container from which expert layers run under CUDA graphs
    compiled_where: str = "compile|paxml|maxtext"  # words in notes, table or precision
    unfused_where: str = "$^"
    pattern: str = ""  # found in the column `source`; blank where the source is not known
    early: str = "$^"  # tables that fits leave out
    fit: bool = True
    apart: str = ""  # why its rows are reported apart
    apart_zero3: str = ""
    experts_apart: bool = True  # its models of experts have figures of their own
    group_table: str = ""  # a table that has figures of its own, by how its name begins
    why: str = ""


@lru_cache(maxsize=1)
def sources() -> tuple[PublishedSource, ...]:
    """All known sources, in the order of the file."""
    entries: dict[str, dict[str, Any]] = read_documents(_PATH)[0].data
    return tuple(_source(name, dict(fields)) for name, fields in entries.items())


def _source(name: str, fields: dict[str, Any]) -> PublishedSource:
    if "overlap" in fields:
        fields["overlap"] = frozenset(fields["overlap"])
    if "graphs_from" in fields:
        fields["graphs_from"] = tuple(fields["graphs_from"])
    if isinstance(fields.get("chunks"), dict):
        fields["chunks"] = tuple((int(k), int(v)) for k, v in fields["chunks"].items())
    return PublishedSource(name, **fields)


def source_of(text: str) -> PublishedSource:
    """The rules of a source; the defaults under the text's first words where it is not known."""
    name = " ".join(text.split()[:3])[:40] or "unnamed"
    return next((source for source in sources() if re.search(source.pattern, text)), PublishedSource(name))
