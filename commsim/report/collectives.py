"""Collectives: the tables of nccl-tests, curves and crossovers, the use of the network, on a terminal and a page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from commsim.report.tables import falls_note, folded, links_csv, result_csv, result_table, slowest_note, use_lines
from commsim.report.view import PictureChoice, PictureKind, Pictures, Shown, View
from commsim.scenario.item import Item, Row
from commsim.units import format_bytes, format_time, gb_per_s, microseconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.accuracy.compare import Comparison
    from commsim.report.page import Part, Section
    from commsim.report.saved import Saved
    from commsim.scenario.result import Result
    from commsim.topology.graph import Topology

RAW_SCHEDULE = "A raw schedule is simulated on ideal links: no launch, no protocol, no software. Libraries are slower."


def _draw_links(saved: Saved, selection: PictureChoice) -> Pictures:
    from commsim.scenario.setting import build_topology

    assert saved.scenario is not None
    topology = build_topology(saved.scenario)
    for suffix, item in selection.of(saved.links):
        yield suffix, plot_links(topology, item, saved.name)


def plot_links(topology: Topology, item: Item, title: str) -> Figure:
    """How busy every link is with a collective, on the drawing of the machine."""
    from commsim.report.topology_plot import plot_topology
    from commsim.report.topology_shapes import heat_of

    heat = heat_of(topology, {link.link: link.busy_share for link in item.use.links} if item.use else {})
    busy = f"{item.collective} of {format_bytes(item.use_bytes)}"
    if heat.busiest >= 0:
        busy += f"; busiest {topology.link_name(heat.busiest)} at {100 * heat.share[heat.busiest]:.0f} %"
    return plot_topology(topology, heat, f"{title}: {busy}")


def _draw_bound(saved: Saved, selection: PictureChoice) -> Pictures:
    from commsim.report.limit_plot import plot_limit
    from commsim.scenario.setting import build_topology
    from commsim.synthesis.limit import limit_of
    from commsim.synthesis.machine import machine_network

    assert saved.scenario is not None
    topology = build_topology(saved.scenario)
    acts = saved.scenario.library.name in ("nccl", "synthesized")
    network = machine_network(topology, in_network=acts, at_wires=True)
    for suffix, item in selection.of(saved.items):
        yield suffix, plot_limit(topology, network, limit_of(network, item.collective, effort="flow", latency=False))


def _elements(answer: Item) -> str:
    """``; float32 sum``: what the columns of nccl-tests say in every row, where these are not shown."""
    calls = {(row.dtype, row.redop, row.root) for row in answer.rows}
    if len(calls) != 1:
        return ""
    dtype, redop, root = calls.pop()
    return f"; {dtype}{f' {redop}' if redop else ''}{f', root {root}' if root >= 0 else ''}"


class CollectivesView(View[Item]):
    """Collectives over message sizes."""

    question: ClassVar[str] = "What should these collectives do on this machine?"
    kinds: ClassVar[dict[str, PictureKind]] = {
        "links": PictureKind(
            "how busy every link is, on the drawing of the machine",
            lambda saved: bool(saved.links) and saved.scenario is not None,
            _draw_links,
        ),
        "bound": PictureKind(
            "the links of the cut that no schedule gets round, on the drawing of the machine",
            lambda saved: bool(saved.items) and saved.scenario is not None,
            _draw_bound,
        ),
    }

    def table(self, shown: Shown, answer: Item) -> str:
        levels = ", ".join(dict.fromkeys(row.level.split(",")[0] for row in answer.rows))
        how = f"{answer.mode.replace('_', ' ')}, {f'engine {levels}' if answer.rows else 'no sizes'}"
        where = f"{answer.collective} on {shown.machine}, library {answer.library}, {how}"
        where += "" if shown.raw else _elements(answer)
        return result_table(answer, [shown.heading, where, ""], raw=shown.raw)

    def lines(self, answer: Item) -> list[str]:
        if not any(row.candidates for row in answer.rows):
            return folded(use_lines(answer))
        from commsim.report.crossover import crossover_lines

        return folded([*use_lines(answer), *crossover_lines(answer)])

    def csv(self, shown: Shown, answers: Sequence[Item]) -> dict[str, str]:
        texts = {"result.csv": result_csv(answers)}
        if any(item.use for item in answers):
            texts["links.csv"] = links_csv(answers)
        if shown.comparisons:
            from commsim.report.verdict import comparison_csv

            texts["comparison.csv"] = comparison_csv(shown.comparisons)
        return texts

    def draw(self, shown: Shown, answer: Item) -> dict[str, Figure]:
        from commsim.report.plots import plot_bandwidth

        name, mine, ran = shown.result.name, _of(answer, shown.comparisons), answer.choices
        figure = plot_bandwidth([answer.curve()], list(answer.measured), name, mine, shown.provenance, ran)
        figures = {"bandwidth": figure}
        if any(row.candidates for row in answer.rows):
            from commsim.report.crossover import plot_crossover

            figures["crossover"] = plot_crossover(answer, name, shown.provenance)
        return figures

    def sentences(self, shown: Shown, answers: Sequence[Item]) -> list[str]:
        """The largest and the smallest size in a sentence each, then each measured curve in one."""
        t = shown.result.topology
        nodes = f"{t['nodes']} nodes of {t['ranks_per_node']}" if t["nodes"] != 1 else str(t["ranks_per_node"])
        if "placement" in t:
            nodes = f"{t['placement']['ranks']} of {t['ranks']}"
        lines = []
        for item in answers:
            if not item.rows:
                lines.append(f"{item.collective}: no sizes.")
                continue
            small, large = item.rows[0], item.rows[-1]
            lines.append(
                f"{item.collective} on {nodes} {t['gpu']}: {gb_per_s(large.busbw):,.1f} GB/s bus bandwidth at "
                f"{format_bytes(large.size_bytes)} ({format_time(large.time_s)}), bound by "
                f"{large.bottleneck or 'nothing named'}."
            )
            if len(item.rows) > 1:
                lines.append(f"At {format_bytes(small.size_bytes)} it takes {format_time(small.time_s)}.")
            for c in _of(item, shown.comparisons):
                side = "slower" if c.median_log_ratio > 0 else "faster"
                lines.append(
                    f"Against {c.measured.name}: off by {100 * c.mape:.1f} % on average over {c.n} sizes, "
                    f"predicted mostly {side} than measured."
                )
        return lines

    def sections(self, shown: Shown, answers: Sequence[Item]) -> list[Section]:
        return [s for item in answers for s in _item_sections(shown.result, item, shown.comparisons)]

    def sureness(self, shown: Shown, answers: Sequence[Item]) -> list[Part]:
        from commsim.report.page import Text, table

        parts: list[Part] = []
        if shown.comparisons:
            rows = [(c.measured.name, c.n, 100 * c.mape, c.median_log_ratio) for c in shown.comparisons]
            note = (
                "MAPE: mean of |predicted - measured| / measured over the sizes. Median log ratio: 0.1 is 10 % too "
                "slow."
            )
            parts.append(table(["measured curve", "sizes", "MAPE (%)", "median log ratio"], rows, note))
        if any(row.low_s is not None for item in answers for row in item.rows):
            text = (
                "The range beside each time holds eight of ten published measurements of the same GPU generation and "
                "kind of link, each predicted without any measurement of its own system."
            )
            return [*parts, Text(text)]
        if shown.result.scenario.library.name == "none":
            return [*parts, Text(RAW_SCHEDULE)]
        text = "No published measurement of this kind was there to say how far off the prediction may be."
        return [*parts, Text(text)]

    def words(self, answer: Item) -> list[str]:
        note = falls_note(answer)
        return [line for line in (stretches(answer), note and f"{answer.collective}: {note}.") if line]

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[Item]:
        from commsim.report.saved import read_items

        return read_items(str(document["name"]), records, folder)


VIEW = CollectivesView()


def stretches(item: Item) -> str:
    """What bounds which sizes, in a sentence; empty for one size."""
    if len(item.rows) < 2:
        return ""
    parts = []
    for name, group in groupby(item.rows, key=lambda row: row.bottleneck or "nothing named"):
        rows = list(group)
        low, high = format_bytes(rows[0].size_bytes), format_bytes(rows[-1].size_bytes)
        parts.append(f"{name} {low}" if len(rows) == 1 else f"{name} {low} to {high}")
    return f"{item.collective} by size: {', '.join(parts)}."


def _of(item: Item, comparisons: Sequence[Comparison]) -> list[Comparison]:
    return [c for c in comparisons if any(c.measured is m for m in item.measured)]


def _item_sections(result: Result, item: Item, comparisons: Sequence[Comparison]) -> list[Section]:
    from commsim.report.page import Column, Section, Text, picture, plot, size_cell, table
    from commsim.report.plots import bandwidth_chart

    mine = _of(item, comparisons)
    parts: list[Part] = []
    if item.rows:
        chart = bandwidth_chart([item.curve()], list(item.measured), result.name, mine, item.choices)
        parts.append(plot(chart, f"Bus bandwidth and time of {item.collective} against message size."))
        if any(row.candidates for row in item.rows):
            from commsim.report.crossover import crossover_chart, crossover_lines

            parts.append(plot(crossover_chart(item, result.name), "Time of every algorithm that can run."))
            parts += [Text(line.removeprefix("# ")) for line in crossover_lines(item)]
    spread = any(row.p99_s is not None for row in item.rows)
    columns: list[str | Column] = [
        "size", "time (us)", *(["p99 (us)"] if spread else []), "algbw (GB/s)", "busbw (GB/s)", "lower bound (us)",
        Column("eight of ten within (us)", number=True),
        "algorithm", "protocol", "channels", "bottleneck", "engine",
    ]  # fmt: skip
    notes = [f"{note[:1].upper()}{note[1:]}." for note in (falls_note(item), slowest_note(item)) if note]
    shown = table(columns, [_row(row, spread) for row in item.rows], " ".join(notes))
    sections = [Section(f"{item.collective}: prediction", (*parts, shown))]
    if item.use is not None and item.use.links:
        from commsim.scenario.setting import build_topology

        drawing = plot_links(build_topology(result.scenario), item, result.name)
        sections.append(Section(f"{item.collective}: links", (picture(drawing, "How busy every link is."),)))
    for c in mine:
        rows = [
            (
                size_cell(int(size)), microseconds(float(predicted)), microseconds(float(measured)), 100 * float(error),
                "interpolated" if between else "",
            )
            for size, predicted, measured, error, between in zip(
                c.size_bytes, c.predicted_s, c.measured_s, c.error, c.interpolated, strict=True
            )
        ]  # fmt: skip
        compared = table(["size", "predicted (us)", "measured (us)", "error (%)", "note"], rows)
        sections.append(Section(f"{item.collective}: against {c.measured.name}", (compared,)))
    return sections


def _row(row: Row, spread: bool) -> tuple[object, ...]:
    """Cells of a row; of runs that vary (``spread``) with their 99th percentile."""
    from commsim.report.page import Cell, size_cell

    band = Cell("")
    if row.low_s is not None and row.high_s is not None:
        band = Cell(f"{microseconds(row.low_s):,.1f} to {microseconds(row.high_s):,.1f}", row.low_s)
    bound = None if row.lower_bound_s is None else microseconds(row.lower_bound_s)
    p99 = [None if row.p99_s is None else microseconds(row.p99_s)] if spread else []
    return (
        size_cell(row.size_bytes), microseconds(row.time_s), *p99, gb_per_s(row.algbw), gb_per_s(row.busbw),
        bound, band, row.algorithm, row.protocol, row.channels or None, row.bottleneck, row.level,
    )  # fmt: skip
