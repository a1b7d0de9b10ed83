"""How the answers of one kind of workload are shown: on a terminal, in files, in pictures, on a page, and read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from commsim.document.types import shorten
from commsim.errors import CommsimError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.accuracy.compare import Comparison
    from commsim.report.page import Part, Section
    from commsim.report.saved import Saved
    from commsim.scenario.result import Result

A = TypeVar("A")

VIEWS = {
    "items": ("collectives", "result.csv links.csv comparison.csv bandwidth crossover"),
    "jobs": ("jobs", "jobs.csv"),
    "trainings": ("training", "training.csv memory.csv timeline.csv pipeline"),
    "rl": ("rl", "rl.csv phases.csv rl-step rollout"),
    "claims": ("claims", ""),
    "traces": ("chakra", "trace_ranks.csv trace_calls.csv ranks"),
    "generations": ("generation", "generation.csv requests.csv queue.csv load queue waits token"),
}
"""By the kind of an answer, the module of `commsim.report` whose ``VIEW`` shows it, and the files that `run` writes.

Only the modules that a result needs are imported. Pictures stand without number and ending.
"""

Pictures = Iterator[tuple[str, "Figure"]]
"""(what to add to the file's name, the picture)."""


@dataclass(frozen=True)
class PictureChoice:
    """What of a result is drawn: one item of several (from 1), a path of a sweep, numbers of nodes for a map."""

    item: int | None = None
    path: str | None = None
    nodes: tuple[int, ...] = ()

    def of(self, items: Sequence[A]) -> list[tuple[str, A]]:
        """(what to add to the file's name, item) of those that are wanted."""
        if self.item is not None and not 1 <= self.item <= len(items):
            raise CommsimError(f"found --item {self.item}, expected 1 to {len(items)}")
        named = [(f"-{i}" if len(items) > 1 else "", item) for i, item in enumerate(items, 1)]
        return named if self.item is None else [named[self.item - 1]]


@dataclass(frozen=True)
class PictureKind:
    """A kind of picture: what it shows, whether a result has what it needs, and its pictures."""

    shows: str
    has: Callable[[Saved], bool]
    draw: Callable[[Saved, PictureChoice], Pictures]

    @classmethod
    def of_each(
        cls, shows: str, items: Callable[[Saved], Sequence[Any]], plot: Callable[[Any, str], Figure]
    ) -> PictureKind:
        """A picture of each of some answers that a result has; `plot` takes one, and what it is signed with."""

        def draw(saved: Saved, selection: PictureChoice) -> Pictures:
            for suffix, item in selection.of(items(saved)):
                yield suffix, plot(item, saved.provenance)

        return cls(shows, lambda saved: bool(items(saved)), draw)


def placed_words(topology: Mapping[str, Any]) -> str:
    """``32 of 64 ranks on nodes 3, 0 .. 2``, of the summary of a topology with a placement."""
    taken = topology["placement"]
    nodes = shorten(", ".join(map(str, taken["nodes"])))
    several = "s" if nodes.strip("0123456789") else ""
    return f"{taken['ranks']} of {topology['ranks']} ranks on node{several} {nodes}"


@dataclass(frozen=True, eq=False)
class Shown:
    """A result beside the comparisons of its measured curves. `raw`: sizes are shown in bytes, as by nccl-tests."""

    result: Result
    comparisons: Sequence[Comparison] = ()
    raw: bool = False

    @property
    def heading(self) -> str:
        """The first line of a table."""
        result = self.result
        return f"commsim {result.provenance['commsim']}: {result.name} (scenario {result.scenario_hash})"

    @property
    def provenance(self) -> str:
        """What a picture is signed with."""
        return f"commsim {self.result.provenance['commsim']}, scenario {self.result.scenario_hash}"

    @property
    def machine(self) -> str:
        """``16 x H100 SXM5: 2 nodes of 8 (NAME)``; of different nodes every kind; of a placement what it takes."""
        t = self.result.topology
        taken = f", {placed_words(t)}" if "placement" in t else ""
        return f"{self._machine()}{taken}"

    def _machine(self) -> str:
        t = self.result.topology
        gpus, each, counts = t["gpu"], t["ranks_per_node"], t["nodes_of_kind"]
        kinds = len(counts)
        models = gpus if isinstance(gpus, list) else [gpus] * kinds
        sizes = each if isinstance(each, list) else [each] * kinds
        if len(set(models)) == len(set(sizes)) == 1:
            nodes = f"{t['nodes']} node{'s' if t['nodes'] != 1 else ''}"
            return f"{t['ranks']} x {models[0]}: {nodes} of {sizes[0]} ({t['name']})"
        parts = [
            f"{count} node{'s' if count != 1 else ''} of {size} x {model}"
            for count, size, model in zip(counts, sizes, models, strict=True)
        ]
        return f"{t['ranks']} rank{'s' if t['ranks'] != 1 else ''}: {', '.join(parts)} ({t['name']})"

    def of_kind(self, kind: str) -> tuple[Any, ...]:
        """The answers of one kind."""
        return tuple(answer for answer in self.result.answers if answer.kind == kind)

    def kinds(self) -> list[tuple[View[Any], tuple[Any, ...]]]:
        """Each kind that the result has, with its answers."""
        kinds = dict.fromkeys(answer.kind for answer in self.result.answers)
        return [(view_of(kind), self.of_kind(kind)) for kind in kinds]

    def runs(self) -> list[tuple[View[Any], tuple[Any, ...]]]:
        """The answers in the order of the file, neighbours of one kind together."""
        return [(view_of(k), tuple(some)) for k, some in groupby(self.result.answers, key=lambda a: a.kind)]


class View(Generic[A]):
    """Shows the answers of one kind; `VIEWS` names the modules that hold one."""

    question: ClassVar[str]
    kinds: ClassVar[dict[str, PictureKind]] = {}  # more pictures, for `commsim plot`

    def table(self, shown: Shown, answer: A) -> str:
        """An answer for the terminal; ends with a newline."""
        raise NotImplementedError

    def lines(self, answer: A) -> list[str]:
        """What stands below all tables."""
        return []

    def csv(self, shown: Shown, answers: Sequence[A]) -> dict[str, str]:
        """The text of each CSV file."""
        return {}

    def draw(self, shown: Shown, answer: A) -> dict[str, Figure]:
        """The pictures that `run` writes, by name."""
        return {}

    def sentences(self, shown: Shown, answers: Sequence[A]) -> list[str]:
        """The answer at the head of a page."""
        raise NotImplementedError

    def sections(self, shown: Shown, answers: Sequence[A]) -> list[Section]:
        """The sections of a page."""
        raise NotImplementedError

    def sureness(self, shown: Shown, answers: Sequence[A]) -> list[Part]:
        """What is known of the error."""
        return []

    def words(self, answer: A) -> list[str]:
        """What bounds it, in sentences of its own."""
        return []

    def keep(self, answer: A) -> Any:
        """What pictures need of it: the same that `read` gives."""
        return answer

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[Any]:
        """The answers of a saved result: `records` are their values in its document; files may lie beside it."""
        raise NotImplementedError


def view_of(kind: str) -> View[Any]:
    """What shows answers of a kind."""
    return cast("View[Any]", import_module(f"commsim.report.{VIEWS[kind][0]}").VIEW)
