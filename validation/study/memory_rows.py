"""Published memory figures against the memory model: one prediction per row of `memory.csv` or `steps.csv`.

Rows are formulas of a paper (analytic: the ZeRO table, Korthikanti et al.) or measurements. Every row is predicted by
the model of `commsim.training`, from its configuration only; a row that cannot be says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from commsim.errors import CommsimError
from commsim.training.accelerator import CONTEXT_BYTES, accelerator
from commsim.training.activations import layer_kept, recomputed
from commsim.training.finetune import (
    NF4_BYTES,
    NF4_DOUBLE_BYTES,
    FineTune,
    finetune_memory,
    lora_kept,
    lora_parameters,
    scaled_kept,
)
from commsim.training.memory import (
    Framework,
    reserved_bytes,
    software,
    states,
    step_memory,
)
from commsim.training.model import Model, model
from commsim.training.precision import Precision, precision, with_gradients
from commsim.training.spec import Step
from commsim.training.stages import Weights
from commsim.units import GIB, GIGA

Row = Mapping[str, str]

_UNITS = {"GB": GIGA, "GiB": GIB, "TB": 1e12, "MB": 1e6}

_FRAMEWORKS: tuple[tuple[str, Framework], ...] = (
    ("bloom", "deepspeed"),
    ("bigscience", "deepspeed"),
    ("bsv100", "deepspeed"),
    ("titan", "fsdp2"),
    ("nanotron", "nanotron"),
)
"""Software by the beginning of a row's id; megatron where none is named."""

_RESERVED = ("bloom", "bigscience", "bsv100", "dgxc")
"""Sources that print what the allocator reserved: nvidia-smi's figure, or NeMo's `peak_memory_usage`, which is
`torch.cuda.max_memory_reserved` (`megatron_strategy.py`). torchtitan prints it too, with segments that can grow."""


@dataclass(frozen=True)
class MemoryRow:
    """One row: ``measured`` and ``predicted`` in bytes (or percent), None with a ``reason``."""

    id: str
    source: str
    analytic: bool
    measured: float | None
    predicted: float | None
    reason: str = ""

    @property
    def error(self) -> float | None:
        """Signed, relative."""
        if self.measured is None or self.predicted is None:
            return None
        return self.predicted / self.measured - 1.0


def framework_of(identifier: str) -> Framework:
    """The software that a row's source ran."""
    return next((name for start, name in _FRAMEWORKS if identifier.startswith(start)), "megatron")


def source_of(row: Row) -> str:
    """The short name of a row's source: its id without the number."""
    return row["id"].rsplit("-", 1)[0]


def memory_row(row: Row) -> MemoryRow:
    """The prediction for one row of either file."""
    kind = row.get("kind") or "peak_mem_GiB"
    analytic = row["id"].startswith(("zero-", "ark22-"))
    text = row.get("value") or row.get("peak_mem_GiB") or ""
    unit = row.get("unit") or "GiB"
    try:
        measured = float(text) * _UNITS.get(unit, 1.0)
    except ValueError:
        measured = None
    answer = MemoryRow(row["id"], source_of(row), analytic, measured, None)
    if measured is None:
        return replace(answer, reason=f"the value is {text or 'blank'}")
    predict = _KINDS.get(kind)
    if predict is None:
        return replace(answer, reason=f"{kind} is not a figure of one device")
    try:
        return replace(answer, predicted=predict(row))
    except (CommsimError, _MissingError) as error:
        return replace(answer, reason=str(error))


class _MissingError(Exception):
    """A field that a prediction needs is blank."""


# -- rows to steps ---------------------------------


def _number(row: Row, name: str, default: int | None = None) -> int:
    text = row.get(name) or ""
    if text.strip():
        return int(float(text))
    if default is None:
        raise _MissingError(f"{name} is blank")
    return default


