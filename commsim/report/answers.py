"""The answers to a comparison and a sweep as a notebook takes them: sentences, a table, a page, pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from commsim.accuracy.compare import Comparison
from commsim.accuracy.verdict import Verdict
from commsim.accuracy.whatif import Tried
from commsim.planner.results import columns, flat_rows
from commsim.report.answered import Answered, OnePicture
from commsim.report.page import Code, Page, Part, Section, Text, plot, table
from commsim.report.saved import Saved
from commsim.report.sweep_plot import (
    FABRIC,
    FIGURES,
    SHARE,
    curves,
    enough_lines,
    figure_of,
    knee_lines,
    numeric_paths,
    sweep_chart,
    unchanged_lines,
    unchanged_paths,
)
from commsim.report.verdict import answer_line, bus_bandwidths, compare_page, verdict_dict

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_UNITS = {"us": "us", "s": "s", "ms": "ms", "GBps": "GB/s", "GiB": "GiB", "bytes": "B", "percent": "%"}
"""By the end of a column's name, its unit."""


def head_of(name: str) -> str:
    """A column in words: ``time (us)`` of ``time_us``; paths stay as they are."""
    if name in FIGURES:
        return FIGURES[name][0]
    words, _, unit = name.rpartition("_")
    if "." in name or not words or unit not in _UNITS:
        return name if "." in name else name.replace("_", " ")
    return f"{words.replace('_', ' ')} ({_UNITS[unit]})"


MOST_ROWS = 2_000
MOST_ENOUGH = 8  # answers to how much fabric is enough
MOST_LINES = 3  # knees of one path among the first lines


@dataclass(frozen=True, eq=False, repr=False)
class Compared(OnePicture):
    """Measured curves beside what was predicted: a verdict for each pair, with the what-ifs that fit better."""

    verdicts: tuple[tuple[Verdict, Sequence[Tried]], ...]
    said: tuple[str, ...] = ()  # what comes before the verdicts: the machine, contradictions, what was taken
    tests: tuple[str, ...] = ()  # what tells causes apart that the curves do not

    @property
    def _comparisons(self) -> list[Comparison]:
        return [verdict.comparison for verdict, _ in self.verdicts]

    @property
    def _predictions(self) -> list[str]:
        return list(dict.fromkeys(c.predicted.name for c in self._comparisons))

    @property
    def answer(self) -> tuple[str, ...]:
        """A sentence for every pair: as expected, slower or faster, and the likely cause."""
        against = " (against {})" if len(self._predictions) > 1 else ""
        return tuple(answer_line(v, tried) + against.format(v.comparison.predicted.name) for v, tried in self.verdicts)

    def to_frame(self) -> pd.DataFrame:
        """A row for every size of every pair: times, bus bandwidth, and the verdict."""
        import pandas as pd

        records = []
        for verdict, tried in self.verdicts:
            measured = verdict.comparison.measured
            sizes = verdict_dict(verdict, tried)["sizes"]
            for size, (busbw, _, _) in zip(sizes, bus_bandwidths(verdict), strict=True):
                size |= {f"expected_{end}_us": size["predicted_us"] * size.pop(end) for end in ("low", "high")}
                curve = {"measured": measured.name, "collective": measured.collective}
                records.append({**curve, **size, "measured_busbw_GBps": busbw})
        return pd.DataFrame(records)

    def draw(self) -> Figure:
        """Bus bandwidth over message size, measured and predicted, with the error below."""
        from commsim.report.plots import plot_comparisons

        return plot_comparisons(self._comparisons, self._title())

    def _title(self) -> str:
        """The prediction's name, or how many there are of both."""
        curves = {id(c.measured) for c in self._comparisons}
        names = self._predictions
        return names[0] if len(names) == 1 else f"{len(names)} predictions, {len(curves)} measured curves"

    def page(self) -> Page:
        """The page that `commsim compare --html` writes."""
        return compare_page(self.verdicts, self._title(), self.said)


