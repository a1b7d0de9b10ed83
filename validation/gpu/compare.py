"""Prints the page of a folder that `commsim gpu` has left on a machine with one GPU: measured beside predicted.

    python validation/gpu/compare.py FOLDER > page.md

Curves and their calibration are in the folder's ``report.html``. Here stands what one GPU can say: rates and steps of
the GPU, what a call costs, and of ranks that share it what NCCL chose and how many bytes went through its sockets.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from commsim.errors import CommsimError
from commsim.lab.findings import Choice, logged_choices
from commsim.lab.machine import SCENARIO
from commsim.lab.stages import COLLECTIVES, RATES, SINGLE, STEPS, step_tasks
from commsim.measure.capture import CHOICES
from commsim.measure.run_folder import CONDITIONS, TABLE, TRAINING
from commsim.measure.tasks import TrainingTask
from commsim.scenario.load import load_scenarios
from commsim.training.accelerator import Accelerator, accelerator_of_board
from commsim.training.compute import Values
from commsim.training.model import Model
from commsim.training.parameters import read_values, shipped_values
from commsim.training.precision import precision
from commsim.training.spec import Step
from commsim.training.step_time import step_time
from commsim.units import format_bytes

_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "tf32": "tf32"}

Rows = list[Mapping[str, str]]


def page(folder: Path) -> str:
    """The page as Markdown."""
    said = _conditions(folder)
    lines = [f"# {said.get('gpu') or 'One GPU'}: measured beside predicted", "", *_machine(said)]
    for title, part in (
        ("Rates of the GPU", _rates(folder, said)),
        ("What a call costs", _launches(folder)),
        ("What NCCL chose", _choices(folder)),
        ("Bytes through the sockets", _bytes(folder)),
        ("Training steps on the GPU alone", _steps(folder, said)),
    ):
        lines += ["", f"## {title}", "", *part]
    return "\n".join(lines) + "\n"


def _conditions(folder: Path) -> dict[str, Any]:
    """The conditions of the first stage that has them."""
    for name in (COLLECTIVES, SINGLE, STEPS):
        said = _json(folder / name / CONDITIONS)
        if said:
            return said
    return {}


def _machine(said: Mapping[str, Any]) -> Iterator[str]:
    known = [f"{label} {said[key]}" for label, key in _CONDITIONS if said.get(key)]
    if known:
        yield ", ".join(known) + "."
    if said.get("meaning"):
        yield ""
        yield f"{str(said['meaning'])[:1].upper()}{str(said['meaning'])[1:]}."


_CONDITIONS = (
    ("NCCL", "nccl"), ("driver", "driver"), ("torch", "torch"), ("commsim", "commsim"),
    ("ranks that share the GPU:", "ranks_per_gpu"), ("begun", "started"),
)  # fmt: skip


def _rates(folder: Path, said: Mapping[str, Any]) -> Iterator[str]:
    """The best rate of each kind and type beside the datasheet's peak, and the share that training steps take."""
    rows = _table(folder / RATES / "rates.csv")
    if not rows:
        yield "They were not measured."
        return
    board = _board(said)
    best: dict[tuple[str, str], Mapping[str, str]] = {}
    for row in rows:
        key = row["kind"], row["dtype"]
        # Of copies the largest: the others may stay in a cache.
        if key not in best or row["kind"] == "copy" or float(row["per_second"]) > float(best[key]["per_second"]):
            best[key] = row
    yield from _heading("what", "type", "best shape", "measured", "of the datasheet", "taken in predictions")
    for (kind, dtype), row in best.items():
        rate = float(row["per_second"])
        peak, shipped = (None, None) if board is None else _peak(board, kind, dtype)
        yield _line(
            kind.replace("_", ", "), dtype, row["shape"], _rate(kind, rate),
            "" if peak is None else f"{100 * rate / peak:.1f} %", "" if shipped is None else f"{100 * shipped:.1f} %",
        )  # fmt: skip
    launch = next((row for row in rows if row["kind"] == "launch"), None)
    if launch is not None:
        yield ""
        yield (
            f"A launch took {1e6 / float(launch['per_second']):.2f} us; predictions take "
            f"{1e6 * shipped_values()['host']:.2f} us."
        )
    if board is None:
        yield ""
        yield f"There is no datasheet of {said.get('gpu', 'this GPU')} to compare with."


