"""Measured training steps of a table: every row as a step of the model, or why it cannot be one.

Read are the columns that describe a configuration; the measured ones (time, rates, MFU, memory) are read by `measured`
only, after the steps stand. Of `notes` only fixed words count that name a configuration (``torch.compile``, ``LoRA``).
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from commsim.accuracy.training_source import Source, unknown_source
from commsim.document import read_text
from commsim.errors import Fault, LogFormatError, ScenarioError
from commsim.training.accelerator import Accelerator, accelerator
from commsim.training.model import Model, model
from commsim.training.precision import Precision, precision, with_gradients
from commsim.training.spec import Step
from commsim.units import GIGA

MAX_BYTES = 16 * 2**20
"""A table of rows may be this large: ten times all that is published."""

NEEDED = ("id", "source", "gpu_model", "n_gpus", "seq_len", "global_batch_seqs")
MEASURED = ("iteration_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_mem_GiB")


@dataclass(frozen=True)
class TrainingRow:
    """A row: its step, or the reason why there is none."""

    id: str
    source: Source
    model_name: str
    gpu: str
    cells: Mapping[str, str]
    step: Step | None = None
    reason: str = ""


def read_rows(path: Path, source_of: Callable[[str], Source] = unknown_source) -> list[TrainingRow]:
    """The rows of a file; LogFormatError where it is not such a table.

    `source_of`: how to read the rows of the source that a row names.
    """
    return [row_of(cells, source_of(cells["source"])) for cells in read_table(path, NEEDED)]


def read_table(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    """The cells of every row of a CSV file by column; LogFormatError where it lacks a needed column."""
    table = csv.DictReader(io.StringIO(read_text(path, error=LogFormatError, limit=MAX_BYTES)))
    names = table.fieldnames or []
    missing = [n for n in needed if n not in names]
    if missing:
        message = f"found the columns {', '.join(names)[:200]}, expected also {', '.join(missing)}"
        raise LogFormatError([Fault(str(path), 1, 1, "", message)])
    try:
        return [{k: (v or "").strip() for k, v in r.items() if isinstance(k, str)} for r in table]
    except csv.Error as exc:
        raise LogFormatError([Fault(str(path), table.line_num, 1, "", str(exc))]) from None


def is_table_of_rows(path: Path) -> bool:
    """Whether a file begins like a table of training steps."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as stream:
            head = stream.readline(65536)
    except OSError:
        return False
    return set(NEEDED) <= {name.strip().strip('"') for name in head.split(",")}


def row_of(cells: Mapping[str, str], source: Source) -> TrainingRow:
    """A row of the table as a step, or with the reason why not."""
    hidden = {k: v for k, v in cells.items() if k not in MEASURED}
    row = TrainingRow(cells["id"], source, cells.get("model", ""), cells["gpu_model"], cells)
    try:
        step = _Cells(hidden, source).step()
    except ScenarioError as exc:
        return replace(row, reason=str(exc))
    return replace(row, step=step)


