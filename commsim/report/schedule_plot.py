"""Space-time picture of a schedule: ranks down, steps across, one arrow per move, coloured by chunk.

Moves of one step between the same two endpoints share an arrow of several strands. Up to 16 ranks every move is
drawn, with its chunk on it; above, only the ways of a few chunks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from commsim.collectives.schedule import Op, Schedule
from commsim.report import style
from commsim.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHUNK_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B5579A", "#E69F00", "#3FA7D6", "#8C510A", "#5E4FA2")
_BAND, _SWITCH_BAND, _LINE = "#F6F6F6", "#EFEAF6", "#C4C4C4"
_MOST_FULL_RANKS, _MOST_FULL_STEPS, _MOST_FULL_ARROWS = 16, 40, 1200
_MOST_THIN_ARROWS = 1500
_MOST_STRANDS = 8
_DEPART, _ARRIVE = 0.17, 0.93  # parts of a step


@dataclass(frozen=True, slots=True)
class _Arrow:
    step: int
    src: int
    dst: int
    chunks: tuple[int, ...]
    reduces: bool


def plot_schedule(schedule: Schedule, title: str = "", *, width_in: float = 15.5) -> Figure:
    """The picture as a matplotlib Figure; writes nothing. Its steps take up to about ``width_in`` inches."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    s = schedule
    rows, note = _chosen(s)
    arrows = _arrows(s, rows)
    full = not note and s.steps <= _MOST_FULL_STEPS and len(arrows) <= _MOST_FULL_ARROWS
    steps = max(s.steps, 1)
    # Inches per step and per endpoint; around them 0.95 + 0.25 in width and 1.0 + 0.75 in height.
    across = float(np.clip(width_in / steps, 0.62, 1.5)) if full else float(np.clip(width_in / steps, 0.02, 1.0))
    down = float(np.clip(5.2 / s.endpoints, 0.42, 0.62)) if full else float(np.clip(7.5 / s.endpoints, 0.008, 0.42))
    width, height = max(across * steps, 6.2), down * s.endpoints
    across = width / steps
    with mpl.rc_context(cast("Any", style.RC)):
        figure = Figure(figsize=(width + 1.2, height + 1.75), facecolor="white")
        FigureCanvasAgg(figure)
        box = (0.95 / (width + 1.2), 1.0 / (height + 1.75), width / (width + 1.2), height / (height + 1.75))
        axes = figure.add_axes(box)
        _ground(axes, s, steps)
        colours = _colours(s)
        pen = _Pen(axes, across, down, colours, full)
        for arrow in arrows:
            pen.draw(arrow)
        pen.finish()
        _words(figure, axes, s, title, note)
        _key(figure, s, rows, colours, full)
    return figure


