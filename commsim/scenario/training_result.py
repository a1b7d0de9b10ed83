"""What a ``training:`` item answers: the step's time, its causes, its memory, and what a whole task takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from commsim.engine.timeline import Timeline
from commsim.scenario.answer import Answer
from commsim.training.communicator_memory import Communicators
from commsim.training.memory import StepMemory
from commsim.training.spec import Step
from commsim.training.step_traffic import AXES
from commsim.training.tasks import TaskCost
from commsim.training.uncertainty import step_spread
from commsim.training.utilisation import hardware_flops, model_flops, peak_flop_per_s
from commsim.units import GIB

Float64 = npt.NDArray[np.float64]

CAUSES = ("compute", "tp", "cp", "ep", "dp", "offload", "pp", "bubble", "optimizer", "constant")
"""In the order of tables: what the mean stage computes, what of each axis is exposed, and the rest."""


@dataclass(frozen=True, eq=False)
class TrainingItem(Answer):
    """One simulated step; ``causes`` add up to ``step_s``. Stages are those of one replica."""

    kind: ClassVar[str] = "trainings"

    name: str
    step: Step
    schedule: str
    step_s: float
    causes: dict[str, float]
    memory: StepMemory
    advice: tuple[str, ...]
    timeline: Timeline
    contended: bool
    communicators: Communicators | None = None
    traffic: tuple[dict[str, float], ...] = ()  # of each stage: bytes that one GPU sends per step, by axis
    task: TaskCost | None = None
    gpu_hour_usd: float | None = None
    parameters: str = ""
    own_parameters: bool = False  # other values of the time model than those that ship
    notes: tuple[str, ...] = field(default=())
    lost: str = ""  # to the slowest node, where nodes are unlike

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second over all GPUs, per GPU."""
        return self.step.tokens / self.step_s / self.step.world_size

    @property
    def band_s(self) -> tuple[float, float] | None:
        """Seconds between which 8 of 10 published steps of other sources were where so much was predicted; None with
        parameters of one's own, whose error nobody counted."""
        return step_spread().band_s(self.step_s) if not self.own_parameters else None

    @property
    def flop_per_s_per_gpu(self) -> float:
        """Model FLOP/s of one GPU, attention counted without its mask."""
        return model_flops(self.step) / self.step_s / self.step.world_size

    @property
    def mfu(self) -> float:
        """Model FLOPs over the peak, attention without its mask."""
        return model_flops(self.step) / self.step_s / peak_flop_per_s(self.step)

    @property
    def mfu_causal(self) -> float:
        """The same with half of the scores, as a causal mask leaves them."""
        return model_flops(self.step, causal=True) / self.step_s / peak_flop_per_s(self.step)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs over the peak: with what is recomputed."""
        return hardware_flops(self.step) / self.step_s / peak_flop_per_s(self.step)

    def memory_over_time(self, stage: int) -> tuple[Float64, Float64]:
        """(seconds, bytes) of one GPU of a stage, both (changes,): what it holds from each moment on.

        A forward adds what it keeps when it starts, a backward gives it back when it ends; buffers count throughout.
        """
        timeline = self.timeline
        mine = (timeline.endpoint == stage) & (timeline.stream == 0)
        kinds = np.array(timeline.names)[timeline.name_code[mine]]
        forward, backward = kinds == "F", np.isin(kinds, ("B", "I"))
        times = np.concatenate([[0.0], timeline.start_s[mine][forward], timeline.end_s[mine][backward]])
        steps = np.concatenate([[0.0], np.ones(forward.sum()), -np.ones(backward.sum())])
        order = np.lexsort((steps, times))  # at equal times what is given back goes first
        held = np.cumsum(steps[order])
        parts = self.memory.stages[stage].parts
        kept = parts["activations"] / max(float(held.max(initial=0.0)), 1.0)
        return times[order], sum(parts.values()) - parts["activations"] + held * kept

    @property
    def sent_bytes(self) -> dict[str, float]:
        """By axis what one GPU sends per step, on the stage that sends most along it."""
        axes = dict.fromkeys(axis for stage in self.traffic for axis in stage)
        return {axis: max(stage.get(axis, 0.0) for stage in self.traffic) for axis in axes}

    def records(self) -> list[dict[str, Any]]:
        """One row."""
        return [self.record()]

    def record(self) -> dict[str, Any]:
        """One row of plain values, units in the names."""
        step = self.step
        row: dict[str, Any] = {
            "item": self.name,
            "model": step.model.name,
            "gpus": step.world_size,
            **{name: getattr(step, name) for name in ("tp", "pp", "cp", "dp", "ep", "virtual_stages")},
            "pipeline_schedule": self.schedule,
            "micro_batches": step.num_microbatches,
            "step_s": self.step_s,
            **({} if self.band_s is None else dict(zip(("step_low_s", "step_high_s"), self.band_s, strict=True))),
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "tflops_per_gpu": self.flop_per_s_per_gpu / 1e12,
            **{name: getattr(self, name) for name in ("mfu", "mfu_causal", "hfu")},
        }
        row |= {f"{cause}_s": self.causes.get(cause, 0.0) for cause in CAUSES}
        row |= {f"{axis}_sent_bytes": self.sent_bytes.get(axis, 0.0) for axis in AXES}
        row |= {"peak_memory_GiB": self.memory.peak / GIB, "fits": self.memory.fits}
        if self.task is not None:
            task = self.task
            row |= {"task": task.name, "task_tokens": task.tokens, "days": task.days, "gpu_hours": task.gpu_hours}
            if self.gpu_hour_usd is not None:
                row["usd"] = self.task.usd(self.gpu_hour_usd)
        return row

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            **self.record(),
            **({} if self.memory.fits else {"advice": list(self.advice)}),
            "contention": self.contended,
            "parameters": self.parameters,
            "notes": [*self.notes, *filter(None, [self.lost])],
            "capacity_GiB": self.memory.capacity / GIB,
            "capacity_from": self.step.accelerator.room_words,
            "advice": list(self.advice),
            "sent_bytes": [{"stage": s, **by_axis} for s, by_axis in enumerate(self.traffic)],
            "memory": [
                {
                    "stage": s.stage,
                    "peak_GiB": s.peak / GIB,
                    "moment": s.moment,
                    "parts_GiB": {name: value / GIB for name, value in s.parts.items()},
                }
                for s in self.memory.stages
            ],
            "phases": [{"name": p.name, "seconds": p.seconds} for p in self.task.phases] if self.task else [],
        }