def _peak(board: Accelerator, kind: str, dtype: str) -> tuple[float | None, float | None]:
    """Datasheet's peak of a kind and type, and the share of it that shipped predictions take; None without one."""
    values = shipped_values()
    if kind == "copy":
        return board.memory_bytes_per_s, values["hbm"]
    short = _SHORT.get(dtype, dtype)
    name = {"matmul": "gemm", "attention": "attention"}.get(kind)
    if kind == "launch" or not board.supports(short):
        return None, None
    share = values.get(f"{name}.{board.generation}") if name and short == "bf16" else None
    return board.peak(short), share


def _rate(kind: str, per_second: float) -> str:
    if kind == "copy":
        return f"{per_second / 1e9:.0f} GB/s"
    return f"{per_second / 1e6:.3f} million/s" if kind == "launch" else f"{per_second / 1e12:.4g} TFLOP/s"


_CALL_COLUMNS = ("oop_time_us", "ip_time_us", "oop_min_us", "oop_max_us")


def _launches(folder: Path) -> Iterator[str]:
    """Times of the smallest messages: one rank alone, where nothing is sent, and the ranks that share the GPU."""
    alone, shared = _table(folder / SINGLE / TABLE), _table(folder / COLLECTIVES / TABLE)
    if not alone and not shared:
        yield "No call was measured."
        return
    yield from _heading("ranks", "collective", "size", "out of place (us)", "in place (us)", "fastest rank", "slowest")
    for rows in (alone, shared):
        smallest: dict[str, Mapping[str, str]] = {}
        for row in rows:
            name = row["collective"]
            if name not in smallest or int(row["size_bytes"]) < int(smallest[name]["size_bytes"]):
                smallest[name] = row
        for name, row in smallest.items():
            yield _line(
                row["n_ranks"], name, format_bytes(int(row["size_bytes"])),
                *(f"{float(row[k]):.2f}" if row.get(k) else "" for k in _CALL_COLUMNS),
            )  # fmt: skip
    yield ""
    yield (
        "One rank sends nothing: its time is what calling and launching costs, back to back. Ranks that share a GPU "
        "add their turns on it and the sockets."
    )


def _choices(folder: Path) -> Iterator[str]:
    """How often the model's algorithm, protocol and channels are those of NCCL's log, and every call that differs."""
    try:
        for name in (SCENARIO, CHOICES):
            if not (folder / name).exists():
                raise CommsimError(f"{folder} holds no {name}")
        choices = logged_choices(load_scenarios(folder / SCENARIO)[0], folder / CHOICES)
    except CommsimError as error:
        yield f"They cannot be compared: {error}"
        return
    yield from _heading("collective", "calls", "same algorithm and protocol", "channels logged", "same channels")
    for name in dict.fromkeys(choice.collective for choice in choices):
        of_it = [choice for choice in choices if choice.collective == name]
        logged = [choice for choice in of_it if choice.logged_channels is not None]
        yield _line(
            name, len(of_it), sum(choice.agrees for choice in of_it), len(logged),
            sum(choice.logged_channels == choice.predicted_channels for choice in logged),
        )  # fmt: skip
    other = [choice for choice in choices if _differs(choice)]
    if other:
        yield ""
        yield from _heading("collective", "size", "NCCL's log", "the model", "channels logged", "of the model")
        for c in other:
            channels = "" if c.logged_channels is None else c.logged_channels
            yield _line(c.collective, format_bytes(c.nbytes), c.logged, c.predicted, channels, c.predicted_channels)


def _differs(choice: Choice) -> bool:
    return not choice.agrees or choice.logged_channels not in (None, choice.predicted_channels)