def row_model(row: Row) -> Model:
    """The architecture: a preset, cut to the row's layers, or the row's own columns."""
    name = row["model"].split(" cut to ")[0]
    try:
        base = model(name)
    except CommsimError:
        base = None
    if base is not None:
        layers = _number(row, "layers", base.layers)
        changes: dict[str, object] = {"layers": layers, "kv_heads": _number(row, "kv_heads", base.kv_heads)}
        if base.mla is not None:
            changes.pop("kv_heads")
        if base.moe is not None and layers < base.layers:
            changes["moe"] = replace(base.moe, dense_layers=min(1, base.moe.dense_layers))
        return replace(base, **changes)  # type: ignore[arg-type]
    hidden, heads = _number(row, "hidden"), _number(row, "heads", 96)
    llama = name.startswith("Llama-like")  # nanotron's script ties embeddings where ffn_hidden is below 10,000
    return Model(
        row["model"],
        _number(row, "layers"),
        hidden,
        _number(row, "ffn_hidden"),
        heads,
        _number(row, "kv_heads", heads),
        max(1, hidden // heads),
        _number(row, "vocab", 250_880 if "BLOOM" in row["model"] else None),
        _number(row, "seq_len"),
        gated_mlp=llama,
        norm="rmsnorm" if llama else "layernorm",
        tied_embeddings=not llama or _number(row, "ffn_hidden") < 10_000,
    )


def row_step(row: Row) -> Step:
    """The step of a row of `steps.csv`, as far as memory depends on it.

    torchtitan cuts a rank's batch into as many micro-batches as there are stages (`pipelining_utils.py`), and compiles
    the loss with the model from 2025 on (`components/loss.py`). NeMo's recipes have a distributed optimizer, and
    sequence parallelism with tensor parallelism; BLOOM's prequels run ZeRO-1, as their scripts do
    (train/tr8b-104B/*.slurm, ``ZERO_STAGE=1``).
    """
    framework = framework_of(row["id"])
    dp, pp = _number(row, "dp", 1), _number(row, "pp", 1)
    titan, nemo = framework == "fsdp2", row["id"].startswith("dgxc")
    local = _number(row, "global_batch_seqs", dp) // dp
    micro = _number(row, "micro_batch", max(1, local // pp) if titan else 1)
    chunks = 2 if titan and "interleaved" in (row.get("schedule") or "") else 1
    batch = max(micro * dp, _number(row, "global_batch_seqs", micro * dp) // (micro * dp) * micro * dp)
    recompute = row.get("recompute") or "none"
    old = framework == "deepspeed"
    return Step(
        row_model(row),
        accelerator(row["gpu_model"]),
        _formats(row, framework),
        _number(row, "seq_len"),
        micro,
        batch,
        tp=_number(row, "tp", 1),
        pp=pp,
        cp=_number(row, "cp", 1),
        dp=dp,
        virtual_stages=_number(row, "vpp", chunks),
        fused_loss=titan and "_2025" in row["table"],
        ep=_number(row, "ep", 1),
        sequence_parallel=row.get("sp") == "yes" or (nemo and _number(row, "tp", 1) > 1),
        zero_stage=_number(row, "zero_stage", int(nemo or old)),
        optimizer="adam-8bit" if "8-bit optimizer" in row["notes"] else "adam",
        recompute="layerwise" if framework == "fsdp2" and recompute == "selective" else recompute,
        stack="eager" if old else "tuned",
        flash_attention=not old,
    )


def _formats(row: Row, framework: Framework) -> Precision:
    """The number formats: fp32 gradients with Megatron-LM, 16-bit ones in NeMo's performance recipes
    (``plugins.grad_reduce_in_fp32 = False``)."""
    formats = precision(row.get("precision") or "bf16")
    wide = framework == "megatron" and formats.master and not row["id"].startswith("dgxc")
    return with_gradients(formats, 18) if wide else formats


def _peak(row: Row) -> float:
    """The peak, or what the allocator reserved; rows of DeepSpeed are nvidia-smi's figures, which count the CUDA
    context, those of nanotron its first rank's (`helpers.py`, `log_throughput`)."""
    framework, one = framework_of(row["id"]), row_step(row)
    if framework == "nanotron":
        return step_memory(one, framework, layers=_by_cost(one)).stages[0].peak
    context = CONTEXT_BYTES if framework == "deepspeed" else 0.0
    shown = reserved_bytes if row["id"].startswith(_RESERVED) else _allocated
    return shown(one, framework) + context


def _allocated(step: Step, framework: Framework) -> float:
    return step_memory(step, framework).peak


def _by_cost(step: Step) -> list[int]:
    """nanotron's layers of every stage, by parameters, of which the output matrix has some (`models/base.py`)."""
    layer = 4 * step.model.hidden**2 + 3 * step.model.hidden * step.model.ffn_hidden
    total, counts = step.model.layers * layer + step.model.vocab * step.model.hidden, [0] * step.pp
    stage = 0
    for built in range(1, step.model.layers + 1):
        counts[stage] += 1
        stage += built * layer > total * (stage + 1) / step.pp
    return counts


# -- analytic rows ---------------------------------


def _paper_step(row: Row, **changes: object) -> Step:
    fields: dict[str, object] = {
        "tp": _number(row, "tp", 1),
        "sequence_parallel": row.get("sp") == "yes",
        "recompute": row.get("recompute") or "none",
        "pp": _number(row, "pp", 1),
        "virtual_stages": _number(row, "vpp", 1),
        "flash_attention": False,
    }
    micro = _number(row, "micro_batch", 1)
    batch = micro * 4 * _number(row, "pp", 1)
    one = Step(model(row["model"]), accelerator("A100"), precision("fp16"), _number(row, "seq_len"), micro, batch)
    return replace(one, **(fields | changes))  # type: ignore[arg-type]


def _zero_states(row: Row) -> float:
    """16 bytes per parameter over the ranks: Rajbhandari et al. 2020, table 1."""
    ranks = _number(row, "dp")
    one = Step(model("megatron-7.5b"), accelerator("V100"), precision("fp16"), 2048, 1, ranks, dp=ranks)
    one = replace(one, zero_stage=_number(row, "zero_stage"))
    soft = replace(software(one, "megatron"), gradient=2.0)
    parts = states(one, soft, Weights(float(row["params_B"]) * GIGA, 0.0))
    return parts["weights"] + parts["gradients"] + parts["optimizer"]


def _paper_states(row: Row) -> float:
    """18 bytes per parameter of the layers of the first stage (fp32 gradients), without embeddings and biases."""
    one = _paper_step(row)
    matrices = 12 * one.model.hidden**2 * one.model.layers / one.pp / one.tp
    return matrices * (2.0 + 4.0 + one.precision.optimizer_bytes("adam"))


def _paper_activations(row: Row) -> float:
    """The first stage's layers in flight: all L of the model with 1F1B, L (1 + (p-1)/(p v)) interleaved."""
    one = _paper_step(row)
    per_layer = recomputed(layer_kept(one, 0, dropout=True), one)
    extra = (one.pp - 1) / (one.pp * one.virtual_stages) if one.virtual_stages > 1 else 0.0
    return one.model.layers * (1 + extra) * per_layer


def _paper_percent(row: Row) -> float:
    one = _paper_step(row)
    base = _paper_step(row, sequence_parallel=False, recompute="none")
    kept = [recomputed(layer_kept(s, 0, dropout=True), s) for s in (one, base)]
    return 100.0 * kept[0] / kept[1]


# -- fine-tuning ---------------------------------


def _finetune(row: Row) -> float:
    """LoRA and adapters of LitGPT on one GPU in eager torch.

    Tokens are those of the longest example, or 512, times the micro-batch.
    """
    table, notes = row["table"], row["notes"]
    if "full" in table:
        raise _MissingError("full fine-tuning with optimizers that the row does not name")
    if "Multiple" in table:
        raise _MissingError("how the parameters are cut over the GPUs is not printed")
    untied = replace(model(row["model"]), tied_embeddings=False)  # its output is a matrix of its own (`model.py`)
    longest, micro = re.search(r"longest example (\d+)", notes), _number(row, "micro_batch", 1)
    one = Step(
        untied, accelerator("A100"), precision("bf16"), int(longest[1]) if longest else 512, micro, micro,
        frozen_weights=True, stack="eager",
    )  # fmt: skip
    trained = re.search(r"trainable parameters ([\d,]+)", notes)
    trainable = int(trained[1].replace(",", "")) if trained else lora_parameters(one, 8)
    base = 2.0
    if "nf4" in row["precision"] or "qlora" in table:
        base = NF4_DOUBLE_BYTES if "dq" in row["precision"] else NF4_BYTES
    everywhere = ("o", "up", "gate", "down") if table.startswith(_LORA_EVERYWHERE) else ()
    kept = 0.0 if "adapter" in table else lora_kept(one, ("q", "v", *everywhere))
    kept = scaled_kept(one) if "adapter_v2" in table else kept
    return sum(finetune_memory(one, FineTune(trainable, base, kept_bytes=kept)).values())


_LORA_EVERYWHERE = ("phi-2/", "tiny-llama/")
"""Configurations of LitGPT's `config_hub/finetune` (commit 26857050) with LoRA beside all matrices."""


_KINDS = {
    "peak_mem_GiB": _peak,
    "model_states_per_device": _zero_states,
    "parameters+optimizer_per_device": _paper_states,
    "activations_per_device": _paper_activations,
    "activations_percent_of_tp_baseline": _paper_percent,
    "peak_memory_finetune": _finetune,
}
