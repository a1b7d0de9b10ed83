"""One look for every figure: colours, markers, line widths, ticks in powers of two."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from commsim.report.fonts import FONT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette, distinguishable with every common colour vision (jfly.uni-koeln.de/color, 2008).
# Predictions and measurements take colours in order, each from its own list: neither changes with the other.
PREDICTED_COLOURS = ("#0072B2", "#CC79A7", "#56B4E9")
MEASURED_COLOURS = ("#D55E00", "#009E73", "#E69F00", "#8C510A", "#555555", "#000000")
MEASURED_MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#222222"
MUTED = "#6B6B6B"
GRID = "#E3E3E3"
BOUND = "#8A8A8A"

# The same thing has the same colour in every picture. What is computed is blue and green, what is sent warm.
COMPUTE, BACKWARD, OPTIMIZER, WAITING, HOST = "#0072B2", "#009E73", "#56B4E9", "#BBBBBB", "#555555"
TP, CP, EP, DP, PP = "#D55E00", "#E69F00", "#8C510A", "#CC79A7", "#882255"

CAUSES = {
    "compute": COMPUTE, "tp": TP, "cp": CP, "ep": EP, "dp": DP, "offload": "#000000", "pp": PP, "bubble": WAITING,
    "optimizer": OPTIMIZER, "constant": "#F0E442",
}  # fmt: skip
"""Of the time of a training step."""

PASSES = {
    "F": COMPUTE, "B": BACKWARD, "I": "#00664B", "W": "#8FD3B8", "optimizer": OPTIMIZER, "reduce": DP,
    "gather": "#E8BFD6", "send": PP,
}  # fmt: skip
"""Of a pipeline: forward, backward (of inputs, of weights), and what is sent, as the axis that sends it."""

ENGINE = {
    "products": COMPUTE, "attention": OPTIMIZER, "experts": BACKWARD, "collectives": TP, "dispatch": EP,
    "elementwise": "#999933", "sampling": "#F0E442", "host": HOST, "idle": "#DDDDDD",
}  # fmt: skip
"""Of the time of an engine that generates."""

STAGES = {
    "rollout": BACKWARD, "scoring": OPTIMIZER, "update": COMPUTE, "sync": TP, "transfer": CP, "control": WAITING,
}  # fmt: skip
"""Of a step of reinforcement learning."""

# By the beginning of their names: what is alike shares a hue, so that every algorithm has its own in all pictures.
_ALGORITHMS = {
    "ring": "#0072B2", "tree": "#D55E00", "nvls": "#009E73", "nvls_tree": "#CC79A7", "pat": "#E69F00",
    "collnet": "#56B4E9", "sharp": "#56B4E9", "recursive": "#882255", "rabenseifner": "#882255", "direct": "#999933",
    "pairwise": "#999933", "hierarchical": "#44AA99", "swing": "#332288", "torus": "#AA4499", "bruck": "#117733",
    "dissemination": "#117733", "binomial": "#8C510A", "knomial": "#8C510A", "double_binary_tree": "#D55E00",
    "chain": "#6699CC", "flat": "#555555", "parameter_server": "#555555", "reduce_": "#661100", "scatter": "#661100",
    "nccl": "#0072B2", "vllm": "#009E73", "sglang": "#E69F00", "tensorrt_llm": "#CC79A7",
}  # fmt: skip
_COLLECTIVES = {
    "all_reduce": "#0072B2", "all_gather": "#009E73", "reduce_scatter": "#CC79A7", "broadcast": "#E69F00",
    "reduce": "#8C510A", "all_to_all": "#D55E00", "send_recv": "#56B4E9", "gather": "#999933", "scatter": "#882255",
}  # fmt: skip
_PROTOCOLS = {"LL": 0.55, "LL128": 0.28}  # how much paler than Simple

RC: dict[str, Any] = {
    "font.family": FONT,
    "font.size": 10.0,
    "axes.titlesize": 12.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.labelsize": 10.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9A9A9A",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "savefig.dpi": 150,
    "svg.hashsalt": "commsim",  # the same figure is the same file
}


@contextmanager
def drawing(width: float, height: float, provenance: str = "", **subplots: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure of so many inches with its axes (`subplots` as of `Figure.subplots`), signed when it is done."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from commsim.report.figure import ShownFigure

    with mpl.rc_context(cast("Any", RC)):
        figure = ShownFigure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(**subplots)
        _fold(figure, width)
        if provenance:
            figure.text(0.992, 0.006, provenance, ha="right", va="bottom", fontsize=7.5, color=MUTED)


_TITLE, _LABEL = 8.3, 11.0
"""Characters of an inch of a title, and of a legend's label."""

