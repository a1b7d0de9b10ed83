"""The curve of a collective: bus bandwidth and time over message size, as `commsim run` prints them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.report.chart import Axis, Chart, Mark, Panel, Series
from commsim.report.collectives import stretches
from commsim.report.run_files import compared, tables
from commsim.report.style import BOUND, MEASURED_COLOURS, PREDICTED_COLOURS
from commsim.report.tables import bound_note, falls_note, format_time_us, slowest_note
from commsim.report.view import view_of
from commsim.scenario.run import prepare, run
from commsim.units import format_bytes, gb_per_s

if TYPE_CHECKING:
    from commsim.explore.state import State
    from commsim.measure.records import Curve
    from commsim.scenario.item import Item, Row
    from commsim.scenario.predictors import Cache
    from commsim.scenario.result import Result

COLUMNS = ("size", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "bound (us)", "algorithm", "protocol", "channels",
           "bottleneck")  # fmt: skip
BUSBW, TIME = "bus bandwidth (GB/s)", "time"


def curve_answer(state: State, base_dir: Path, cache: Cache) -> dict[str, Any]:
    """Chart, table, sentences and warnings of the collective that a state asks for."""
    from commsim.explore.answers import scenario_of

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
        "sizes": [[str(row.size_bytes), format_bytes(row.size_bytes)] for row in item.rows],
        "machine": machine_facts(result),
    }


def machine_facts(result: Result) -> dict[str, Any]:
    """What the machine has where the state leaves it to the preset: the page shows it in its controls."""
    t = result.topology
    return {name: t[name] for name in ("gpu", "ranks", "nodes", "ranks_per_node", "nics_per_node", "oversubscription")}


def curve_chart(item: Item, title: str) -> Chart:
    """Bus bandwidth above, time below, with band, bound and a mark wherever algorithm or protocol change."""
    rows, colour = [row for row in item.rows if row.size_bytes > 0 and row.time_s > 0], PREDICTED_COLOURS[0]
    x = tuple(float(row.size_bytes) for row in rows)
    banded = all(row.low_s is not None for row in rows)
    notes = tuple(", ".join(filter(None, (row.algorithm, row.protocol, row.bottleneck))) for row in rows)

    def panel(axis: Axis, of: Any, marks: tuple[Mark, ...]) -> Panel:
        ends = [[of(row, s) for row in rows] for s in ("low_s", "high_s")] if banded else [[], []]
        if axis.label == BUSBW:
            ends.reverse()
        low, high = map(tuple, ends)
        mine = Series("predicted", x, tuple(of(row, "time_s") for row in rows), colour, low=low, high=high, notes=notes)
        bound = Series("no schedule is quicker", x, tuple(of(row, "lower_bound_s") for row in rows), BOUND, "dashed")
        return Panel(axis, (mine, bound), marks)

    def rate(row: Row, name: str) -> float | None:
        seconds = getattr(row, name)
        return gb_per_s(row.busbw * row.time_s / seconds) if seconds else None

    bandwidth = Axis(BUSBW, "log", switch=True)
    return Chart(
        title,
        Axis("message size", "log", "bytes"),
        (
            panel(bandwidth, rate, _marks(rows)),
            panel(Axis(TIME, "log", "s", switch=True), lambda row, name: getattr(row, name) or None, ()),
        ),
    )


def overlay(curve: Curve, number: int) -> dict[str, Any]:
    """A measured curve as series of the two panels of `curve_chart`, with what it is of."""
    x = tuple(float(size) for size in curve.size_bytes if size > 0)
    kept = [i for i, size in enumerate(curve.size_bytes) if size > 0]
    colour = MEASURED_COLOURS[number % len(MEASURED_COLOURS)]
    time = tuple(float(curve.time_s[i]) for i in kept)
    bus = tuple(gb_per_s(float(v)) for v in curve.busbw()[kept]) if curve.n_ranks is not None else (None,) * len(x)
    name = f"measured: {curve.name}"
    return {
        "collective": curve.collective,
        "series": [vars(Series(name, x, bus, colour, "points")), vars(Series(name, x, time, colour, "points"))],
    }


def _marks(rows: Sequence[Row]) -> tuple[Mark, ...]:
    """Where another algorithm or protocol begins, halfway between two sizes, with its name."""
    marks = []
    for before, row in zip(rows, rows[1:], strict=False):
        if (before.algorithm, before.protocol) != (row.algorithm, row.protocol):
            name = " ".join(filter(None, (row.algorithm, row.protocol)))
            marks.append(Mark((before.size_bytes * row.size_bytes) ** 0.5, name))
    return tuple(marks)


def _cells(row: Row) -> list[str]:
    """As `commsim run` prints them."""
    return [
        str(row.size_bytes), format_time_us(row.time_s), f"{gb_per_s(row.algbw):.2f}", f"{gb_per_s(row.busbw):.2f}",
        format_time_us(row.lower_bound_s), row.algorithm or "-", row.protocol or "-", str(row.channels or "-"),
        row.bottleneck,
    ]  # fmt: skip


def _notes(item: Item) -> list[str]:
    notes = [note for note in (bound_note(item), falls_note(item), slowest_note(item)) if note]
    return [*(f"{note[:1].upper()}{note[1:]}." for note in notes), *filter(None, [stretches(item)])]
