"""Time of a collective over the number of nodes, its bus bandwidth below: a line for each size, named at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from commsim.report import style
from commsim.report.chart import Axis, Chart, Panel, Series
from commsim.report.chart_figure import draw
from commsim.report.sweep_plot import OWN_NAMES, settings
from commsim.units import GIGA, format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NODES = "topology.nodes"
MOST_LINES = 8
"""Lines of a picture; of more sizes some are drawn, the smallest and the largest among them."""

_WIDE = 30
"""From which ratio of bandwidths on their axis is logarithmic."""

Line = dict[int, tuple[float, float]]
"""By the number of nodes, seconds and bytes/s of bus bandwidth."""


def lines_over_nodes(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Line]]:
    """By collective the lines of a sweep's rows by name: size, and the values of other paths where they vary."""
    known = [row for row in rows if row.get("busbw_GBps") and row.get("time_us") and _whole(row.get(NODES))]
    other = [name for name in dict.fromkeys(name for row in known for name in row) if "." in name and name != NODES]
    varying = [name for name in other if name.rpartition(".")[2] not in (*OWN_NAMES, "sizes")]
    varying = [name for name in varying if len({str(row.get(name)) for row in known}) > 1]
    drawn: dict[str, dict[tuple[int, str], Line]] = {}
    for row in known:
        beside = settings({name: row.get(name) for name in varying})
        line = drawn.setdefault(str(row["collective"]), {}).setdefault((int(row["size_bytes"]), beside), {})
        line[int(row[NODES])] = row["time_us"] / 1e6, row["busbw_GBps"] * GIGA
    return {
        collective: {
            ", ".join(filter(None, (format_bytes(size), beside))): line
            for (size, beside), line in sorted(of.items())
            if len(line) > 1
        }
        for collective, of in drawn.items()
        if any(len(line) > 1 for line in of.values())
    }


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def over_nodes_chart(lines: dict[str, Line], title: str) -> Chart:
    """Time and bus bandwidth of the lines of one collective."""
    names, left = list(lines), max(0, len(lines) - MOST_LINES)
    if left:
        names = [names[round(i * (len(names) - 1) / (MOST_LINES - 1))] for i in range(MOST_LINES)]
    colours = style.line_colours(names, style.PREDICTED_COLOURS + style.MEASURED_COLOURS)
    times, rates = [], []
    for name, colour in zip(names, colours, strict=True):
        nodes = sorted(lines[name])
        x = tuple(map(float, nodes))
        times.append(Series(name, x, tuple(lines[name][n][0] for n in nodes), colour, named=True))
        rates.append(Series(name, x, tuple(lines[name][n][1] / GIGA for n in nodes), colour, named=True))
    every = [y for line in rates for y in line.y if y]
    wide = max(every) >= _WIDE * min(every)  # else small sizes would lie on the axis
    counts = sorted({n for name in names for n in lines[name]})
    return Chart(
        title,
        Axis("nodes", "log" if counts[-1] >= 8 * counts[0] else "linear", base=2),
        (
            Panel(Axis("time", "log", "s", switch=True), tuple(times)),
            Panel(Axis("bus bandwidth (GB/s)", "log" if wide else "linear", switch=True), tuple(rates)),
        ),
        note=f"{left} more sizes are not drawn" if left else "",
    )


def plot_over_nodes(lines: dict[str, Line], title: str, provenance: str = "") -> Figure:
    """The figure of `over_nodes_chart`."""
    return draw(over_nodes_chart(lines, title), provenance=provenance)
