"""One laboratory from beginning to end: capture, describe, measure in the order of value, as long as the time lasts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from commsim.errors import CommsimError, MeasurementError
from commsim.lab import stages
from commsim.lab.machine import SCENARIO, Site, describe, site_of
from commsim.lab.ranks import Ranks
from commsim.lab.stages import COLLECTIVES, FORCED, GRAPHS, MEASURED, RATES, REGISTERED, SINGLE, STEPS
from commsim.measure.capture import CHOICES, read_object
from commsim.measure.gpu import gpus
from commsim.measure.run import Run
from commsim.measure.run_folder import read_conditions
from commsim.measure.tasks import Task
from commsim.nccl.environment import FUNCTIONS

PARTS = (COLLECTIVES, RATES, STEPS, FORCED, GRAPHS, REGISTERED)
"""What a laboratory can be told to keep to."""

_UNTIL_COLLECTIVES, _UNTIL_RATES, _UNTIL_STEPS = 0.5, 0.6, 0.75
"""Parts of the whole time after which a stage begins no further row; what is left goes to the collectives."""

_STEP_ITERATIONS = 10

_CAPTURED_BYTES = tuple(8 << 3 * k for k in range(10))  # 8 B .. 1 GiB: choices change a few times on the way
_CAPTURED = tuple(name for name in MEASURED if name in FUNCTIONS)


@dataclass
class Clock:
    """So many seconds from now on; `left` is what remains until a part of them has passed."""

    seconds: float
    start: float = field(default_factory=time.monotonic)

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.start

    def left(self, part: float = 1.0) -> float:
        """Seconds until `part` of the whole time has passed; zero when it has."""
        return max(0.0, part * self.seconds - self.spent)


@dataclass
class Session:
    """The stages of one laboratory; `faults` says in a line each what went wrong, and the rest goes on."""

    folder: Path
    ranks: Ranks
    alone: Ranks | None  # one rank with a whole GPU, where `ranks` share one
    clock: Clock
    say: Callable[[str], None]
    most_bytes: int | None = None  # largest message, where the user has said it
    parts: Sequence[str] = PARTS
    timeout_s: float = 600.0  # that a rank waits for the others
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def measure(self) -> None:
        """Everything that needs the GPUs; raises MeasurementError where nothing at all can be measured."""
        choices = self._capture()
        site = site_of(gpus(), self.ranks.world_size, self.ranks.ranks_per_gpu, choices)
        self.say(f"this machine: {site}")
        self._describe(site, choices)
        most = self.most_bytes or (stages.SHARED_LARGEST_BYTES if site.shared else stages.LARGEST_BYTES)
        largest = stages.largest_bytes(min(site.memory_bytes, stages.BUFFERS * most))
        collectives = self._run(COLLECTIVES, stages.collective_tasks(largest))
        if COLLECTIVES in self.parts:
            self._stage("collectives, the most used first", collectives, _UNTIL_COLLECTIVES)
        if COLLECTIVES in self.parts and self.alone is not None:
            alone = self._run(SINGLE, [Task("all_reduce", stages.sizes(largest)[0])], self.alone)
            self._stage("one rank with the GPU for itself: what a call costs", alone, _UNTIL_COLLECTIVES, self.alone)
        if RATES in self.parts:
            self._rates()
        if STEPS in self.parts:
            stepping = self.alone or self.ranks
            training = tuple(stages.step_tasks(stepping.world_size, site.memory_bytes, largest))
            steps = self._run(STEPS, ranks=stepping, training=training)
            self._stage("training steps", steps, _UNTIL_STEPS, stepping)
        if FORCED in self.parts:
            for one in stages.forced(_possible(choices)):
                run = self._run(f"{FORCED}/{one.name}", stages.forced_tasks(largest), env=one.env)
                self._stage(f"all_reduce by {one.algorithm} over {one.protocol}, forced", run)
        if GRAPHS in self.parts:
            run = self._run(GRAPHS, stages.variant_tasks(largest), graph=stages.GRAPH_LAUNCHES)
            self._stage("the same calls as CUDA graphs", run)
        if REGISTERED in self.parts:
            how = stages.registration(site.nccl_version)
            run = self._run(REGISTERED, stages.variant_tasks(largest), register=how)
            self._stage(f"the same calls on registered memory ({how})", run)
        if COLLECTIVES in self.parts:
            self._stage("the remaining sizes", collectives)

    def _capture(self) -> dict[str, Any]:
        """NCCL's description of the machine, its graphs and its choices, in a pass that is not timed."""
        self.say("capture: what NCCL says of this machine (not timed)")
        nbytes = tuple(size for size in _CAPTURED_BYTES if size <= (self.most_bytes or size))
        tasks = [Task(name, nbytes) for name in _CAPTURED]
        run = self._run("", tasks, capture_choices=True)
        self.ranks.capture(run)
        choices = read_object(Path(run.out) / CHOICES)
        if not choices:
            self.faults.append("NCCL's description of the machine and its choices could not be captured")
        return choices

    def _describe(self, site: Site, choices: Mapping[str, Any]) -> None:
        """The topology and the scenario of the machine, once."""
        if (self.folder / SCENARIO).exists() or not choices:
            return
        try:
            if not choices.get("topology"):
                raise MeasurementError(f"NCCL {site.nccl_version} wrote no topology file")
            notes = describe(site, self.folder / choices["topology"], self.folder / choices["graphs"], self.folder)
        except (CommsimError, OSError) as error:
            self.faults.append(f"the machine could not be described: {_line(error)}")
            return
        self.notes += notes
        self.say(f"wrote {SCENARIO}: this machine, with NCCL's graphs, version and environment")

    def _stage(self, title: str, run: Run, until: float = 1.0, ranks: Ranks | None = None) -> None:
        """One run until a part of the time has passed; a fault is noted, and ends this stage alone."""
        seconds, before = self.clock.left(until), read_conditions(Path(run.out))
        is_finished = before.get("finished") and before.get("fingerprint") == run.fingerprint()
        if is_finished or not (run.tasks or run.training):
            return
        if seconds <= 0:
            self.notes.append(f"{title}: no time was left")
            return
        self.say(f"{title}: up to {seconds:.0f} s of the {self.clock.left():.0f} s that are left")
        try:
            (ranks or self.ranks).measure(replace(run, seconds=seconds))
        except MeasurementError as error:
            self.faults.append(f"{title}: {_line(error)}")
            self.say(f"{title} stopped: {_line(error)}")

    def _run(self, name: str, tasks: Iterable[Task] = (), ranks: Ranks | None = None, **options: Any) -> Run:
        """A run into the folder of that name; collectives are called in libnccl, as nccl-tests does."""
        ranks = ranks or self.ranks
        return Run(
            name=name,
            tasks=tuple(tasks),
            iterations=_STEP_ITERATIONS if options.get("training") else 20,
            backend="nccl",
            runner="libnccl",
            world_size=ranks.world_size,
            ranks_per_gpu=ranks.ranks_per_gpu,
            network="",
            timeout_s=self.timeout_s,
            out=str((self.folder / name).absolute()),
            **options,
        )

    def _rates(self) -> None:
        """Rates of products, attention and copies on one GPU, by `commsim rates` in a process of its own."""
        out = self.folder / RATES
        seconds = self.clock.left(_UNTIL_RATES)
        if (out / "rates.csv").exists() or seconds <= 0:
            return
        self.say(f"rates of one GPU: up to {seconds:.0f} s")
        words = [sys.executable, "-m", "commsim", "rates", "--out", str(out), "--seconds", f"{seconds:.0f}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no word"])[-1]
            self.faults.append(f"rates: {last.removeprefix('commsim: error: ')}")


def _possible(choices: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The algorithms and protocols of all_reduce for which NCCL's own table has a bandwidth."""
    return [
        (row["algorithm"], row["protocol"])
        for row in choices.get("table", ())
        if row["collective"] == "all_reduce" and row["algbw_GBps"] > 0
    ]


def _line(error: BaseException) -> str:
    """The first line of a fault: the cause stands there."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
