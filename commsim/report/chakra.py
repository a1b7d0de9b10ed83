"""Replayed traces: the time, what ranks spend it on, the calls, the critical path; as text, CSV, pictures and page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from commsim.report.page import Cell, Part, Section, Text, picture, table
from commsim.report.view import PictureChoice, PictureKind, Pictures, Shown, View
from commsim.units import format_bytes, format_time, microseconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.report.saved import Saved
    from commsim.scenario.chakra_result import CallRow, RankRow, TraceItem

SHOWN = 12
"""Kinds of calls and ranks in a table on a terminal; the files have all."""


def trace_table(item: TraceItem, heading: Iterable[str] = ()) -> str:
    """The answer for a terminal; lines that start with ``#`` are no figures."""
    lines = [f"# {text}".rstrip() for text in heading]
    total = item.seconds or 1.0
    lines += [
        f"# {item.nodes:,} nodes of {len(item.ranks)} ranks, "
        f"{'with' if item.run.contended else 'without'} contention on links",
        "#",
        f"  time                {format_time(item.seconds):>12}",
        f"  bottleneck          {item.bottleneck}",
        "#",
        "# where the time goes (mean rank)",
    ]
    lines += [
        f"  {name:<19} {format_time(item.mean(part)):>12} {item.mean(part) / total:>7.1%}  {meaning}"
        for name, part, meaning in MEANINGS
    ]
    lines += ["#", f"# critical path to the end of rank {item.longest}"]
    lines += [f"  {what:<34} {format_time(s):>12} {s / total:>7.1%}  {n} x" for what, s, n in item.path[:SHOWN]]
    if item.calls:
        lines += [
            "#",
            f"# {'call':<16} {'ranks':>6} {'size':>12} {'count':>8} {'mean':>12} {'longest':>12} {'all':>12}",
        ]
        for call in item.calls[:SHOWN]:
            times = " ".join(f"{format_time(s):>12}" for s in (call.mean, call.most, call.total))
            size = format_bytes(call.nbytes)
            lines.append(f"  {call.call:<16} {call.ranks:>6} {size:>12} {call.count:>8} {times}")
        lines += _more(len(item.calls), "kinds of calls")
    lines += ["#", f"# {'rank':>6} {'compute':>12} {'exposed':>12} {'idle':>12} {'end':>12}   critical path to its end"]
    for row in item.ranks[:SHOWN]:
        shares = ", ".join(
            f"{name} {value / row.end:.0%}"
            for name, value in zip(("compute", "communication", "other"), row.path, strict=True)
            if row.end and value
        )
        times = " ".join(f"{format_time(s):>12}" for s in (row.compute, row.exposed, row.idle, row.end))
        lines.append(f"  {row.rank:>6} {times}   {shares}")
    lines += _more(len(item.ranks), "ranks")
    return "\n".join(lines) + "\n"


MEANINGS = (
    ("compute", "compute", "the GPU computes"),
    ("exposed comm", "exposed", "transfers while it does not"),
    ("other", "other", "host and memory beside neither"),
    ("idle", "idle", "waits for other ranks"),
)
"""(name, column, what it is)"""


def _more(count: int, what: str) -> list[str]:
    return [f"# and {count - SHOWN} more {what}"] if count > SHOWN else []


def ranks_csv(items: Iterable[TraceItem]) -> str:
    """One row per item and rank."""
    return _csv([{"item": item.name, **row.record()} for item in items for row in item.ranks])


def calls_csv(items: Iterable[TraceItem]) -> str:
    """One row per item and kind of call."""
    return _csv([{"item": item.name, **row.record()} for item in items for row in item.calls])


