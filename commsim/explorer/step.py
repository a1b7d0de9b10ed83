"""A training step: its time and causes, what every stage does when, its memory, and what each control would give."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.errors import CommsimError
from commsim.explorer.state import State
from commsim.report.chart import beginning
from commsim.report.run_files import compared, tables
from commsim.report.steps import breakdown_chart, figures_of, memory_chart, pipeline_chart
from commsim.report.training import misfit
from commsim.report.view import view_of
from commsim.scenario.run import prepare, run
from commsim.units import GIB, format_time

if TYPE_CHECKING:
    from commsim.explorer.answers import Say
    from commsim.scenario.predictors import Cache
    from commsim.scenario.training_result import TrainingItem


def step_answer(state: State, base_dir: Path, cache: Cache) -> dict[str, Any]:
    """Figures, causes, memory and timeline of the step that a state asks for, as `commsim run` prints them."""
    from commsim.explorer.answers import scenario_of

    result = run(prepare(scenario_of(state, "training", base_dir), cache), cache=cache)
    item = result.trainings[0]
    shown = compared(result)
    step, figures = item.step, figures_of(item.to_dict(), item.timeline)
    return {
        "sentences": view_of("trainings").sentences(shown, [item]),
        "figures": [
            ["step", format_time(item.step_s)],
            ["MFU", f"{item.mfu:.1%}"],
            ["tokens/s/GPU", f"{item.tokens_per_s_per_gpu:.1f}"],
            ["model TFLOP/s/GPU", f"{item.flop_per_s_per_gpu / 1e12:.1f}"],
            ["GPUs", f"{step.world_size:,}"],
            ["dp", str(step.dp)],
            ["sequences", f"{step.global_batch_size:,}"],
            ["micro-batches", str(step.num_microbatches)],
        ],
        "misfit": "" if item.memory.fits else f"does not fit: {misfit(item)}",
        "causes": breakdown_chart([("step", item.causes)], "Time of the mean stage by cause").to_dict(),
        "memory": memory_chart(figures).to_dict(),
        "timeline": beginning(pipeline_chart(figures)).to_dict(),
        "warnings": list(result.warnings),
        "text": tables(shown),
        "step_s": item.step_s,
    }


# -- what each control would give ---------------------------------

_DOUBLED = {"tp": "tensor parallel", "pp": "stages", "cp": "context parallel", "ep": "expert parallel",
            "mb": "micro-batch", "nodes": "nodes"}  # fmt: skip
_RATES = ("100 Gb/s", "200 Gb/s", "400 Gb/s", "800 Gb/s", "1600 Gb/s")


def around_answer(
    state: State, base_dir: Path, cache: Cache, say: Say, more: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    """The step with one control moved by one, each simulated; those that cannot run say why."""
    del more
    now, now_tokens = _stepped(state, base_dir, cache)
    now_all = (now.step_s, now.memory.peak, now_tokens)
    rows = []
    changes = _changes(state)
    for done, (words, change) in enumerate(changes):
        say("simulating", done, len(changes))
        if not state["gb"]:  # the batch stays, though the default would move
            change |= {"gb": str(now.step.global_batch_size)}
        moved = State.of({**state.values, **change})
        try:
            item, tokens = _stepped(moved, base_dir, cache)
            fits = item.memory.fits
            rows.append(
                {
                    "words": words,
                    "change": change,
                    "step": _seconds(item.step_s, now.step_s),
                    "mfu": f"{item.mfu:.1%}",
                    "memory": f"{item.memory.peak / GIB:.1f} GiB",
                    "faster": tokens / (now.tokens_per_s_per_gpu * now.step.world_size) - 1,
                    "per_gpu": item.tokens_per_s_per_gpu / now.tokens_per_s_per_gpu - 1,
                    "fits": fits,
                    "same": (item.step_s, item.memory.peak, tokens) == now_all,
                }
            )
        except CommsimError as error:
            rows.append({"words": words, "change": change, "error": str(error).removeprefix(":1:1 ")})
    return {"rows": rows, "warnings": []}


def _seconds(seconds: float, now_s: float) -> str:
    """A time in the unit of the step as it is, so that a column compares."""
    return f"{seconds:.3f} s" if now_s >= 1 else f"{1e3 * seconds:.2f} ms"


def _stepped(state: State, base_dir: Path, cache: Cache) -> tuple[TrainingItem, float]:
    """The step, and tokens/s of all its GPUs."""
    from commsim.explorer.answers import scenario_of

    item = run(prepare(scenario_of(state, "training", base_dir), cache), cache=cache, notes=False).trainings[0]
    return item, item.tokens_per_s_per_gpu * item.step.world_size


def _changes(state: State) -> list[tuple[str, dict[str, str]]]:
    """Each control moved by one: what is said of it, and the keys that change."""
    changes: list[tuple[str, dict[str, str]]] = []
    for key, noun in _DOUBLED.items():
        value = state[key] or "1"
        if not value.isdigit() or (key == "ep" and value == "1"):
            continue
        if int(value) % 2 == 0:
            changes.append((f"{noun} {int(value) // 2}", {key: str(int(value) // 2)}))
        changes.append((f"{noun} {2 * int(value)}", {key: str(2 * int(value))}))
    recompute, zero = state["recompute"] or "none", state["zero"] or "0"
    changes += [(f"recompute {r}", {"recompute": r}) for r in ("none", "selective", "full") if r != recompute]
    changes += [(f"ZeRO {z}", {"zero": z}) for z in ("0", "1", "3") if z != zero]
    changes += [(f"NICs of {rate}", {"rate": rate}) for rate in _RATES[2:] if rate != state["rate"]]
    changes.append(("without sequence parallel", {"sp": ""}) if state["sp"] else ("sequence parallel", {"sp": "true"}))
    return changes
