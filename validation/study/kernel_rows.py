"""Measured all-reduces of serving frameworks: a row each, with the kernel that the framework runs by its rules.

The columns are those of ``validation/kernels/custom_all_reduce.csv``: `message_size` counts elements, `latency` is
milliseconds. What can't be predicted is counted by device with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from commsim.collectives.semantics import ITEM_BYTES
from commsim.errors import CommsimError, Fault, LogFormatError
from commsim.kernels.choice import Framework, KernelCall, KernelChoice, Release, choose
from commsim.kernels.device import KernelDevice, kernel_device
from commsim.measure.csv_tables import CsvRecord, csv_records
from commsim.nccl.operation import OTHER_DTYPE_NAMES
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset
from commsim.training.accelerator import accelerator_of_board
from study.paths import VALIDATION

PROJECT = VALIDATION / "kernels" / "custom_all_reduce.csv"
NCCL_CURVES = VALIDATION / "silicon"

COLUMNS = ("framework", "version", "device", "kernel_source", "allreduce_dtype", "num_gpus", "message_size", "latency")

FRAMEWORKS: dict[str, Framework] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "tensorrt_llm",
    "flashinfer": "flashinfer",
}

MACHINES = {
    "A100-SXM4-40GB": "dgx-a100",
    "A100-SXM4-80GB": "dgx-a100",
    "A800-SXM4-80GB": "a800",
    "H100-SXM5-80GB": "hgx-h100",
    "H800-SXM5-80GB": "h800",
    "H20-SXM5-96GB": "h20",
    "H200-SXM5-141GB": "hgx-h200",
    "B200-SXM-180GB": "hgx-b200",
    "B300-SXM-288GB": "hgx-b300",
    "GB200-NVL72": "gb200-nvl72",
    "GB300-NVL72": "gb300-nvl72",
}
"""The machine whose NCCL answers where a framework falls back to it."""

NCCL_VERSION = (2, 27, 5)
"""Of NCCL beside the frameworks: that of torch 2.9, which vLLM 0.14 and SGLang 0.5.9 require; taken for all."""

MILLI = 1e-3

MOST_ELEMENTS = 1 << 40
"""More of them no GPU holds."""


@dataclass(frozen=True)
class KernelRow:
    """A measured call: what ran it by the framework's rules, and NCCL's seconds where that is NCCL."""

    call: KernelCall
    cuda_graph: bool
    choice: KernelChoice
    nccl_s: float
    seconds: float

    @property
    def curve(self) -> tuple[str, Release, bool, str, int]:
        """What rows of one curve have in common; collections of one release count as one."""
        return self.call.framework, self.call.release, self.cuda_graph, self.call.device.name, self.call.ranks

    @property
    def copied(self) -> int:
        """Copies that the benchmark makes beside the call: outside of graphs it clones the tensor before each."""
        return 0 if self.cuda_graph else 1


@dataclass(frozen=True)
class KernelTable:
    """The rows of a file that can be predicted, and of those that can't: how many by device and reason."""

    rows: tuple[KernelRow, ...]
    refused: dict[tuple[str, str], int]


def read_table(path: Path) -> KernelTable:
    """The rows of a file; LogFormatError with file and line where it is none of them."""
    rows: list[KernelRow] = []
    refused: Counter[tuple[str, str]] = Counter()
    faults: list[Fault] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for record in _checked(csv_records(stream, path), path):
                try:
                    made = _row(record)
                except LogFormatError as error:
                    faults += error.faults
                    if len(faults) == 20:  # a screen
                        break
                    continue
                if isinstance(made, str):
                    refused[record["device"], made] += 1
                else:
                    rows.append(made)
    except (OSError, UnicodeDecodeError) as error:
        raise LogFormatError([Fault(str(path), 0, 0, "", f"cannot be read: {error}")]) from None
    if faults:
        raise LogFormatError(faults)
    if not rows and not refused:
        raise LogFormatError([Fault(str(path), 1, 1, "", "found no rows below the header, expected some")])
    return KernelTable(tuple(rows), dict(refused))


