"""The answers to a comparison, a plan and a sweep as a notebook takes them: sentences, a table, a page, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.accuracy.compare import Comparison
from commsim.accuracy.verdict import Verdict
from commsim.accuracy.whatif import Tried
from commsim.planner.plan import Configuration, Neighbour, PlanAnswer, Sensitivity
from commsim.report.plan_tables import headline, reasons, rows
from commsim.report.saved import Saved
from commsim.report.verdict import answer_line, bus_bandwidths, verdict_dict

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from commsim.report.page import Page


class _Shown:
    """What all answers share: they print as their sentences; a notebook shows the table too."""

    @property
    def answer(self) -> tuple[str, ...]:
        """The answer in sentences."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """All rows as a data frame, units in the column names."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return "\n".join(self.answer) or f"{len(self.to_frame())} rows: to_frame() has them"

    def _repr_html_(self) -> str:
        sentences = "".join(f"<p>{escape(line)}</p>" for line in self.answer)
        table = self.to_frame().dropna(axis=1, how="all")
        return sentences + str(table.to_html(index=False, max_rows=60, float_format=lambda v: f"{v:.4g}"))


@dataclass(frozen=True, eq=False, repr=False)
class Compared(_Shown):
    """Measured curves beside what was predicted: a verdict for each pair, with the what-ifs that fit better."""

    verdicts: tuple[tuple[Verdict, Sequence[Tried]], ...]

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

    def plot(self) -> Figure:
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
        from commsim.report.compare_page import compare_page

        return compare_page(self.verdicts, self._title())


@dataclass(frozen=True, eq=False, repr=False)
class Planned(_Shown):
    """The configurations of a plan, best first, and what binds the best one; `scenario` is its file as YAML."""

    name: str
    found: PlanAnswer
    scenario: str
    seconds: float
    neighbours: Sequence[Neighbour] = ()
    sensitivity: Sequence[Sensitivity] = ()

    @property
    def best(self) -> Configuration:
        """The quickest configuration per token."""
        return self.found.best

    @property
    def answer(self) -> tuple[str, ...]:
        """The best configuration: its step, its cut, its memory, and what the tokens take and cost."""
        return tuple(headline(self.best))

    @property
    def reasons(self) -> tuple[str, ...]:
        """What binds the best one, and what a tenth more of each part of the machine would give."""
        return tuple(reasons(self.neighbours, self.sensitivity))

    def to_frame(self) -> pd.DataFrame:
        """A row for every choice, best first; the seconds of every cause as columns of their own."""
        import pandas as pd

        return pd.DataFrame([r | {f"{k}_s": s for k, s in r.pop("causes_s").items()} for r in rows(self.found)])

    def saved(self) -> Saved:
        """For pictures."""
        return Saved(self.name, "plan", Path(), choices=tuple(rows(self.found)))

    def page(self) -> Page:
        """The page that `commsim plan --html` writes."""
        from commsim.report.plan_page import plan_page

        return plan_page(self.found, self.name, self.scenario, self.seconds, self.neighbours, self.sensitivity)


@dataclass(frozen=True, eq=False, repr=False)
class Swept(_Shown):
    """The rows of a sweep, sorted by point; a point that cannot be predicted is a row with its `error`."""

    name: str
    points: tuple[dict[str, Any], ...]
    base: str

    @property
    def answer(self) -> tuple[str, ...]:
        """How much fabric is enough, from where on each other path brings nothing more, and how many points failed."""
        from commsim.report.sweep_page import answer_lines

        failed = [p for p in self.points if p["error"]]
        more = [f"{len(failed)} of {len(self.points)} points failed: {failed[0]['error']}"] if failed else []
        return (*answer_lines(self.points), *more)

    def to_frame(self) -> pd.DataFrame:
        """A row for every predicted row, the values of the paths in front: what rows.csv holds."""
        import pandas as pd

        from commsim.planner.results import columns, flat_rows

        return pd.DataFrame(list(flat_rows(self.points)), columns=columns(self.points))

    def saved(self) -> Saved:
        """For pictures."""
        from commsim.planner.results import flat_rows

        return Saved(self.name, "sweep", Path(), points=self.points, rows=tuple(flat_rows(self.points)))

    def page(self) -> Page:
        """The page that `commsim sweep --html` writes."""
        from commsim.report.sweep_page import sweep_page

        return sweep_page(self.points, self.name, self.base)