_SMALLER = 1.25
"""Times its characters that a title may have in one line, in smaller letters."""


def _fold(figure: Figure, width: float) -> None:
    """Titles and labels that are wider than the figure in smaller letters or several lines: names hold all changes."""
    from matplotlib.text import Text

    room = int(_TITLE * width)
    for axes in figure.axes:
        titles = {axes.get_title(loc="left"), axes.get_title(loc="center")}
        for text in axes.findobj(Text):
            title = text.get_text()
            if title not in titles or len(title) <= room or "\n" in title:
                continue
            if len(title) <= _SMALLER * room:
                text.set_fontsize(float(text.get_fontsize()) * room / len(title))
            else:
                text.set_text(_evenly(title, room))
    for legend in figure.legends:
        for text in legend.get_texts():
            if len(text.get_text()) > _LABEL * width:
                text.set_text(textwrap.fill(text.get_text(), int(_LABEL * width)))


def _evenly(text: str, room: int) -> str:
    """A text in as few lines as fit, of much the same length: none of a word alone."""
    fewest = len(textwrap.wrap(text, room))
    lengths = range(len(text) // fewest, room + 1)
    return "\n".join(next(lines for n in lengths if len(lines := textwrap.wrap(text, n)) == fewest))


def size_ticks(low: float, high: float, at_most: int = 12) -> list[int]:
    """Powers of two in [low, high], evenly spaced in the exponent and few enough to label."""
    first, last = max(0, int(low).bit_length() - 1), max(1, int(high)).bit_length() - 1
    if 2**first < low:
        first += 1
    span = max(1, last - first)
    step = next(s for s in (1, 2, 3, 4, 5, 6, 8, 10, 12, 64) if span // s < at_most)
    return [2**e for e in range(first, last + 1, step)]


def size_axis(axes: Axes, low: float, high: float) -> None:
    """Make x a log axis of message sizes with KiB, MiB and GiB labels."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from commsim.units import format_bytes

    axes.set_xscale("log", base=2)
    axes.set_xlim(low / 2**0.5, high * 2**0.5)
    axes.xaxis.set_major_locator(FixedLocator(size_ticks(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))


def colours(palette: Sequence[str], count: int) -> list[str]:
    """`count` colours that differ: those of a palette, and behind them darker and lighter shades of its colours."""
    from matplotlib.colors import to_hex, to_rgb

    shades = []
    for i in range(count):
        turn, place = divmod(i, len(palette))
        shade = (0.0, -0.35, 0.4, -0.6, 0.6)[min(turn, 4)]
        end = 1.0 if shade > 0 else 0.0
        red, green, blue = (c + (end - c) * abs(shade) for c in to_rgb(palette[place]))
        shades.append(to_hex((red, green, blue)))
    return shades


def algorithm_colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each ``ring`` or ``ring/LL``: that of its kind in every picture, paler for LL and LL128.

    Several of a kind in one picture are shades of it.
    """
    own: dict[str, str] = {}
    taken: dict[str, int] = {}
    for name in dict.fromkeys(name.split("/")[0] for name in names):
        kinds = [kind for kind in _ALGORITHMS if name.startswith(kind)]
        hue = _ALGORITHMS[max(kinds, key=len)] if kinds else MUTED
        taken[hue] = taken.get(hue, -1) + 1
        own[name] = colours([hue], taken[hue] + 1)[-1]
    return {name: paler(own[name.split("/")[0]], _PROTOCOLS.get(name.partition("/")[2], 0.0)) for name in names}


def collective_colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each collective, the same in every picture."""
    return {name: _COLLECTIVES.get(name, MUTED) for name in names}


def paler(colour: str, share: float) -> str:
    """A colour nearer to white, by a share of the way."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = (c + (1 - c) * share for c in to_rgb(colour))
    return to_hex((red, green, blue))


def sequence(count: int) -> list[str]:
    """Colours of ordered values, from dark to light: viridis (Smith & van der Walt 2015) without its pale end."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.85 * i / max(1, count - 1))) for i in range(count)]


_HUES = (COMPUTE, TP, BACKWARD, DP, EP, PP)
_NUMBER = re.compile(r"(?<![A-Za-z\d])[\d.,]*\d(?: ?(?:[KMGTP]i?B(?:/s)?|B|[MGT]b/s|[num]?s)\b)?")


def ordered(names: Sequence[str]) -> list[int] | None:
    """The place of each name by its number, where the names are alike but for one; None of other names."""
    if len(names) < 2 or len({_NUMBER.sub("#", name) for name in names}) > 1:
        return None
    rows = list(zip(*(_NUMBER.findall(name) for name in names), strict=True))
    changing = [row for row in rows if len(set(row)) > 1]
    if len(changing) != 1:
        return None
    values = [_value(text) for text in changing[0]]
    return [sorted(values).index(value) for value in values]


def _value(text: str) -> float:
    """The number of ``4`` or ``64 MiB``, in SI units."""
    from commsim.units import parse_bandwidth, parse_bytes, parse_time

    bare = text.replace(",", "")
    if bare[-1].isdigit():
        return float(bare)
    parse = parse_bandwidth if bare.endswith("/s") else parse_bytes if bare.endswith("B") else parse_time
    return float(parse(bare))


def line_colours(names: Sequence[str], palette: Sequence[str]) -> list[str]:
    """Colours of lines: a sequence where their names are ordered values, those of the palette otherwise.

    Names of several kinds with values (``all_reduce, 1 MiB``) have a colour for each kind, paler for smaller values.
    """
    places = ordered(names)
    if places is not None and len(names) > 2:
        shades = sequence(len(names))
        return [shades[place] for place in places]
    kind_of = {name: _NUMBER.sub("#", name.split(" and ")[0]) for name in names}  # several alike are as the first
    kinds = list(dict.fromkeys(kind_of.values()))
    if set(names) <= set(_COLLECTIVES):
        return [_COLLECTIVES[name] for name in names]
    if len(names) < 2 * len(kinds) or len(kinds) > len(_HUES):
        return colours(palette, len(names))
    hue = {kind: next((c for name, c in _COLLECTIVES.items() if name in kind), "") for kind in kinds}
    if not all(hue.values()) or len(set(hue.values())) < len(kinds):
        hue = dict(zip(kinds, _HUES, strict=False))
    made = dict.fromkeys(names, "")
    for kind in kinds:
        mine = [name for name in names if kind_of[name] == kind]
        mine.sort(key=lambda name: [_value(text) for text in _NUMBER.findall(name.split(" and ")[0])])
        for i, name in enumerate(reversed(mine)):
            made[name] = paler(hue[kind], 0.6 * i / max(1, len(mine) - 1))
    return list(made.values()) if len(made) == len(names) else colours(palette, len(names))


_DARK = 0.25
"""Luminance up to which letters of a colour are read on white: a contrast of 3.5 (WCAG 2)."""


def ink_like(colour: str) -> str:
    """A colour for letters on white: as dark as they need, else as it is."""
    from matplotlib.colors import to_hex, to_rgb

    rgb = to_rgb(colour)
    while _luminance(rgb) > _DARK:
        rgb = (0.93 * rgb[0], 0.93 * rgb[1], 0.93 * rgb[2])
    return to_hex(rgb)


def ink_on(colour: str) -> str:
    """Black or white, whichever can be read on a colour (relative luminance of WCAG 2)."""
    from matplotlib.colors import to_rgb

    return "#000000" if _luminance(to_rgb(colour)) > 0.2 else "#FFFFFF"


def _luminance(rgb: tuple[float, float, float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
