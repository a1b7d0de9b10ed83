"""Measured runs of serving frameworks: a row each, as a replica with the load that it had, or why it can't be answered.

The columns are those of `serving.csv` of the shared data; unknown ones are ignored. `batch_size` is the concurrency per
replica or per group of attention data parallelism; `concurrency` that of the whole run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from commsim.errors import CommsimError, Fault, LogFormatError
from commsim.generation.formats import Formats, formats
from commsim.generation.replica import Engine, Replica, ServingFramework
from commsim.generation.requests import MOST_TOKENS
from commsim.generation.steady import ClosedLoop
from commsim.measure.csv_tables import CsvRecord, csv_records
from commsim.training.accelerator import Accelerator, accelerator
from commsim.training.model import Model, model

COLUMNS = ("backend", "model_path", "system", "isl", "osl", "tp_size", "silicon_tpot_ms")

FRAMEWORKS: Mapping[str, ServingFramework] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "tensorrt_llm",
    "tensorrtllm": "tensorrt_llm",
    "hf": "hf",
    "transformers": "hf",
}

MILLI = 1e-3

MOST_CLIENTS, MOST_GPUS = 1_000_000, 4096
"""Of a run, and of one replica: what is above is no serving run."""


@dataclass(frozen=True)
class Split:
    """Engines that read prompts apart from those that decode, and how many there are of each; ``gpus``: of a pool whose
    engines no column says, which `study.serving_queue` then chooses."""

    reader: Replica
    readers: int = 1
    decoders: int = 1
    gpus: int = 0


@dataclass(frozen=True)
class ServingRow:
    """A measured run: the replica (that decodes), its load, seconds to the first and from token to token (0: not
    stated)."""

    id: str
    replica: Replica
    split: Split | None
    loop: ClosedLoop
    first_s: float
    each_s: float
    system: str
    mode: str
    architecture: str

    @property
    def framework(self) -> str:
        """Of the replica."""
        return self.replica.engine.framework


@dataclass(frozen=True)
class Refused:
    """A row that can't be answered, and why."""

    id: str
    reason: str


@dataclass(frozen=True)
class ServingTable:
    """The rows of a file."""

    rows: tuple[ServingRow, ...]
    refused: tuple[Refused, ...]

    @property
    def count(self) -> int:
        """All rows of the file."""
        return len(self.rows) + len(self.refused)


def read_runs(path: Path) -> ServingTable:
    """The rows of a file; LogFormatError with file and line where it is no table of runs."""
    rows: list[ServingRow] = []
    refused: list[Refused] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for i, record in enumerate(csv_records(stream, path)):
                if i == 0 and (missing := [name for name in COLUMNS if name not in record.header]):
                    text = f"found no column {', '.join(missing)} in the header {', '.join(record.header)[:200]!r}"
                    raise LogFormatError([Fault(str(path), 1, 1, "", text)])
                name = record.get("id") or str(i)
                try:
                    rows.append(_row(record, name))
                except CommsimError as error:
                    refused.append(Refused(name, _reason(error)))
    except (OSError, UnicodeDecodeError) as error:
        raise LogFormatError([Fault(str(path), 0, 0, "", f"cannot be read: {error}")]) from None
    if not rows and not refused:
        raise LogFormatError([Fault(str(path), 1, 1, "", "found no rows below the header, expected some")])
    return ServingTable(tuple(rows), tuple(refused))


def _reason(error: CommsimError) -> str:
    if isinstance(error, LogFormatError) and error.faults:
        return error.faults[0].message
    return str(error).splitlines()[0]


def _number(record: CsvRecord, name: str) -> float:
    """A number above 0, or 0 where the field is empty, missing, or says that there is none."""
    text = record.get(name).strip().lower()
    if text in ("", "nan", "none", "null", "-"):
        return 0.0
    try:
        value = float(text)
    except ValueError:
        raise CommsimError(f"found {name} = {text[:40]!r}, expected a number") from None
    if not 0 <= value < 1e12:
        raise CommsimError(f"found {name} = {text[:40]}, expected a number of 0 or more")
    return value