def _bytes(folder: Path) -> Iterator[str]:
    """What the kernel counted on the sockets of all ranks in one call, over what the schedule says."""
    shares: dict[str, list[tuple[int, float]]] = {}
    for row in _table(folder / COLLECTIVES / TABLE):
        counted, expected = (sum(map(float, row.get(k, "").split())) for k in ("sent_bytes", "expected_sent_bytes"))
        if counted and expected:
            shares.setdefault(row["collective"], []).append((int(row["size_bytes"]), counted / expected))
    if not shares:
        yield "Nothing was counted."
        return
    yield from _heading("collective", "rows", "median", "least", "most", "largest size", "there")
    for name, of_it in shares.items():
        ratios = [ratio for _, ratio in of_it]
        size, ratio = max(of_it)
        yield _line(
            name, len(of_it), f"{statistics.median(ratios):.4f}", f"{min(ratios):.4f}", f"{max(ratios):.4f}",
            format_bytes(size), f"{ratio:.4f}",
        )  # fmt: skip
    yield ""
    yield "Bytes of all ranks over those of the schedule; headers and flags of NCCL are in them (LL doubles the bytes)."


def _steps(folder: Path, said: Mapping[str, Any]) -> Iterator[str]:
    """Steps of one rank beside the closed form, with the shipped parameters and with the rates of this GPU."""
    items = (_json(folder / STEPS / TRAINING) or {}).get("items", [])
    items = [item for item in items if item["ranks"] == 1]
    board = _board(said)
    if not items or board is None:
        yield "They were not measured." if not items else "There is no datasheet of this GPU to predict them with."
        return
    own = folder / RATES / "compute.yaml"
    measured = read_values(own) if own.exists() else None
    yield from _heading("step", "measured (ms)", "shipped parameters (ms)", "error", "rates of this GPU (ms)", "error")
    for item in items:
        task = _task_of(item, int(said.get("gpu_memory_bytes", 0)))
        cells: list[object] = [item["name"], f"{1e3 * item['step_s']:.2f}"]
        for values in (shipped_values(), measured):
            if task is None or values is None:
                cells += ["", ""]
                continue
            seconds = _predicted_s(task, board, values)
            cells += [f"{1e3 * seconds:.2f}", f"{100 * (seconds / item['step_s'] - 1):+.1f} %"]
        yield _line(*cells)


def _task_of(item: Mapping[str, Any], memory_bytes: int) -> TrainingTask | None:
    """The step that the laboratory ran under that name; its width depends on how much of the GPU a rank had."""
    for ranks_per_gpu in range(1, 9):
        for task in step_tasks(1, memory_bytes // ranks_per_gpu):
            if task.name == item["name"]:
                return task
    return None


def _predicted_s(task: TrainingTask, board: Accelerator, values: Values) -> float:
    """Seconds of a step on one GPU by the closed form: torch's own modules, kernel by kernel."""
    model = Model(
        task.name, task.layers, task.hidden, task.ffn_hidden, task.heads, task.kv_heads, task.hidden // task.heads,
        task.vocab, task.seq_len, gated_mlp=task.gated_mlp,
    )  # fmt: skip
    step = Step(
        model, board, precision(task.precision), task.seq_len, task.micro_batch_size,
        task.micro_batch_size * task.micro_batches, stack="eager", gpus_per_node=1,
    )  # fmt: skip
    return float(step_time(step, values).total)


def _board(said: Mapping[str, Any]) -> Accelerator | None:
    return accelerator_of_board(str(said.get("gpu", "")), int(said.get("gpu_memory_bytes", 0)))


def _heading(*names: str) -> Sequence[str]:
    return _line(*names), _line(*("---" for _ in names))


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _table(path: Path) -> Rows:
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return list(csv.DictReader(stream))
    except OSError:
        return []


def _json(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def main(arguments: list[str]) -> int:
    """Command line: the folder."""
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: python validation/gpu/compare.py FOLDER, one that `commsim gpu` has written", file=sys.stderr)
        return 2
    try:
        print(page(Path(arguments[0])), end="")
    except CommsimError as error:
        print(f"compare.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