def _csv(records: list[dict[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(records[0]) if records else ["item"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in r.items()} for r in records)
    return stream.getvalue()


def traces_answer(item: TraceItem) -> list[str]:
    """The time, what it is spent on, and what limits it."""
    exposed = item.mean("exposed") / item.seconds if item.seconds else 0.0
    return [
        f"{item.name}: {format_time(item.seconds)} on {len(item.ranks)} ranks; exposed communication takes "
        f"{exposed:.1%} of the mean rank's time.",
        f"Bottleneck: {item.bottleneck}.",
    ]


def traces_sections(item: TraceItem) -> list[Section]:
    """Where the time of the mean rank goes, the critical path, the calls, and every rank."""
    from commsim.report.chakra import MEANINGS
    from commsim.report.chakra_plot import plot_ranks

    total = item.seconds or 1.0
    parts = [(name, microseconds(item.mean(p)), 100 * item.mean(p) / total, meaning) for name, p, meaning in MEANINGS]
    path = [(what, microseconds(s), 100 * s / total, count) for what, s, count in item.path]
    calls = [
        (row.call, row.ranks, Cell(format_bytes(row.nbytes), row.nbytes), row.count, microseconds(row.mean),
         microseconds(row.most), microseconds(row.total))
        for row in item.calls
    ]  # fmt: skip
    ranks = [
        (row.rank, *(microseconds(v) for v in (row.compute, row.communication, row.exposed, row.idle, row.end)))
        for row in item.ranks
    ]
    return [
        Section(
            "Where the time goes",
            (
                picture(plot_ranks(item), "What every rank spends the time on."),
                table(["part", "mean rank (us)", "share (%)", "what"], parts),
            ),
        ),
        Section("Critical path", (table(["what", "time (us)", "share (%)", "operations"], path),)),
        Section("Calls", (table(["call", "ranks", "size", "calls", "mean (us)", "longest (us)", "all (us)"], calls),)),
        Section("Ranks", (table(["rank", "compute (us)", "communication (us)", "exposed (us)", "idle (us)",
                                 "end (us)"], ranks),)),
    ]  # fmt: skip


def traces_words(item: TraceItem) -> list[str]:
    """What bounds replayed traces."""
    from commsim.report.explain import percent

    if not item.seconds:
        return [f"{item.name}: the traces take no time."]
    computes, exposed, idle = (item.mean(part) / item.seconds for part in ("compute", "exposed", "idle"))
    return [
        f"{item.name}: {format_time(item.seconds)}, bound by {item.bottleneck} to the end of rank {item.longest}.",
        f"The mean rank computes {percent(computes)} of the time, stands still for transfers {percent(exposed)} and "
        f"waits for others {percent(idle)}.",
    ]


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


def _draw_ranks(saved: Saved, selection: PictureChoice) -> Pictures:
    from commsim.report.chakra_plot import plot_ranks

    traces = saved.of_kind("traces")
    for i, suffix in selection.places(len(traces)):
        yield suffix, plot_ranks(traces[i], saved.provenance)


class TracesView(View["TraceItem"]):
    """Replayed traces."""

    question: ClassVar[str] = "How long do these traces take on this machine?"
    kinds: ClassVar[dict[str, PictureKind]] = {
        "ranks": PictureKind(
            "what every rank of replayed traces spends the time on",
            lambda saved: bool(saved.of_kind("traces")),
            _draw_ranks,
        )
    }

    def table(self, shown: Shown, answer: TraceItem) -> str:
        """Parts of the time, the critical path, calls and ranks."""
        return trace_table(answer, [shown.heading, shown.machine])

    def csv(self, shown: Shown, answers: Sequence[TraceItem]) -> dict[str, str]:
        """A row for each rank, and for each kind of call."""
        return {"trace_ranks.csv": ranks_csv(answers), "trace_calls.csv": calls_csv(answers)}

    def draw(self, shown: Shown, answer: TraceItem) -> dict[str, Figure]:
        """What every rank spends the time on."""
        from commsim.report.chakra_plot import plot_ranks

        return {"ranks": plot_ranks(answer, shown.provenance)}

    def sentences(self, shown: Shown, answers: Sequence[TraceItem]) -> list[str]:
        """The time of each, and what limits it."""
        return [line for item in answers for line in traces_answer(item)]

    def sections(self, shown: Shown, answers: Sequence[TraceItem]) -> list[Section]:
        """Where the time goes, path, calls and ranks of each."""
        return [section for item in answers for section in traces_sections(item)]

    def sureness(self, shown: Shown, answers: Sequence[TraceItem]) -> list[Part]:
        """What the times rest on."""
        return [
            Text(
                "Compute takes what the traces state, or at least what a datasheet allows; each call takes what the "
                "model of NCCL predicts, whose error over published curves is on the page Accuracy (docs/accuracy.md), "
                "counted by commsim validate collectives. Replayed traces as a whole were not compared with measured "
                "ones."
            )
        ]

    def words(self, answer: TraceItem) -> list[str]:
        """What bounds it, and what the mean rank does."""
        return traces_words(answer)

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[SavedTrace]:
        """Ranks, calls and the critical path."""
        return [_read(record) for record in records]


VIEW = TracesView()


def _read(record: dict[str, Any]) -> SavedTrace:
    from commsim.scenario.chakra_result import PARTS, CallRow, RankRow

    def seconds(row: dict[str, Any], name: str) -> float:
        return float(row[f"{name}_us"]) / 1e6

    ranks = tuple(
        RankRow(
            rank=int(row["rank"]),
            compute=seconds(row, "compute"),
            communication=seconds(row, "communication"),
            exposed=seconds(row, "exposed"),
            other=seconds(row, "other"),
            idle=seconds(row, "idle"),
            end=seconds(row, "end"),
            path=(seconds(row, f"path_{PARTS[0]}"), seconds(row, f"path_{PARTS[1]}"), seconds(row, f"path_{PARTS[2]}")),
        )
        for row in record["per_rank"]
    )
    calls = tuple(
        CallRow(
            str(row["call"]),
            int(row["n_ranks"]),
            int(row["size_bytes"]),
            int(row["count"]),
            *(seconds(row, name) for name in ("mean", "max", "total")),
        )
        for row in record["calls"]
    )
    path = tuple((str(p["what"]), float(p["us"]) / 1e6, int(p["count"])) for p in record["critical_path"])
    nodes, bottleneck = int(record["nodes"]), str(record["bottleneck"])
    return SavedTrace(str(record["item"]), seconds(record, "time"), nodes, ranks, calls, path, bottleneck)
