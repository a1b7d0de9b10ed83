"""One laboratory from beginning to end: capture, describe, measure in the order of value, as long as the time lasts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commsim.errors import CommsimError, MeasurementError
from commsim.lab.clock import Clock
from commsim.lab.findings import CAPTURE, COLLECTIVES, FORCED, RATES, SINGLE, STEPS
from commsim.lab.machine import SCENARIO, Site, describe
from commsim.lab.ranks import Ranks
from commsim.lab.stages import collective_tasks, forced, forced_tasks, largest_bytes, step_tasks
from commsim.measure.nccl_sharing import CHOICES, GRAPH, TOPOLOGY
from commsim.measure.run import Run, Task, TrainingTask
from commsim.measure.run_folder import read_conditions

_UNTIL_COLLECTIVES, _UNTIL_RATES, _UNTIL_STEPS = 0.5, 0.6, 0.75
"""Parts of the whole time after which a stage begins no further row. What is left in the end goes to the collectives."""

_CAPTURED_BYTES = tuple(8 << 3 * k for k in range(10))  # 8 B .. 1 GiB: choices change a few times on the way
_CAPTURED = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")


@dataclass
class Session:
    """The stages of one laboratory; `faults` says in a line each what went wrong, and the rest goes on."""

    folder: Path
    ranks: Ranks
    alone: Ranks | None  # one rank with a whole GPU, where `ranks` share one
    clock: Clock
    say: Callable[[str], None]
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def measure(self) -> None:
        """Everything that needs the GPUs; raises MeasurementError where not even the capture pass came through."""
        site = self._capture()
        largest = min(largest_bytes(site.memory_bytes), 1 << 30 if site.shared else 1 << 62)
        self._describe(site)
        collectives = tuple(collective_tasks(largest))
        self._stage(
            "collectives, the most used first", COLLECTIVES, _UNTIL_COLLECTIVES, tasks=collectives, check=True
        )
        self._rates()
        self._stage(
            "training steps", STEPS, _UNTIL_STEPS, training=step_tasks(site.ranks, site.memory_bytes)
        )
        for one in forced(self._table()):
            name = f"{one.algorithm} over {one.protocol}, forced"
            self._stage(name, f"{FORCED}/{one.name}", 1.0, tasks=forced_tasks(largest), env=one.env, quiet=True)
        self._stage("the remaining sizes", COLLECTIVES, 1.0, tasks=collectives, check=True)

    def _capture(self) -> Site:
        """NCCL's description of the machine, its graphs and its choices, in a pass that is not timed."""
        folder = self.folder / CAPTURE
        if not (folder / CHOICES).exists():
            self.say("capture: what NCCL says of this machine (not timed)")
            tasks = tuple(Task(name, _CAPTURED_BYTES) for name in _CAPTURED)
            self.ranks.measure(self._run("capture", folder, tasks=tasks, capture_choices=True))
        site = self.ranks.site(read_conditions(folder), json.loads((folder / CHOICES).read_text(encoding="utf-8")))
        self.say(f"this machine: {site}")
        return site

    def _describe(self, site: Site) -> None:
        """The topology and the scenario of the machine, once."""
        if (self.folder / SCENARIO).exists():
            return
        capture = self.folder / CAPTURE
        graph = capture / GRAPH
        try:
            _, notes = describe(site, capture / TOPOLOGY, graph if graph.exists() else None, self.folder)
        except (CommsimError, OSError) as error:
            self.faults.append(f"the machine could not be described: {_line(error)}")
            return
        self.notes += notes
        self.say(f"wrote {SCENARIO}: this machine, with NCCL's graphs, version and environment")

    def _stage(self, title: str, name: str, until: float, **what: Any) -> None:
        """One run into a folder of its own until a part of the time has passed; a fault is noted and ends it alone."""
        seconds = self.clock.left(until)
        run = self._run(title, self.folder / name, seconds=seconds, **what)
        if not (run.tasks or run.training) or seconds <= 0:
            if run.tasks or run.training:
                self.notes.append(f"{title}: no time was left")
            return
        self.say(f"{title}: up to {seconds:.0f} s of the {self.clock.left():.0f} s that are left")
        try:
            self.ranks.measure(run)
        except MeasurementError as error:
            self.faults.append(f"{title}: {_line(error)}")
            self.say(f"{title} stopped: {_line(error)}")

    def _run(
        self,
        title: str,
        folder: Path,
        *,
        tasks: Iterable[Task] = (),
        training: Iterable[TrainingTask] = (),
        env: dict[str, str] | None = None,
        quiet: bool = False,
        **more: Any,
    ) -> Run:
        del quiet
        return Run(
            name=title,
            tasks=tuple(tasks),
            training=tuple(training),
            backend="nccl",
            world_size=self.ranks.world_size,
            ranks_per_gpu=self.ranks.ranks_per_gpu,
            env=env or {},
            out=str(folder.absolute()),
            **more,
        )

    def _rates(self) -> None:
        """Rates of products, attention and copies on one GPU, by `commsim rates` in a process of its own."""
        out = self.folder / RATES
        seconds = self.clock.left(_UNTIL_RATES)
        if (out / "rates.csv").exists() or seconds <= 0:
            return
        self.say(f"rates of one GPU: up to {seconds:.0f} s")
        command = [sys.executable, "-m", "commsim", "rates", "--out", str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)  # noqa: S603
        except subprocess.TimeoutExpired:
            self.faults.append(f"rates: not finished within {seconds:.0f} s")
            return
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            self.faults.append(f"rates: {last.removeprefix('commsim: error: ')}")

    def _table(self) -> list[tuple[str, str]]:
        """The algorithms and protocols of all_reduce for which NCCL's own table has a bandwidth."""
        with suppress(OSError, ValueError, KeyError):
            said = json.loads((self.folder / CAPTURE / CHOICES).read_text(encoding="utf-8"))
            return [
                (row["algorithm"], row["protocol"])
                for row in said["table"]
                if row["collective"] == "all_reduce" and row["algbw_GBps"] > 0
            ]
        return []


def _line(error: BaseException) -> str:
    """The first line of a fault: the cause stands there."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
