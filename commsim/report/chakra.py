"""Replayed traces: the time, what ranks spend it on, the calls, the critical path; as text, CSV, pictures and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from commsim.report.chart import Axis, Chart, Span
from commsim.report.chart_figure import draw
from commsim.report.page import Part, Section, Text, plot, size_cell, table
from commsim.report.tables import records_csv
from commsim.report.view import PictureKind, Shown, View
from commsim.units import format_bytes, format_time, microseconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.scenario.chakra_result import CallRow, RankRow, TraceItem

MOST_LISTED = 12
"""Kinds of calls and ranks in a table on a terminal; the files have all."""

MOST_RANKS = 48
"""Bars that can be told apart; of more ranks as many are shown, evenly spread."""

_PARTS = (
    ("compute", "compute", "the GPU computes", "computes", "#0072B2"),
    ("exposed", "exposed comm", "transfers while it does not", "transfers, nothing computed", "#D55E00"),
    ("other", "other", "host and memory beside neither", "host and memory", "#E69F00"),
    ("idle", "idle", "waits for other ranks", "waits for other ranks", "#D9D9D9"),
)
"""(column, name, what it is, what its bars are called, their colour)"""


def _call_lines(calls: Sequence[CallRow]) -> list[str]:
    lines = ["#", f"# {'call':<16} {'ranks':>6} {'size':>12} {'count':>8} {'mean':>12} {'longest':>12} {'all':>12}"]
    for call in calls[:MOST_LISTED]:
        times = " ".join(f"{format_time(s):>12}" for s in (call.mean, call.most, call.total))
        lines.append(f"  {call.call:<16} {call.ranks:>6} {format_bytes(call.nbytes):>12} {call.count:>8} {times}")
    return lines + _more(len(calls), "kinds of calls")


def _rank_lines(ranks: Sequence[RankRow]) -> list[str]:
    lines = ["#", f"# {'rank':>6} {'compute':>12} {'exposed':>12} {'idle':>12} {'end':>12}   critical path to its end"]
    for row in ranks[:MOST_LISTED]:
        parts = zip(("compute", "communication", "other"), row.path, strict=True)
        shares = ", ".join(f"{name} {value / row.end:.0%}" for name, value in parts if row.end and value)
        times = " ".join(f"{format_time(s):>12}" for s in (row.compute, row.exposed, row.idle, row.end))
        lines.append(f"  {row.rank:>6} {times}   {shares}")
    return lines + _more(len(ranks), "ranks")


def _more(count: int, noun: str) -> list[str]:
    return [f"# and {count - MOST_LISTED} more {noun}"] if count > MOST_LISTED else []


def _sections(item: TraceItem) -> list[Section]:
    """Where the time of the mean rank goes, the critical path, the calls, and every rank."""
    total = item.seconds or 1.0
    parts = [(name, microseconds(item.mean(p)), 100 * item.mean(p) / total, meaning) for p, name, meaning, *_ in _PARTS]
    path = [(name, microseconds(s), 100 * s / total, count) for name, s, count in item.path]
    calls = [
        (row.call, row.ranks, size_cell(row.nbytes), row.count, *map(microseconds, (row.mean, row.most, row.total)))
        for row in item.calls
    ]
    ranks = [
        (row.rank, *map(microseconds, (row.compute, row.communication, row.exposed, row.idle, row.end)))
        for row in item.ranks
    ]
    drawing = plot(ranks_chart(item), "What every rank spends the time on.")
    means = table(["part", "mean rank (us)", "share (%)", "what"], parts)
    times = [f"{name} (us)" for name in ("compute", "communication", "exposed", "idle", "end")]
    return [
        Section("Where the time goes", (drawing, means)),
        Section("Critical path", (table(["what", "time (us)", "share (%)", "operations"], path),)),
        Section("Calls", (table(["call", "ranks", "size", "calls", "mean (us)", "longest (us)", "all (us)"], calls),)),
        Section("Ranks", (table(["rank", *times], ranks),)),
    ]


def ranks_chart(item: TraceItem | SavedTrace) -> Chart:
    """What every rank spends the time of the whole on, a bar per rank; of many ranks some."""
    count = len(item.ranks)
    shown = [item.ranks[i] for i in np.unique(np.linspace(0, count - 1, min(count, MOST_RANKS)).round().astype(int))]
    spans = []
    for row, rank in enumerate(shown):
        end = 0.0
        for part, name, *_, colour in _PARTS:
            begin, end = end, end + getattr(rank, part)
            if end > begin:
                spans.append(Span(row, begin, end, name, colour))
    more = f", {len(shown)} of {count} ranks" if len(shown) < count else ""
    return Chart(
        f"{item.name}: {format_time(item.seconds)}{more}",
        Axis("time", unit="s", low=0.0, high=max(item.seconds, 1e-12)),
        rows=tuple(f"rank {rank.rank}" for rank in shown),
        spans=tuple(spans),
        key=tuple((words, colour) for *_, words, colour in _PARTS if any(s.colour == colour for s in spans)),
    )


def plot_ranks(item: TraceItem | SavedTrace, provenance: str = "") -> Figure:
    """The figure of `ranks_chart`."""
    return draw(ranks_chart(item), provenance=provenance, width=10.0)


@dataclass(frozen=True, eq=False)
class SavedTrace:
    """What a saved result holds of replayed traces."""

    kind: ClassVar[str] = "traces"

    name: str
    seconds: float
    nodes: int
    ranks: tuple[RankRow, ...]
    calls: tuple[CallRow, ...]
    path: tuple[tuple[str, float, int], ...]
    bottleneck: str


class TracesView(View["TraceItem"]):
    """Replayed traces."""

    question: ClassVar[str] = "How long do these traces take on this machine?"
    kinds: ClassVar[dict[str, PictureKind]] = {
        "ranks": PictureKind.of_each(
            "what every rank of replayed traces spends the time on", lambda saved: saved.of_kind("traces"), plot_ranks
        )
    }

    def table(self, shown: Shown, answer: TraceItem) -> str:
        """Parts of the time, the critical path, calls and ranks; lines that start with ``#`` are no figures."""
        total = answer.seconds or 1.0
        contention = "with" if answer.run.contended else "without"
        lines = [
            f"# {shown.heading}",
            f"# {shown.machine}",
            f"# {answer.nodes:,} nodes of {len(answer.ranks)} ranks, {contention} contention on links",
            "#",
            f"  time                {format_time(answer.seconds):>12}",
            f"  bottleneck          {answer.bottleneck}",
            "#",
            "# where the time goes (mean rank)",
        ]
        for part, name, meaning, *_ in _PARTS:
            mean = answer.mean(part)
            lines.append(f"  {name:<19} {format_time(mean):>12} {mean / total:>7.1%}  {meaning}")
        lines += ["#", f"# critical path to the end of rank {answer.longest}"]
        lines += [
            f"  {name:<34} {format_time(s):>12} {s / total:>7.1%}  {n} x" for name, s, n in answer.path[:MOST_LISTED]
        ]
        if answer.calls:
            lines += _call_lines(answer.calls)
        return "\n".join([*lines, *_rank_lines(answer.ranks)]) + "\n"

    def csv(self, shown: Shown, answers: Sequence[TraceItem]) -> dict[str, str]:
        ranks = [{"item": item.name, **row.record()} for item in answers for row in item.ranks]
        calls = [{"item": item.name, **row.record()} for item in answers for row in item.calls]
        return {"trace_ranks.csv": records_csv(ranks), "trace_calls.csv": records_csv(calls)}

    def draw(self, shown: Shown, answer: TraceItem) -> dict[str, Figure]:
        return {"ranks": plot_ranks(answer, shown.provenance)}

    def sentences(self, shown: Shown, answers: Sequence[TraceItem]) -> list[str]:
        lines = []
        for item in answers:
            exposed = item.mean("exposed") / item.seconds if item.seconds else 0.0
            lines += [
                f"{item.name}: {format_time(item.seconds)} on {len(item.ranks)} ranks; exposed communication takes "
                f"{exposed:.1%} of the mean rank's time.",
                f"Bottleneck: {item.bottleneck}.",
            ]
        return lines

    def sections(self, shown: Shown, answers: Sequence[TraceItem]) -> list[Section]:
        return [section for item in answers for section in _sections(item)]

    def sureness(self, shown: Shown, answers: Sequence[TraceItem]) -> list[Part]:
        text = (
            "Compute takes what the traces state, or at least what a datasheet allows; each call takes what the model "
            "of NCCL predicts, whose error over published curves is on the page Accuracy (docs/accuracy.md), counted "
            "by commsim validate collectives. Replayed traces as a whole were not compared with measured ones."
        )
        return [Text(text)]

    def words(self, answer: TraceItem) -> list[str]:
        from commsim.report.explain import percent

        if not answer.seconds:
            return [f"{answer.name}: the traces take no time."]
        computes, exposed, idle = (percent(answer.mean(p) / answer.seconds) for p in ("compute", "exposed", "idle"))
        bound = f"bound by {answer.bottleneck} to the end of rank {answer.longest}"
        return [
            f"{answer.name}: {format_time(answer.seconds)}, {bound}.",
            f"The mean rank computes {computes} of the time, stands still for transfers {exposed} and waits for others "
            f"{idle}.",
        ]

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[SavedTrace]:
        return [_read(record) for record in records]


VIEW = TracesView()


def _read(record: dict[str, Any]) -> SavedTrace:
    from commsim.scenario.chakra_result import PARTS, CallRow, RankRow

    def seconds(row: dict[str, Any], *names: str) -> Any:
        return tuple(float(row[f"{name}_us"]) / 1e6 for name in names)

    columns = ("compute", "communication", "exposed", "other", "idle", "end")
    paths = [f"path_{part}" for part in PARTS]
    ranks = tuple(
        RankRow(int(row["rank"]), path=seconds(row, *paths), **dict(zip(columns, seconds(row, *columns), strict=True)))
        for row in record["per_rank"]
    )
    calls = tuple(
        CallRow(
            str(row["call"]),
            int(row["n_ranks"]),
            int(row["size_bytes"]),
            int(row["count"]),
            *seconds(row, "mean", "max", "total"),
        )
        for row in record["calls"]
    )
    path = tuple((str(p["what"]), float(p["us"]) / 1e6, int(p["count"])) for p in record["critical_path"])
    nodes, bottleneck = int(record["nodes"]), str(record["bottleneck"])
    return SavedTrace(str(record["item"]), float(record["time_us"]) / 1e6, nodes, ranks, calls, path, bottleneck)