class _Cells:
    """Cells by column name, as numbers or words, with the rules for blank ones."""

    def __init__(self, cells: Mapping[str, str], source: Source) -> None:
        self.cells, self.source = cells, source
        self.notes = f"{cells.get('notes', '')}; {cells.get('table', '')}; {cells.get('model', '')}"

    def text(self, name: str) -> str:
        return self.cells.get(name, "")

    def number(self, name: str) -> float | None:
        """A number that is neither negative nor absurd, None where blank."""
        text = self.text(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < 2**24:
            raise ScenarioError(f"{name} = {text!r:.40}, expected a number")
        return value

    def count(self, name: str) -> int | None:
        """A whole number, None where blank."""
        value = self.number(name)
        return None if value is None else round(value)

    def named(self, pattern: str) -> bool:
        """Whether the notes, table or model name a configuration."""
        return re.search(pattern, self.notes, re.IGNORECASE) is not None

    def step(self) -> Step:
        """The row's step; ScenarioError names what is missing."""
        missing = [n for n in ("gpu_model", "n_gpus", "seq_len", "global_batch_seqs", "tp", "pp") if not self.text(n)]
        architecture = self._model()
        if architecture is None:
            missing.append("layers, hidden, heads (and no preset of this model name)")
        if missing or architecture is None:
            raise ScenarioError(f"missing: {', '.join(missing)}")
        gpu = self._accelerator()
        n, tp, pp, cp = (self.count(c) or 1 for c in ("n_gpus", "tp", "pp", "cp"))
        dp = n // (tp * pp * cp)
        if dp < 1 or dp * tp * pp * cp != n:
            raise ScenarioError(f"tp * pp * cp = {tp} * {pp} * {cp} does not divide n_gpus = {n}")
        batch = self.count("global_batch_seqs") or 1
        micro = self._micro_batch(batch, dp)
        node = self.count("gpus_per_node") or 8
        zero = self.count("zero_stage")
        return Step(
            model=architecture,
            accelerator=gpu,
            precision=self._precision(),
            seq_len=self.count("seq_len") or 1,
            micro_batch_size=micro,
            global_batch_size=max(round(batch / (micro * dp)), 1) * micro * dp,
            tp=tp,
            pp=pp,
            cp=cp,
            dp=dp,
            ep=self._experts(architecture, tp * cp * dp),
            virtual_stages=self._chunks(architecture, pp),
            schedule="interleaved_1f1b" if self._chunks(architecture, pp) > 1 else "1f1b",
            sequence_parallel=self._sequence_parallel(tp),
            zero_stage=self.source.zero if zero is None else min(zero, 3),
            recompute=self._recompute(),
            frozen_weights=self.named("LoRA"),
            stack=self._stack(),
            flash_attention=self.source.flash and not self.named(self.source.unfused_where),
            attention_kernel=self.source.attention,
            cuda_graphs=architecture.moe is not None and self._container() >= self.source.graphs_from,
            overlap_dp="dp" in self.source.overlap,
            overlap_tp=self._overlap_tp(),
            overlap_pp="pp" in self.source.overlap,
            gpus_per_node=node,
            nic_bytes_per_s=self._nic(gpu, node),
            imbalance=self.source.imbalance if architecture.moe else 1.0,
            expert_tp=self._expert_tp(architecture, tp, cp * dp),
        )

    def _model(self) -> Model | None:
        """The architecture of the columns, with experts, latent attention and head width of the preset of that name."""
        name = re.sub(r"\(.*?\)|\b(SFT|LoRA|2-node|671B|cut to.*)", "", self.text("model")).strip()
        try:
            preset: Model | None = model(name)
        except ScenarioError:
            preset = None
        hidden = self.count("hidden")
        layers, heads = self._layers(hidden), self._heads(hidden)
        if not (layers and hidden and heads):
            return preset if not self.named(r"architecture not (printed|filled)") else None
        if preset is None:
            if re.search(r"moe|a\d+b|mixtral|grok|deepseek|kimi|gpt.oss", name, re.IGNORECASE):
                return None  # the columns do not tell of experts
            preset = Model(
                name or "model",
                layers,
                hidden,
                4 * hidden,
                heads,
                heads,
                hidden // heads,
                51200,
                2048,
                tied_embeddings=True,
            )
        ffn = self.count("ffn_hidden") or preset.ffn_hidden
        if ffn % 64 and preset.gated_mlp:
            ffn = 256 * math.ceil(ffn / 256)  # 8/3 h is rounded up to a multiple of 256 where it is built
        gated = self.source.gated_mlp or (preset.gated_mlp if preset.hidden == hidden else ffn % hidden != 0)
        moe = preset.moe
        if moe is not None and layers != preset.layers:
            dense = re.search(r"(\d+) dense layer", self.notes)
            moe = replace(moe, dense_layers=int(dense[1]) if dense else 0)
        if preset.name == "deepseek-v3" and self.source.multi_token_prediction and not self.named("w/o MTP"):
            layers += 1
        return replace(
            preset,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=self.count("kv_heads") or heads,
            head_dim=preset.head_dim if (preset.hidden, preset.heads) == (hidden, heads) else max(hidden // heads, 1),
            ffn_hidden=ffn,
            vocab=self.count("vocab") or self.source.vocab,
            gated_mlp=gated,
            moe=moe,
        )

    def _layers(self, hidden: int | None) -> int | None:
        """The printed layers; blank ones follow from the parameters of a GPT, 12 L h^2 + V h."""
        layers, billions = self.count("layers"), self.number("params_B")
        if layers or not hidden or not billions or self.count("ffn_hidden") not in (None, 4 * hidden):
            return layers
        vocab = self.count("vocab") or self.source.vocab
        return max(round((billions * GIGA - vocab * hidden) / (12 * hidden**2)), 1)

    def _heads(self, hidden: int | None) -> int | None:
        """The printed heads; where blank, those nearest to a width of 128 that tp divides."""
        heads = self.count("heads")
        if heads or not hidden:
            return heads
        tp = self.count("tp") or 1
        fitting = [a for a in range(tp, hidden // 32 + 1, tp) if hidden % a == 0]
        return min(fitting, key=lambda a: abs(hidden / a - 128), default=None)

    def _accelerator(self) -> Accelerator:
        gpu = accelerator(self.text("gpu_model"))
        watts = re.search(r"(\d{3,4}) W limit", self.notes)
        return replace(gpu, tdp_w=float(watts[1])) if watts else gpu

    def _micro_batch(self, batch: int, dp: int) -> int:
        """The printed one; one sequence where it is blank."""
        micro = self.count("micro_batch") or 1
        return max(min(micro, batch // dp), 1) if batch >= dp else micro

    def _precision(self) -> Precision:
        text = self.text("precision").lower()
        word = re.split(r"[\s(-]", text)[0] or ("fp16" if not self.source.flash else "bf16")
        kind = precision(word)
        return with_gradients(kind, 18) if self.source.fp32_gradients and kind.master else kind

    def _stack(self) -> str:
        words = f"{self.notes}; {self.text('precision')}"
        return "compiled" if re.search(self.source.compiled_where, words, re.IGNORECASE) else self.source.stack

    def _overlap_tp(self) -> bool:
        return "tp" in self.source.overlap or (self.named(r"async.?TP|comm overlap") and not self.named("vanilla TP"))

    def _container(self) -> tuple[int, int]:
        """Year and month of NVIDIA's container that the notes name, (0, 0) where they name none."""
        month = re.search(r"container (\d\d)\.(\d\d)", self.notes)
        return (int(month[1]), int(month[2])) if month else (0, 0)

    def _experts(self, architecture: Model, ranks: int) -> int:
        """The printed ep; where DeepEP is named without a number, as many ranks as divide the experts."""
        if architecture.moe is None:
            return 1
        ep = self.count("ep")
        if ep is None and self.named("DeepEP"):
            return math.gcd(architecture.moe.experts, ranks)
        return ep or 1

    def _expert_tp(self, architecture: Model, tp: int, others: int) -> int:
        """Over how many ranks each expert is cut, where the source cuts them at all and that divides the ranks."""
        cut = (
            architecture.moe is not None
            and self.source.expert_tp
            and others % self._experts(architecture, tp * others) == 0
        )
        return tp if cut else 1

    def _chunks(self, architecture: Model, pp: int) -> int:
        vpp = self.count("vpp")
        if pp == 1:
            return 1
        if vpp:
            return vpp
        if isinstance(self.source.chunks, tuple):
            return dict(self.source.chunks).get(architecture.layers, 1)
        if self.source.chunks == "layers" and self.text("schedule").lower() != "1f1b":
            return max(math.ceil(architecture.layers / pp), 1)
        return 1

    def _sequence_parallel(self, tp: int) -> bool:
        word = self.text("sp").lower()
        return tp > 1 and (word == "yes" or (not word and self.source.sp))

    def _recompute(self) -> str:
        word = self.text("recompute").lower() or self.source.recompute
        return self.source.selective if word == "selective" else word

    def _nic(self, gpu: Accelerator, node: int) -> float:
        """Bytes per second of a rank's NIC: the printed network, else that of the GPU's reference machine."""
        text = self.text("inter_node_net")
        rate = re.search(r"([\d.]+)\s*([GT])b/s", text)
        if rate is None:
            gbits = {"volta": 100 * 4 / node if node < 16 else 50, "ampere": 200, "ada": 200, "hopper": 400}
            usual = 800 if gpu.name.startswith(("B300", "GB300")) else 400
            return gbits.get(gpu.generation, usual) * GIGA / 8
        bits = float(rate[1]) * {"G": GIGA, "T": 1e12}[rate[2]]
        many = re.search(r"(\d+)x\d|x(\d+) per node", text)
        if re.search(r"per GPU", text):
            return bits / 8
        ports = int(many[1] or many[2]) if many else 1
        return bits * ports / node / 8
