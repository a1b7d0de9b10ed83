"""What an ``rl:`` item answers: the step, where its time goes, what the engines did, and what the whole task takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from commsim.rl.step import RlStep, StepPhase
from commsim.scenario.answer import Answer
from commsim.units import GIB

if TYPE_CHECKING:
    from commsim.rl.rollout import RolloutRun
    from commsim.rl.sync import Engines
    from commsim.scenario.rl import RlSpec
    from commsim.training.memory import StepMemory
    from commsim.training.spec import Step

STAGES = ("rollout", "scoring", "update", "sync", "transfer", "control")
"""In the order of tables."""

POINTS = 65
"""Of the curve of answers that are under way."""


@dataclass(frozen=True, eq=False)
class RlItem(Answer):
    """One step: its phases, and of the rollout when answers end. Times are seconds, lengths tokens."""

    kind: ClassVar[str] = "rl"

    name: str
    algorithm: str
    model: str
    gpus: int
    engine_gpus: int  # of their own, 0: those of the trainer
    engines: int
    engine: str  # framework and cuts of an engine
    trainer: str  # the trainer's mesh
    sequences: int
    updates: int
    step: RlStep
    tokens: float  # of all prompts and answers
    longest: int  # tokens of the longest answer
    mean: float  # of the mean answer
    half_s: float  # until half of the answers had ended
    most_s: float  # until nine of ten had
    under_way: tuple[tuple[float, float], ...]  # (seconds, answers under way)
    engine_parts: dict[str, float]  # share of the engines' busy time by cause
    preemptions: int
    trainer_memory_bytes: float
    engine_memory_bytes: float
    capacity_bytes: float
    steps: int | None = None
    gpu_hour_usd: float | None = None
    parameters: str = ""

    @staticmethod
    def of(
        name: str, spec: RlSpec, actor: tuple[Step, StepMemory], step: RlStep, rollout: RolloutRun, engines: Engines
    ) -> RlItem:
        """The answer, of what was computed."""
        run, (one, memory) = rollout.run, actor
        e, ends = spec.engines, np.sort(run.end_s)
        at = np.linspace(0.0, run.duration_s, POINTS)
        busy = sum(run.steps[0].parts_s.values())
        cuts = {"tp": e.tp, "pp": e.pp, "dp attention": e.attention_dp, "ep": e.ep}
        mesh = {axis: getattr(one, axis) for axis in ("tp", "pp", "cp", "dp", "ep")}
        return RlItem(
            name=name,
            algorithm=spec.algorithm,
            model=one.model.name,
            gpus=one.world_size + (e.gpus or 0) + spec.roles.total,
            engine_gpus=e.gpus or 0,
            engines=engines.replicas,
            engine=" ".join([e.framework, *(f"{axis}{n}" for axis, n in cuts.items() if n > 1)]),
            trainer=" ".join(f"{axis}{n}" for axis, n in mesh.items() if n > 1) or "one GPU",
            sequences=spec.sequences,
            updates=spec.updates,
            step=step,
            tokens=float(run.prompt.sum() + run.answer.sum()),
            longest=int(run.answer.max()),
            mean=float(run.answer.mean()),
            half_s=rollout.half_s,
            most_s=rollout.most_s,
            under_way=tuple(
                (float(t), float(n)) for t, n in zip(at, ends.size - np.searchsorted(ends, at, "right"), strict=True)
            ),
            engine_parts={n: s / busy for n, s in run.steps[0].parts_s.items() if s > 0} if busy else {},
            preemptions=run.preemptions,
            trainer_memory_bytes=memory.peak,
            engine_memory_bytes=rollout.memory.weights_bytes,
            capacity_bytes=memory.capacity,
            steps=spec.steps,
            gpu_hour_usd=spec.gpu_hour_usd,
        )

    @property
    def step_s(self) -> float:
        """Seconds from one step to the next."""
        return self.step.step_s

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of prompts and answers per second over all GPUs, per GPU."""
        return self.tokens / self.step_s / self.gpus

    @property
    def tail_s(self) -> float:
        """Seconds of the rollout in which less than a tenth of the answers is under way."""
        return self.step.seconds("rollout") - self.most_s

    @property
    def hours(self) -> float | None:
        """Of the whole task; None where no number of steps is said."""
        return None if self.steps is None else self.steps * self.step_s / 3600.0

    @property
    def usd(self) -> float | None:
        """The same in dollars."""
        return None if self.hours is None or self.gpu_hour_usd is None else self.hours * self.gpus * self.gpu_hour_usd

    def records(self) -> list[dict[str, Any]]:
        """One row."""
        return [self.record()]

    def record(self) -> dict[str, Any]:
        """One row of plain values, units in the names."""
        row: dict[str, Any] = {
            "item": self.name,
            "algorithm": self.algorithm,
            "model": self.model,
            "gpus": self.gpus,
            "engine_gpus": self.engine_gpus,
            "engines": self.engines,
            "engine": self.engine,
            "trainer": self.trainer,
            "behind": int(self.step.behind),
            "sequences": self.sequences,
            "updates": self.updates,
            "step_s": self.step_s,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            **{f"{stage}_s": self.step.seconds(stage) for stage in STAGES},
            "tail_s": self.tail_s,
            "half_s": self.half_s,
            "most_s": self.most_s,
            "mean_answer": self.mean,
            "longest_answer": self.longest,
            "tokens": self.tokens,
            "preemptions": self.preemptions,
            "trainer_memory_GiB": self.trainer_memory_bytes / GIB,
            "engine_weights_GiB": self.engine_memory_bytes / GIB,
            "capacity_GiB": self.capacity_bytes / GIB,
        }
        task = {"steps": self.steps, "gpu_hour_usd": self.gpu_hour_usd, "hours": self.hours, "usd": self.usd}
        return row | {name: value for name, value in task.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return {
            **self.record(),
            "parameters": self.parameters,
            "phases": [
                {"name": p.name, "stage": p.stage, "seconds": p.seconds, "place": p.place} for p in self.step.phases
            ],
            "engine_parts": self.engine_parts,
            "under_way": [list(point) for point in self.under_way],
        }

    @staticmethod
    def read(record: dict[str, Any]) -> RlItem:
        """The answer of its saved values."""
        phases = tuple(
            StepPhase(str(p["name"]), str(p["stage"]), float(p["seconds"]), str(p["place"])) for p in record["phases"]
        )
        counts = ("gpus", "engine_gpus", "engines", "sequences", "updates", "preemptions")
        known: dict[str, Any] = {key: str(record[key]) for key in ("algorithm", "model", "engine", "trainer")}
        known |= {key: int(record[key]) for key in counts}
        known |= {key: float(record[key]) for key in ("tokens", "half_s", "most_s")}
        known |= {key: kind(record[key]) for key, kind in _OF_A_TASK.items() if record.get(key) is not None}
        return RlItem(
            **known,
            name=str(record["item"]),
            step=RlStep(phases, bool(record["behind"])),
            longest=int(record["longest_answer"]),
            mean=float(record["mean_answer"]),
            under_way=tuple((float(t), float(n)) for t, n in record["under_way"]),
            engine_parts={str(name): float(share) for name, share in record["engine_parts"].items()},
            trainer_memory_bytes=float(record["trainer_memory_GiB"]) * GIB,
            engine_memory_bytes=float(record["engine_weights_GiB"]) * GIB,
            capacity_bytes=float(record["capacity_GiB"]) * GIB,
            parameters=str(record.get("parameters") or ""),
        )


_OF_A_TASK = {"steps": int, "gpu_hour_usd": float}
