"""The curve of a collective: bus bandwidth and time over message size, as `commsim run` prints them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.report.chart import Chart
from commsim.report.collectives import stretches
from commsim.report.plots import bandwidth_chart
from commsim.report.run_files import compared, tables
from commsim.report.tables import bound_note, falls_note, format_time_us, slowest_note
from commsim.report.view import view_of
from commsim.scenario.run import prepare, run
from commsim.units import format_size, gb_per_s

if TYPE_CHECKING:
    from commsim.explorer.state import State
    from commsim.measure.records import Curve
    from commsim.scenario.item import Item, Row
    from commsim.scenario.predictors import Cache

COLUMNS = ("size", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "bound (us)", "algorithm", "protocol", "channels",
           "bottleneck")  # fmt: skip


def curve_answer(state: State, base_dir: Path, cache: Cache) -> dict[str, Any]:
    """Chart, table, sentences and warnings of the collective that a state asks for."""
    from commsim.explorer.answers import scenario_of

    result = run(prepare(scenario_of(state, "collective", base_dir), cache), cache=cache)
    item = result.items[0]
    shown = compared(result)
    return {
        "chart": curve_chart(item, result.name).to_dict(),
        "columns": COLUMNS,
        "rows": [_cells(row) for row in item.rows],
        "sentences": [*view_of("items").sentences(shown, [item]), *_notes(item)],
        "warnings": list(result.warnings),
        "text": tables(shown),
        "ranks": item.n_ranks,
    }


def curve_chart(item: Item, title: str) -> Chart:
    """Bus bandwidth above, time below, on logarithmic axes, with a mark wherever algorithm or protocol change."""
    chart = bandwidth_chart([item.curve()], list(item.measured), title, choices=item.choices)
    first, *others = chart.panels
    return replace(chart, panels=(replace(first, y=replace(first.y, scale="log")), *others))


def overlay(curve: Curve) -> dict[str, Any]:
    """A measured curve as series of the panels of `curve_chart`, with what it is of."""
    panels = bandwidth_chart([], [curve], "").panels
    return {
        "collective": curve.collective,
        "ranks": curve.n_ranks,
        "series": [asdict(panel.series[0]) for panel in panels],
    }


def _cells(row: Row) -> list[str]:
    """As `commsim run` prints them."""
    return [
        format_size(row.size_bytes), format_time_us(row.time_s), f"{gb_per_s(row.algbw):.2f}",
        f"{gb_per_s(row.busbw):.2f}", format_time_us(row.lower_bound_s), row.algorithm or "-", row.protocol or "-",
        str(row.channels or "-"), row.bottleneck,
    ]  # fmt: skip


def _notes(item: Item) -> list[str]:
    notes = [note for note in (bound_note(item), falls_note(item), slowest_note(item)) if note]
    return [*(f"{note[:1].upper()}{note[1:]}." for note in notes), *filter(None, [stretches(item)])]