def _at_most(record: CsvRecord, name: str, most: int) -> float:
    """A number that may be left out (0), but where something stands it is one, and no larger than that."""
    text = record.get(name).strip()
    try:
        possible = not text or text.lower() in ("none", "null", "-") or 0 <= float(text) <= most
    except ValueError:
        possible = False
    if not possible:
        raise CommsimError(f"found {name} = {text[:40]}, expected a number up to {most:,}")
    return _number(record, name)


def _ranks(record: CsvRecord, name: str) -> int:
    """Whole ranks of one way to cut the model; 0 where it is not stated."""
    value = _number(record, name)
    if value != int(value) or value > MOST_GPUS:
        raise CommsimError(f"found {name} = {value:g}, expected whole ranks up to {MOST_GPUS:,}")
    return int(value)


def _row(record: CsvRecord, name: str) -> ServingRow:
    of, gpu = served_model(record["model_path"]), system_gpu(record["system"])
    layout = layout_of(record, of, gpu)
    framework = FRAMEWORKS.get(re.sub(r"[-_ ]", "", record["backend"].lower()))
    if framework is None:
        raise CommsimError(f"no model of the framework {record['backend'][:40]!r}, but of {', '.join(FRAMEWORKS)}")
    mode = record.get("mode").strip().lower() or "agg"
    isl, osl = _number(record, "isl"), _number(record, "osl")
    each_s, first_s = (_number(record, f"silicon_{what}_ms") * MILLI for what in ("tpot", "ttft"))
    stated, each = (_at_most(record, name, MOST_CLIENTS) for name in ("concurrency", "batch_size"))
    concurrency = stated or each * layout.groups
    for value, what in ((isl, "isl"), (osl, "osl"), (each_s, "silicon_tpot_ms"), (concurrency, "concurrency")):
        if value <= 0:
            raise CommsimError(f"it states no {what}")
    for value, what in ((isl, "isl"), (osl, "osl")):
        if not 1 <= value <= MOST_TOKENS:
            raise CommsimError(f"found {what} = {value:g}, expected 1 to {MOST_TOKENS:,} tokens")
    if osl < 2:
        raise CommsimError(f"found osl = {osl:g}: an answer of one token has no time per output token")
    if concurrency > MOST_CLIENTS:
        raise CommsimError(f"found {concurrency:,.0f} requests at once, expected at most {MOST_CLIENTS:,}")
    if mode.startswith("agg") and layout.pool:
        mode = "pool"
    replica = Replica(
        model=of,
        gpu=gpu,
        engine=Engine(framework, _release(record.get("backend_version"))),
        tp=layout.tp,
        pp=layout.pp,
        attention_dp=layout.attention_dp,
        moe_tp=layout.moe_tp,
        moe_ep=layout.moe_ep,
        formats=_formats(record, of),
    )
    loop = ClosedLoop(max(round(concurrency), 1), isl, osl)
    split = None
    if layout.pool:
        replica, split = pool_of(replica, layout.pool)
    elif mode.startswith("disagg"):
        split = Split(replica)
    return ServingRow(name, replica, split, loop, first_s, each_s, record["system"], mode, architecture(of))


# -- names ---------------------------------


def served_model(path: str) -> Model:
    """The preset of a path as serving frameworks take it: owner, formats and dates of a name count for nothing."""
    return model(path.strip().rstrip("/").split("/")[-1])


def architecture(of: Model) -> str:
    """What models of the same shape have in common: DeepSeek-R1, V3 and V3.1 are one, sizes of a family are several."""
    return of.name


SYSTEMS = {
    "l40s": "L40S-48GB",
    "a100_pcie": "A100-PCIe-80GB",
    "h100_pcie": "H100-PCIe-80GB",
    "h100_nvl": "H100-NVL-94GB",
}


@lru_cache(maxsize=64)
def system_gpu(name: str) -> Accelerator:
    """The datasheet of a system such as ``b200_sxm``."""
    key = name.strip().lower()
    if not key:
        raise CommsimError("it states no system")
    try:
        return accelerator(SYSTEMS.get(key) or re.sub(r"_(sxm\d?|nvl\d*)$", "", key).replace("_", "-"))
    except CommsimError:
        raise CommsimError(f"found the system {name.strip()[:40]!r}, of whose GPU there is no datasheet") from None