def _chosen(s: Schedule) -> tuple[np.ndarray[Any, Any], str]:
    """Rows to draw and, where that is not all, a note that says which."""
    rows = np.arange(s.rows)
    if s.endpoints <= _MOST_FULL_RANKS + 2 and s.rows <= 200_000:
        return rows, ""
    note = "strands of one arrow in one line"
    used, count = np.unique(s.src_chunk, return_counts=True)
    keep = max(1, int(np.searchsorted(np.cumsum(count), _MOST_THIN_ARROWS)))
    if keep < used.size:
        # Spread over the array: neighbours would draw nearly the same lines.
        chosen = used[np.linspace(0, used.size, min(keep, 6), endpoint=False).astype(int)]
        rows = np.flatnonzero(np.isin(s.src_chunk, chosen))
        note = f"{chosen.size} of {used.size} chunks drawn"
    every = -(-rows.size // (4 * _MOST_THIN_ARROWS))
    return rows[::every], note + (f", 1 of {every} moves" if every > 1 else "")


def _arrows(s: Schedule, rows: np.ndarray[Any, Any]) -> list[_Arrow]:
    bundles: dict[tuple[int, int, int, bool], list[int]] = defaultdict(list)
    columns = (s.step, s.src, s.dst, s.op, s.src_chunk)
    for step, src, dst, op, chunk in zip(*(column[rows].tolist() for column in columns), strict=True):
        bundles[step, src, dst, op == Op.REDUCE].append(chunk)
    return [_Arrow(step, src, dst, tuple(sorted(set(c))), reduces) for (step, src, dst, reduces), c in bundles.items()]


def _colours(s: Schedule) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    count = int(s.chunk_bytes.size)
    if count <= len(CHUNK_COLOURS):
        return list(CHUNK_COLOURS[:count])
    return [to_hex(colormaps["turbo"](0.06 + 0.88 * i / (count - 1))) for i in range(count)]


def _ground(axes: Axes, s: Schedule, steps: int) -> None:
    """Bands of steps, a line per endpoint, labels."""
    for step in range(0, steps if steps <= 60 else 0, 2):
        axes.axvspan(step, step + 1, color=_BAND, linewidth=0, zorder=0)
    if s.endpoints > s.world_size:
        axes.axhspan(s.world_size - 0.5, s.endpoints - 0.5, color=_SWITCH_BAND, linewidth=0, zorder=0.5)
    axes.hlines(range(s.endpoints), 0, steps, color=_LINE, linewidth=0.9 if s.endpoints <= 40 else 0.3, zorder=1)
    axes.set(xlim=(0, steps), ylim=(s.endpoints - 0.5, -0.5))
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    each = -(-s.endpoints // 32)
    shown = [e for e in range(s.endpoints) if e % each == 0]
    more = "server" if s.algorithm == "parameter_server" else "switch"
    axes.set_yticks(shown, [f"rank {e}" if e < s.world_size else f"{more} {e - s.world_size}" for e in shown])
    each = next(e for e in (1, 2, 5, 10, 20, 50, 100, 10**9) if steps / e <= 42)
    numbers = list(range(0, steps, each))
    axes.set_xticks([n + 0.5 for n in numbers], [str(n) for n in numbers])


class _Pen:
    """Draws arrows; lines and triangles are collected, marks at a rank are drawn once per step and rank."""

    def __init__(self, axes: Axes, across: float, down: float, colours: list[str], full: bool) -> None:
        self.axes, self.across, self.down, self.colours, self.full = axes, across, down, colours, full
        self.lines: list[tuple[Any, str, float]] = []  # ends, colour, width
        self.heads: list[tuple[Any, str]] = []  # corners, colour
        self.leaving: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.adding: dict[tuple[int, int], set[int]] = defaultdict(set)

    def draw(self, arrow: _Arrow) -> None:
        if arrow.src == arrow.dst:
            self._local(arrow)
            return
        start, end = (arrow.step + _DEPART, float(arrow.src)), (arrow.step + _ARRIVE, float(arrow.dst))
        if not self.full:
            self._line((arrow.step, start[1]), (arrow.step + 1, end[1]), arrow.chunks[0], 0.7 if arrow.reduces else 1.5)
            return
        along = np.array([(end[0] - start[0]) * self.across, (end[1] - start[1]) * self.down])
        along /= float(np.hypot(*along))
        strands = arrow.chunks if len(arrow.chunks) <= _MOST_STRANDS else arrow.chunks[:: -(-len(arrow.chunks) // 8)]
        gap = min(0.022, 0.09 / max(len(strands) - 1, 1))  # inches between strands
        half = 0.05 + 0.35 * gap * (len(strands) - 1)
        for i, chunk in enumerate(strands):
            aside = (i - (len(strands) - 1) / 2) * gap
            shift = (-along[1] * aside / self.across, along[0] * aside / self.down)
            stop = 0.0 if arrow.reduces else 2 * half
            tip = (end[0] + shift[0] - stop * along[0] / self.across, end[1] + shift[1] - stop * along[1] / self.down)
            self._line((start[0] + shift[0], start[1] + shift[1]), tip, chunk, 1.35 if len(strands) <= 4 else 1.0)
        self.leaving[arrow.step, arrow.src] |= set(arrow.chunks)
        if arrow.reduces:
            self.adding[arrow.step, arrow.dst] |= set(arrow.chunks)
        else:
            self._head(end, along, self._colour(set(arrow.chunks)), half)

    def _line(self, start: tuple[float, float], end: tuple[float, float], chunk: int, width: float) -> None:
        self.lines.append(([start, end], self.colours[chunk], width))

    def _colour(self, chunks: set[int]) -> str:
        return self.colours[min(chunks)] if len(chunks) == 1 else style.INK

    def _head(self, tip: tuple[float, float], along: Any, colour: str, half: float) -> None:
        """A triangle where a copy arrives."""
        side = np.array([-along[1], along[0]])
        corners = (0.02 * along, -2.5 * half * along + half * side, -2.5 * half * along - half * side)
        self.heads.append(([np.array(tip) + corner / (self.across, self.down) for corner in corners], colour))

    def _plus(self, step: int, rank: int, chunks: set[int]) -> None:
        """A circle with a plus where reductions arrive."""
        tip = (step + _ARRIVE, rank)
        self.axes.plot(*tip, "o", color=self._colour(chunks), markersize=8.2, markeredgewidth=0, zorder=5)
        self.axes.plot(*tip, "+", color="white", markersize=5.6, markeredgewidth=1.3, zorder=6)

    def _chip(self, step: int, rank: int, chunks: set[int]) -> None:
        """The numbers of the chunks that leave a rank."""
        from matplotlib.colors import to_rgb

        colour = self._colour(chunks) if len(chunks) == 1 else "white"
        light = float(np.dot(to_rgb(colour), (0.299, 0.587, 0.114))) > 0.62
        edge = style.INK if len(chunks) > 1 else "white"
        box = {"boxstyle": "round,pad=0.22,rounding_size=0.6", "facecolor": colour, "edgecolor": edge, "linewidth": 0.6}
        words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.6, "weight": "bold", "zorder": 7}
        ink = style.INK if light else "white"
        self.axes.text(step + _DEPART, rank, _chunk_words(sorted(chunks)), color=ink, bbox=box, **words)

    def _local(self, arrow: _Arrow) -> None:
        colour = self.colours[arrow.chunks[0]] if len(arrow.chunks) == 1 else style.INK
        middle = (arrow.step + (_DEPART + _ARRIVE) / 2 if self.full else arrow.step + 0.5, float(arrow.src))
        self.axes.plot(*middle, "s", color=colour, markersize=6.5 if self.full else 3, markeredgewidth=0, zorder=4)
        if self.full and arrow.reduces:
            self.axes.plot(*middle, "+", color="white", markersize=4.6, markeredgewidth=1.1, zorder=6)

    def finish(self) -> None:
        """Put everything collected on the axes."""
        from matplotlib.collections import LineCollection, PolyCollection

        ends, colours, widths = ([line[i] for line in self.lines] for i in range(3))
        self.axes.add_collection(LineCollection(ends, colors=colours, linewidths=widths, zorder=3), autolim=False)
        corners, colours = ([head[i] for head in self.heads] for i in range(2))
        self.axes.add_collection(PolyCollection(corners, facecolors=colours, linewidths=0, zorder=5), autolim=False)
        for (step, rank), chunks in self.adding.items():
            self._plus(step, rank, chunks)
        for (step, rank), chunks in self.leaving.items():
            self._chip(step, rank, chunks)


def _chunk_words(chunks: list[int]) -> str:
    """'3', '0–3', '1,4' or '×4'."""
    if len(chunks) == 1:
        return str(chunks[0])
    if chunks[-1] - chunks[0] == len(chunks) - 1:
        return f"{chunks[0]}–{chunks[-1]}"
    return ",".join(map(str, chunks)) if len(chunks) == 2 else f"×{len(chunks)}"


def _words(figure: Figure, axes: Axes, s: Schedule, title: str, note: str) -> None:
    width, height = figure.get_size_inches()
    root = f", root {s.root}" if s.root else ""
    axes.set_xlabel("step", labelpad=3)
    ranks = f"{s.world_size} rank{'s' if s.world_size > 1 else ''}"
    heading = title or f"{s.algorithm.replace('_', ' ')} {s.collective}, {ranks}{root}"
    left = 0.16 / width
    figure.text(left, 1 - 0.16 / height, heading, va="top", fontsize=13, weight="bold", color=style.INK)
    facts = [
        f"{s.steps} step{'s' if s.steps != 1 else ''}",
        f"{s.rows} moves of {s.chunk_bytes.size} chunk{'s' if s.chunk_bytes.size != 1 else ''}",
    ]
    if s.nbytes:
        most = int(max(s.sent_bytes()[: s.world_size].max(), s.received_bytes()[: s.world_size].max()))
        facts.append(f"busiest rank sends or receives {most / s.nbytes:.4g} × {format_bytes(s.nbytes)}")
    text = "; ".join([*facts, *([note] if note else [])])
    figure.text(left, 1 - 0.47 / height, text, va="top", fontsize=9, color=style.MUTED)


def _key(figure: Figure, s: Schedule, rows: np.ndarray[Any, Any], colours: list[str], full: bool) -> None:
    """What colours and heads mean, below the picture."""
    from matplotlib.lines import Line2D

    mark: dict[str, Any] = {"linestyle": "none", "color": "#555555", "markeredgewidth": 0}
    line: dict[str, Any] = {"color": "#555555"}
    copies = mark | {"marker": ">", "markersize": 6} if full else line | {"linewidth": 1.5}
    adds = mark | {"marker": "$\u2295$", "markersize": 8.5} if full else line | {"linewidth": 0.7}
    across, reduces = s.src[rows] != s.dst[rows], s.op[rows] == Op.REDUCE
    kinds = (
        (across & ~reduces, "copies", copies),
        (across & reduces, "adds to what is there", adds),
        (~across, "within the rank", mark | {"marker": "s", "markersize": 5.5}),
    )
    handles = [Line2D([], [], label=label, **look) for some, label, look in kinds if some.any()]
    used = np.unique(s.src_chunk[rows]).tolist()
    shown = used if len(used) <= 8 else [used[i] for i in np.linspace(0, len(used) - 1, 6).astype(int)]
    chunks = [Line2D([], [], color=colours[c], linewidth=3, label=f"chunk {c}") for c in shown]
    width, height = figure.get_size_inches()
    options: dict[str, Any] = {"columnspacing": 1.3, "handlelength": 1.2, "handletextpad": 0.5, "borderaxespad": 0}
    options |= {"loc": "lower left", "fontsize": 8}
    for drawn, above in ((handles, 0.33), (chunks, 0.11)):
        if drawn:
            place = (0.16 / width, above / height)
            figure.legend(handles=drawn, bbox_to_anchor=place, ncols=len(drawn), **options)