@dataclass(frozen=True, eq=False, repr=False)
class Swept(Answered):
    """The rows of a sweep, sorted by point; a point that cannot be predicted is a row with its `error`."""

    name: str
    points: tuple[dict[str, Any], ...]
    base: str
    idle: Mapping[str, str] = field(default_factory=dict)  # by path, why it changes nothing
    given: tuple[str, ...] = ()  # changes of the file, as they were given
    first_picture: ClassVar[str] = "knees"

    @property
    def answer(self) -> tuple[str, ...]:
        """How much fabric is enough, from where on each other path brings nothing more, and how many points failed."""
        failed = self._failed
        more = [f"{len(failed)} of {len(self.points)} points failed: {failed[0]['error']}"] if failed else []
        return (*self._lines(), *more)

    @property
    def _failed(self) -> list[dict[str, Any]]:
        return [point for point in self.points if point["error"]]

    def _lines(self) -> tuple[str, ...]:
        """How much fabric is enough, and the first knees along every other path; nothing where all points failed."""
        points = self.points
        if len(self._failed) == len(points):
            return ()
        figure = figure_of(points)
        enough = enough_lines(points, figure)
        lines = enough[:MOST_ENOUGH]
        if len(enough) > MOST_ENOUGH:
            lines.append(
                f"And {len(enough) - MOST_ENOUGH:,} more such answers, one per combination of the other values."
            )
        idle = unchanged_paths(points)
        for path in numeric_paths(points):
            many = len(curves(points, path, figure))
            if many and path not in idle and not (enough and path in FABRIC):
                lines += knee_lines(points, path, figure)[:MOST_LINES]
                if many > MOST_LINES:
                    lines.append(f"And {many - MOST_LINES:,} more such answers along {path}: to_frame() has all rows.")
        lines += unchanged_lines(points, self.idle)
        return tuple(lines) or (f"{len(points):,} points, {sum(len(p['rows']) for p in points):,} rows.",)

    def _asked(self) -> Iterator[Part]:
        """The file, and what was changed of it."""
        if self.given:
            yield Text("Changed on the command line, of the file below:")
            yield Code("\n".join(self.given))
        yield Code(self.base)

    def to_frame(self) -> pd.DataFrame:
        """A row for every predicted row, the values of the paths in front: what rows.csv holds."""
        import pandas as pd

        return pd.DataFrame(list(flat_rows(self.points)), columns=columns(self.points))

    def saved(self) -> Saved:
        """For pictures."""
        return Saved(self.name, "sweep", Path(), points=self.points, rows=tuple(flat_rows(self.points)))

    def page(self) -> Page:
        """The page that `commsim sweep --html` writes: every path with its knees, then the rows."""
        points, failed = self.points, self._failed
        answered = len(failed) < len(points)
        figure = figure_of(points) if answered else ""
        sections = []
        for path in numeric_paths(points):
            if answered and curves(points, path, figure):
                caption = f"{head_of(figure)} along {path}."
                drawing = plot(sweep_chart(points, path, figure, self.name), caption[:1].upper() + caption[1:])
                sections.append(Section(f"Along {path}", (drawing, *map(Text, knee_lines(points, path, figure)))))
        listed = list(flat_rows(points))
        names = [n for n in columns(points) if any(r.get(n) not in (None, "") for r in listed)]
        note = f"the first {MOST_ROWS:,} of {len(listed):,} rows; rows.csv has all" if len(listed) > MOST_ROWS else ""
        shown = table(list(map(head_of, names)), [[r.get(n) for n in names] for r in listed[:MOST_ROWS]], note)
        return Page(
            title=self.name,
            question=f"What does each choice bring, and from where on is {100 * SHARE:.0f} % of the best reached?",
            answer=self._lines() if answered else self.answer,
            sections=(*sections, Section("Rows", (shown,)), Section("The sweep", tuple(self._asked()))),
            warnings=tuple(
                f"{len(failed):,} points failed, the first: {failed[0]['error']}" for _ in failed[:answered]
            ),
        )
