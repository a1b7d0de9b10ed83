"""Measured training steps of a table: every row as a step of the model with its seconds, or why it cannot be one.

Blank columns are filled by `commsim.accuracy.facts`. Of `notes` only fixed words count that name a configuration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from commsim.accuracy.cells import NEEDED, number, read_table
from commsim.accuracy.facts import filled
from commsim.accuracy.flops import FLOPS, flops_per_token
from commsim.errors import ScenarioError
from commsim.training.accelerator import Accelerator, accelerator
from commsim.training.memory import Framework, peak_bytes
from commsim.training.model import Model, model
from commsim.training.pipeline_schedules import SCHEDULES
from commsim.training.precision import Precision, precision, with_gradients
from commsim.training.spec import DISPATCHERS, KERNELS, MODULES, RECOMPUTE, Step
from commsim.units import GIGA

MEMORY_MARGIN = 1.12
"""A row that was run has fit. Of published peaks 95 % are overestimated by less (`commsim validate training`)."""

BATCH_TOLERANCE = 0.1
"""By how much a printed batch may miss whole micro-batches on every rank: some papers print round numbers."""

MEASURED = ("iteration_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct", "peak_mem_GiB")


@dataclass(frozen=True)
class TrainingRow:
    """A row: its step with the seconds measured (None where no figure gives them), or the reason why there is none."""

    id: str
    step: Step | None = None
    measured_s: float | None = None
    reason: str = ""
    send_chunk: int = 0  # NCCL_P2P_NET_CHUNKSIZE; 0: NCCL's own


def read_rows(path: Path) -> list[TrainingRow]:
    """The rows of a file; LogFormatError where it is not such a table."""
    return [RowReader(cells).row() for cells in read_table(path, NEEDED)]


class RowReader:
    """The cells of a row as numbers or words, with the rules for blank ones.

    The measured cells are read only after the step stands.
    """

    def __init__(self, cells: Mapping[str, str]) -> None:
        self.cells = {name: text for name, text in cells.items() if name not in MEASURED}
        self._printed = {name: text for name, text in cells.items() if name in MEASURED and text}
        self.notes = f"{cells.get('notes', '')}; {cells.get('table', '')}; {cells.get('model', '')}"

    def row(self) -> TrainingRow:
        """The row as a step, or with the reason why not."""
        try:
            self.cells = filled(self.cells)
            step = self.step()
            chunk = self.count("send_chunk") or (self.count("pipeline_chunk") or 0) * (step.pp > 1)
            return TrainingRow(self.cells["id"], step, self.seconds(step), send_chunk=chunk)
        except ScenarioError as exc:
            return TrainingRow(self.cells["id"], reason=str(exc))

    def text(self, name: str) -> str:
        return self.cells.get(name, "")

    def number(self, name: str) -> float | None:
        """A number that is neither negative nor absurd, None where blank."""
        text = self.text(name)
        if not text:
            return None
        value = number(text)
        if not 0 <= value < 2**24:
            raise ScenarioError(f"{name} = {text!r:.40}, expected a number")
        return value

    def measured(self, name: str) -> float:
        """A measured figure, 0 where there is none; ScenarioError where it is not a positive number."""
        text = self._printed.get(name, "")
        value = number(text) if text else 0.0
        if text and not 0 < value < 1e12:
            raise ScenarioError(f"{name} = {text!r:.40}, expected a positive number, or a blank for none")
        return value

    def count(self, name: str) -> int | None:
        """A whole number, None where blank."""
        value = self.number(name)
        if value is not None and value % 1:
            raise ScenarioError(f"{name} = {self.text(name)}, expected a whole number")
        return None if value is None else round(value)

    def ranks(self, name: str) -> int:
        """A whole number of at least 1, which a blank is."""
        value = self.count(name)
        if value == 0:
            raise ScenarioError(f"{name} = 0, expected at least 1")
        return value or 1

    def named(self, pattern: str) -> bool:
        """Whether the notes, table or model name a configuration."""
        return re.search(pattern, self.notes, re.IGNORECASE) is not None

    def step(self) -> Step:
        """The row's step; ScenarioError names what is missing."""
        missing = [n for n in ("gpu_model", "n_gpus", "seq_len", "global_batch_seqs", "tp", "pp") if not self.text(n)]
        architecture = self.model()
        if architecture is None:
            missing.append("layers, hidden, heads (and no preset of this model name)")
        if missing or architecture is None:
            raise ScenarioError(f"missing: {', '.join(missing)}")
        gpu = self._accelerator()
        n, tp, pp, cp = (self.ranks(c) for c in ("n_gpus", "tp", "pp", "cp"))
        dp = n // (tp * pp * cp)
        if dp < 1 or dp * tp * pp * cp != n:
            raise ScenarioError(f"tp * pp * cp = {tp} * {pp} * {cp} does not divide n_gpus = {n}")
        batch = self.count("global_batch_seqs") or 1
        micro = self._micro_batch(batch, dp)
        node = self.count("gpus_per_node") or 8
        chunks = self._chunks(architecture.layers, pp)
        moe, overlap = architecture.moe is not None, self._overlap()
        graphs = self._one_of("cuda_graphs", ("yes", "no", "experts"))
        self._one_of("flops", FLOPS)
        imbalance = self.number("imbalance") or 1.0
        if imbalance < 1:
            raise ScenarioError(f"imbalance = {imbalance}, expected at least 1: the busiest over the mean")
        ep = self._experts(architecture, tp * cp * dp)
        attention = self._one_of("attention", ("unfused", *KERNELS))
        step = Step(
            model=architecture,
            accelerator=gpu,
            precision=self._precision(),
            seq_len=self.count("seq_len") or 1,
            micro_batch_size=micro,
            global_batch_size=self._whole_batch(batch, micro * dp),
            tp=tp,
            pp=pp,
            cp=cp,
            dp=dp,
            ep=ep,
            expert_tp=tp if moe and self.yes("expert_tp") and cp * dp % ep == 0 else 1,
            virtual_stages=chunks,
            schedule=self._schedule(chunks),
            sequence_parallel=tp > 1 and self.yes("sp"),
            zero_stage=min(self.count("zero_stage") or 0, 3),
            frozen_weights=self.yes("lora") or self.named("LoRA"),
            stack=self.text("stack").lower(),
            flash_attention=attention != "unfused",
            attention_kernel="open" if attention == "open" else "vendor",
            cuda_graphs=graphs == "yes" or (graphs == "experts" and moe),
            overlap_dp="dp" in overlap,
            overlap_param_gather="params" in overlap,
            overlap_tp="tp" in overlap,
            overlap_ep="ep" in overlap,
            overlap_pp="pp" in overlap,
            gpus_per_node=node,
            nic_bytes_per_s=self._nic(gpu, node),
            imbalance=imbalance if moe else 1.0,
            expert_dispatch=self._dispatch(gpu),
            context_parallel=self.text("context_parallel").lower(),
            recompute_modules=tuple(self._words("recompute_modules", MODULES)),
            early_stop=self.yes("early_stop"),
        )
        return self._recomputing(step)

    def _recomputing(self, step: Step) -> Step:
        """The step with its recomputation: of several words the first that fits in memory, else the last."""
        *lean, last = self._words("recompute", RECOMPUTE)
        framework = cast(Framework, self.text("memory") or "megatron")
        for word in lean:
            less = replace(step, recompute=word)
            if peak_bytes(less, framework) <= MEMORY_MARGIN * step.accelerator.room_bytes:
                return less
        return replace(step, recompute=last)

    def _one_of(self, name: str, choices: Sequence[str]) -> str:
        """A word of a column; ScenarioError where it is none of the choices."""
        word = self.text(name).lower()
        if word not in choices:
            raise ScenarioError(f"{name} = {word!r:.40}, expected one of {', '.join(choices)}")
        return word

    def _words(self, name: str, choices: Sequence[str]) -> list[str]:
        """The words of a column; ScenarioError where there is none, or one that is none of the choices."""
        words = self.text(name).lower().split()
        if wrong := [w for w in words if w not in choices] or ([] if words else [""]):
            raise ScenarioError(f"{name} = {wrong[0]!r:.40}, expected some of {', '.join(choices)}")
        return words

    def yes(self, name: str) -> bool:
        """Whether a column says yes; blank is no."""
        return bool(self.text(name)) and self._one_of(name, ("yes", "no", "true", "false")) in ("yes", "true")

    def _overlap(self) -> set[str]:
        """What moves beside compute: the words of the column, and tp where the notes name it."""
        words = set(re.split(r"[\s,;]+", self.text("overlap").lower())) - {"", "none"}
        if wrong := words - {"dp", "params", "tp", "ep", "pp"}:
            raise ScenarioError(f"overlap = {sorted(wrong)[0]!r:.40}, expected some of dp, params, tp, ep, pp, or none")
        asynchronous = self.named(r"async.?TP|comm overlap") and not self.named("vanilla TP")
        return words | ({"tp"} if asynchronous else set())

    def _dispatch(self, gpu: Accelerator) -> str:
        """What sends tokens to their experts: of two words the second is for racks that NVLink joins."""
        words = self._words("expert_dispatch", DISPATCHERS)
        return words[-1 if gpu.rack > 1 else 0]

    def _chunks(self, layers: int, pp: int) -> int:
        """Model chunks of a stage: a number, or one layer each where the pipeline is an interleaved one."""
        number = 0 if self.text("vpp").lower() == "layers" else self.ranks("vpp")
        schedule = self._schedule_word()
        if schedule in ("zb_v", "dualpipe_v"):
            return 2
        if pp == 1 or number:
            return number if pp > 1 else 1
        if schedule not in ("", "none", "interleaved_1f1b"):
            return 1
        most = math.ceil(layers / pp)  # embedding and output may count as layers
        return max(most if most * pp <= layers + 2 else layers // pp, 1)

    def _schedule_word(self) -> str:
        words = {"none": "", "1f1b interleaved": "interleaved_1f1b"} | {name: name for name in SCHEDULES} | {"": ""}
        return words[self._one_of("schedule", tuple(words))]

    def _schedule(self, chunks: int) -> str:
        """The named schedule; 1F1B with several chunks is the interleaved one."""
        word = self._schedule_word()
        if word in ("", "1f1b", "interleaved_1f1b"):
            return "interleaved_1f1b" if chunks > 1 else "1f1b"
        return word

    def model(self) -> Model | None:
        """The architecture, with a multi-token-prediction module as one more layer where it is trained too."""
        built = self._architecture()
        if built is None:
            return None
        return replace(built, layers=built.layers + self.yes("mtp"), gated_mlp=self.yes("gated_mlp") or built.gated_mlp)

    def _architecture(self) -> Model | None:
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
        alike = (preset.hidden, preset.heads) == (hidden, heads)
        moe = preset.moe
        if moe is not None and layers != preset.layers:
            dense = re.search(r"(\d+) dense layer", self.notes)
            moe = replace(moe, dense_layers=int(dense[1]) if dense else 0)
        return replace(
            preset,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=self.count("kv_heads") or (preset.kv_heads if alike else heads),
            head_dim=preset.head_dim if alike else max(hidden // heads, 1),
            ffn_hidden=ffn,
            vocab=self.count("vocab") or (preset.vocab if alike else self._vocab()),
            gated_mlp=preset.gated_mlp if preset.hidden == hidden else ffn % hidden != 0,
            moe=moe,
        )

    def _layers(self, hidden: int | None) -> int | None:
        """The printed layers; blank ones follow from the parameters of a GPT, 12 L h^2 + V h."""
        layers, billions = self.count("layers"), self.number("params_B")
        if layers or not hidden or not billions or self.count("ffn_hidden") not in (None, 4 * hidden):
            return layers
        return max(round((billions * GIGA - self._vocab() * hidden) / (12 * hidden**2)), 1)

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
        limit = self.number("power_limit_w") or (float(watts[1]) if watts else 0.0)
        if limit and not 0.1 * gpu.tdp_w <= limit <= 1.5 * gpu.tdp_w:
            raise ScenarioError(f"power_limit_w = {limit:g}, expected watts near those of {gpu.name}, {gpu.tdp_w:g}")
        return replace(gpu, tdp_w=limit) if limit else gpu

    def _micro_batch(self, batch: int, dp: int) -> int:
        """The printed one; one sequence where it is blank."""
        micro = self.count("micro_batch") or 1
        return max(min(micro, batch // dp), 1) if batch >= dp else micro

    def _whole_batch(self, batch: int, passed: int) -> int:
        """The nearest batch that passes of so many sequences fill; ScenarioError where it is another batch."""
        whole = max(round(batch / passed), 1) * passed
        if not math.isclose(whole, batch, rel_tol=BATCH_TOLERANCE):
            raise ScenarioError(f"global_batch_seqs = {batch}, expected a multiple of micro_batch * dp = {passed}")
        return whole

    def _precision(self) -> Precision:
        formats = precision(re.split(r"[\s(-]", self.text("precision").lower())[0])
        wide = self._one_of("gradients", ("fp32", "bf16", "fp16")) == "fp32"
        return with_gradients(formats, 18 if wide else 16) if formats.master else formats

    def _vocab(self) -> int:
        return self.count("vocab") or 51200

    def _experts(self, architecture: Model, ranks: int) -> int:
        """The printed ep; where DeepEP is named without a number, as many ranks as divide the experts."""
        if architecture.moe is None:
            return 1
        ep = self.count("ep")
        if ep is None and self.named("DeepEP"):
            return math.gcd(architecture.moe.experts, ranks)
        return ep or 1

    def _nic(self, gpu: Accelerator, node: int) -> float:
        """Bytes per second of a rank's NIC: the printed network, else that of the GPU's reference machine."""
        text = self.text("inter_node_net")
        rate = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)\s*([GT])b/s", text)
        if rate is None:
            gbits = {"volta": 100 * 4 / node if node < 16 else 50, "ampere": 200, "ada": 200, "hopper": 400}
            usual = 800 if gpu.name.startswith(("B300", "GB300")) else 400
            return gbits.get(gpu.generation, usual) * GIGA / 8
        bits = float(rate[1]) * {"G": GIGA, "T": 1e12}[rate[2]]
        if not 0 < bits < 1e15:
            raise ScenarioError(f"inter_node_net = {text!r:.60}, expected a rate such as 400 Gb/s")
        many = re.search(r"([1-9]\d*)x\d|x([1-9]\d*) per node", text)
        if re.search(r"per GPU", text):
            return bits / 8
        ports = int(many[1] or many[2]) if many else 1
        return bits * ports / node / 8

    def seconds(self, step: Step) -> float | None:
        """Seconds per step, printed or from a rate; None where the row prints no figure that gives them."""
        if seconds := self.measured("iteration_time_s"):
            return seconds
        tokens = float(self.count("global_batch_seqs") or 1) * step.seq_len  # as printed, not rounded to micro-batches
        per_rank = tokens / step.world_size
        if rate := self.measured("tokens_per_s_per_gpu"):
            return per_rank / rate
        if rate := self.measured("tflops_per_gpu"):
            return self.flops_per_token(step) * per_rank / (rate * 1e12)
        if share := self.measured("mfu_pct"):
            if share > 100:
                raise ScenarioError(f"found mfu_pct {share:g}, expected at most 100")
            model_flops = self.flops_per_token(step, of_peak=True)
            return model_flops * per_rank / (share / 100 * step.accelerator.half_peak)
        return None

    def flops_per_token(self, step: Step, *, of_peak: bool = False) -> float:
        """FLOPs per token that a printed rate counts; a share of the peak counts model FLOPs, whatever a rate does."""
        convention = self._one_of("flops", FLOPS)
        return flops_per_token(step, "full" if of_peak and convention == "hardware" else convention)