def _checked(records: Iterator[CsvRecord], path: Path) -> Iterator[CsvRecord]:
    for i, record in enumerate(records):
        missing = [name for name in COLUMNS if name not in record.header]
        if i == 0 and missing:
            text = f"found no column {', '.join(missing)} in the header {', '.join(record.header)[:200]!r}"
            if len(record.header) == 1 and ";" in record.header[0]:
                text = "found fields with ';' between them, expected ','"
            raise LogFormatError([Fault(str(path), 1, 1, "", text)])
        yield record


def _row(record: CsvRecord) -> KernelRow | str:
    """The row, or why it can't be predicted."""
    if _letters(record.get("op_name")) not in ("", "allreduce"):
        return f"its op_name is {record['op_name'][:40]}, not all_reduce"
    seconds = _milliseconds(record) * MILLI
    ranks, elements = record.integer("num_gpus"), record.integer("message_size")
    if ranks < 2 or elements < 1:
        raise record.fault("num_gpus" if ranks < 2 else "message_size", "2 or more" if ranks < 2 else "1 or more")
    if elements > MOST_ELEMENTS:
        raise record.fault("message_size", f"at most {MOST_ELEMENTS:,} elements")
    framework = FRAMEWORKS.get(_letters(record["framework"]).replace("tensorrt", "trt"))
    if framework is None:
        known = ", ".join(FRAMEWORKS.values())
        return f"no rules of the framework {record['framework'][:40]!r} are known, but those of {known}"
    written = record["allreduce_dtype"]
    dtype = OTHER_DTYPES.get(written, written)
    if dtype not in ITEM_BYTES:
        raise record.fault("allreduce_dtype", f"one of {', '.join([*ITEM_BYTES, *OTHER_DTYPES])}")
    release = _release(record)
    try:
        device = device_of(record["device"])
        call = KernelCall(framework, release, device, ranks, elements * ITEM_BYTES[dtype], dtype=dtype)
        choice = choose(call)
        nccl_s = nccl_seconds(device.name, ranks, call.nbytes) if choice.kernel == "nccl" else 0.0
    except CommsimError as error:
        return str(error).splitlines()[0]
    return KernelRow(call, not record["kernel_source"].endswith("_eager"), choice, nccl_s, seconds)


OTHER_DTYPES = {**OTHER_DTYPE_NAMES, "fp8": "float8_e4m3"}
"""Names of types in such tables beside those of torch."""


def _letters(text: str) -> str:
    """Small, without what stands between words: TensorRT-LLM, tensorrt_llm and trtllm differ by no more."""
    return re.sub(r"[-_ ]", "", text.lower())


def _milliseconds(record: CsvRecord) -> float:
    try:
        value = record.number("latency")
    except LogFormatError:
        value = 0.0
    if not value > 0:
        raise record.fault("latency", "milliseconds above 0, from 1e-9 to 1e15")
    return value


def _release(record: CsvRecord) -> Release:
    match = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", record["version"])
    if match is None:
        raise record.fault("version", "a release such as 0.24.0")
    return int(match[1]), int(match[2]), int(match[3] or 0)


@lru_cache(maxsize=64)
def device_of(board: str) -> KernelDevice:
    """The datasheet's figures by the name that the driver gives a board; CommsimError where there are none."""
    gpu = accelerator_of_board(board)
    if gpu is None:
        raise CommsimError(f"no datasheet of {board} is known")
    return kernel_device(gpu)


@lru_cache(maxsize=128)
def _nccl(gpu: str, ranks: int) -> Predictor:
    if gpu not in MACHINES:
        raise CommsimError(f"no machine of {gpu} is known, whose NCCL would answer")
    topology = load_preset(MACHINES[gpu], nodes=1, gpus_per_node=ranks)
    return Predictor(topology, Options(version=NCCL_VERSION))


@lru_cache(maxsize=8192)
def nccl_seconds(gpu: str, ranks: int, nbytes: int) -> float:
    """NCCL's time on a machine of such GPUs."""
    return _nccl(gpu, ranks).predict("all_reduce", nbytes).time_s