def _release(text: str) -> tuple[int, int, int]:
    match = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text.strip())
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def _formats(record: CsvRecord, of: Model) -> Formats:
    """Formats of weights, experts and cache by the columns of quantisation; the cache is narrow where weights are."""
    stated = [record.get(name).strip().lower() for name in ("gemm_quant_mode", "moe_quant_mode", "precision")]
    weights = next((s for s in (stated[0], stated[2]) if s not in ("", "nan", "none")), "bf16")
    experts = next((s for s in (stated[1], weights) if s not in ("", "nan", "none")), weights)
    wide = weights in ("bf16", "bfloat16", "fp16", "float16")
    return formats(_blocks(weights, of), _blocks(experts, of), "bf16" if wide else "fp8")


def _blocks(name: str, of: Model) -> str:
    """Models with experts are published in blocks of fp8 (DeepSeek-V3, Qwen3, MiniMax-M2), whatever a source says."""
    return "fp8_block" if name == "fp8" and of.moe is not None else name


# -- layout ---------------------------------


@dataclass(frozen=True)
class Layout:
    """How a model is cut; `groups`: what the concurrency per replica is to be multiplied with; `pool`: GPUs of engines
    that no column says."""

    tp: int
    pp: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    groups: int
    pool: int = 0


def layout_of(record: CsvRecord, of: Model, gpu: Accelerator) -> Layout:
    """The mesh that the columns mean.

    Sources count some meshes twice, which the same runs under other columns show: tp times ep where both cut the same
    GPUs (16 with 4 and 4, beyond what NVLink joins), and a group of attention dp for each of tp ranks (4 with 4).
    """
    tp, dp, moe_tp, ep, pp = (
        _ranks(record, name) for name in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "pp_size")
    )
    if not tp:
        raise CommsimError("it states no tp_size")
    if (gpus := tp * max(dp, 1) * max(pp, 1)) > MOST_GPUS:
        raise CommsimError(f"found a replica of {gpus:,} GPUs, expected at most {MOST_GPUS:,}")
    moe_tp, ep, pp = max(moe_tp, 1), max(ep, 1), max(pp, 1)
    concurrency, per_group = (_at_most(record, name, MOST_CLIENTS) for name in ("concurrency", "batch_size"))
    ratio = round(concurrency / per_group) if concurrency and per_group else 1
    if not dp:  # not stated: told by the concurrency per group
        tp, dp = (1, tp) if of.moe is not None and ratio == tp else (tp, 1)
    groups = dp
    domain = gpu.nvlink_domain if gpu.nvlink_domain > 1 else 8
    if dp > 1 and dp == tp:
        dp, ep, moe_tp = 1, tp, 1
    elif moe_tp > 1 and ep > 1 and tp * dp > domain:
        tp, dp = (moe_tp, 1) if tp > 1 else (1, moe_tp)
        ep, moe_tp = moe_tp, 1
    elif of.heads % tp:
        return Layout(1, 1, 1, 1, 1, groups, tp * dp)  # no head is cut
    if of.moe is None:
        ep, moe_tp = 1, tp
    return Layout(tp, pp, dp, moe_tp, ep, groups)


ENGINE_GPUS, READER_GPUS = 8, 4
"""GPUs of an engine that decodes, and of one that reads, of a pool whose engines no column says."""


def pool_of(one: Replica, gpus: int) -> tuple[Replica, Split]:
    """An engine that decodes of a pool of so many GPUs, and what is known of the pool."""
    if gpus < ENGINE_GPUS + READER_GPUS or gpus % READER_GPUS:
        raise CommsimError(f"its mesh of {gpus} GPUs cuts no head, and no pool of engines of 4 and 8 GPUs has so many")
    reader = replace(one, tp=READER_GPUS, moe_tp=READER_GPUS)
    return replace(one, tp=ENGINE_GPUS, moe_tp=ENGINE_GPUS), Split(reader, gpus=gpus)
