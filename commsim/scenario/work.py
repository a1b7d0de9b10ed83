"""What every kind of workload is: an item of the file that knows its faults, runs on a machine and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from commsim.document.types import KeyFaults, KeyPath
from commsim.errors import Fault, ScenarioError
from commsim.scenario.setting import Setting
from commsim.scenario.strict import Strict

if TYPE_CHECKING:
    from commsim.engine.timeline import Timeline
    from commsim.measure.records import Curve
    from commsim.scenario.answer import Answer
    from commsim.scenario.predictors import Cache
    from commsim.topology.graph import Topology

Progress = Callable[[Iterable[int], str], Iterable[int]]
"""Wraps the sizes of an item to show how far the run is."""


@dataclass(frozen=True, eq=False)
class WorkSite:
    """Where one item runs: the machine, what the scenario says beside it, and its place in the workload."""

    setting: Setting
    topology: Topology
    place: int
    cache: Cache
    measured: tuple[Curve, ...] = ()
    files: Any = None  # what the item's `read` returned
    progress: Progress | None = None
    notes: bool = True  # whether what a reader should know beside the answer is looked for

    def fault(self, path: KeyPath, text: str) -> Fault:
        """A fault at a key of the item."""
        return self.setting.document.fault(("workload", self.place, *path), text)

    def error(self, path: KeyPath, text: str) -> ScenarioError:
        """The exception of one `fault`."""
        return ScenarioError([self.fault(path, text)])


@dataclass(frozen=True, eq=False)
class Traced:
    """What ``run --trace`` writes: a timeline, its title, what its endpoints and streams are called."""

    timeline: Timeline
    title: str
    kind: str = "rank"
    streams: tuple[str, ...] = ()
    counters: dict[int, Any] = field(default_factory=dict)  # of an endpoint (seconds, bytes)
    world_size: int | None = None  # endpoints from there on are switches


class WorkItem(Strict):
    """An item of the workload; its first key names the kind in the file, ``kind`` its list in the JSON result."""

    kind: ClassVar[str]
    noun: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]] = ("nccl", "gloo", "none")
    compared: ClassVar[bool] = False  # with the curves of `compare`
    whole_nodes: ClassVar[bool] = False  # never parts of them: a file of NCCL's graphs holds
    of_parts: ClassVar[bool] = False  # its communicators are of some ranks each, who alone must reach each other
    by_events: ClassVar[bool] = False  # no other engine simulates it

    @classmethod
    def key(cls) -> str:
        """The key of the file that tells this kind from others."""
        return next(iter(cls.model_fields))

    def faults(self, setting: Setting) -> KeyFaults:
        """What does not go with the rest of the scenario, each at its key."""
        name = setting.library.name
        if name in self.libraries:
            return []
        text = f"found {self.noun} with library {name}, expected library {' or '.join(self.libraries)}"
        return [((self.key(),), text)]

    def place_faults(self, topology: Topology, base_dir: Path) -> KeyFaults:
        """What does not go with the machine, each at its key."""
        return []

    def read(self, site: WorkSite) -> Any:
        """What the files hold that the item names, before anything runs; faults are a ScenarioError."""
        return None

    def name_files(self, item: dict[str, Any], name: Callable[[str], str]) -> None:
        """Renames the files in the item's plain values."""

    def run(self, site: WorkSite) -> tuple[Answer, list[str]]:
        """The answer, and what the user should know."""
        raise NotImplementedError

    def traced(self, site: WorkSite) -> Traced:
        """What it does over time; a ScenarioError where that is not simulated."""
        name = site.setting.library.name
        if name != "none":
            text = f"found the library {name}, expected none for a trace of moves (library=none)"
            raise site.setting.document.error(("library",), text)
        raise site.error((), f"found {self.noun}, expected a collective to trace")
