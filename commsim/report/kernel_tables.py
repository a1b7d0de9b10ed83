"""Which all-reduce from which size, as a table and as a map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commsim.kernels.choice import FRAMEWORKS
from commsim.nccl.version import format_version
from commsim.planner.kernels import KernelStretch, KernelTuning, notes_of
from commsim.report.crossover import Winner, plot_map
from commsim.report.tables import folded, width
from commsim.units import format_bytes, format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_WIDE, _NARROW = 20, 8
"""Columns of the sizes at most, and where a terminal has no room for that."""


def kernel_tables(tunings: Sequence[KernelTuning]) -> str:
    """For each number of GPUs the winner from a size on, then each framework's rules; ends with a newline."""
    contest = tunings[0].contest
    version = format_version(contest.nccl.version or (0, 0, 0))
    env = f" with {' '.join(f'{name}={value}' for name, value in contest.nccl.env.items())}" if contest.nccl.env else ""
    lines = [
        f"# all_reduce of {contest.dtype} on {tunings[0].machine}, {contest.calls}; predicted",
        f"# NCCL {version}{env}: {', '.join(contest.candidates)}",
        *(f"# note: {text}" for text in notes_of(tunings)),
    ]
    first = _WIDE if width() >= _WIDE + 52 else _NARROW
    for t in tunings:
        head = f"{'from':>{first - len(str(t.ranks)) - 7}}  {'quickest':<29} {'takes':>9}  {'NCCL':>9}"
        lines += (
            [f"# {t.ranks} GPUs{head}"] if first == _WIDE else [f"# {t.ranks} GPUs: from, quickest, takes, NCCL takes"]
        )
        for stretch in t.winners:
            of = {name: format_time(float(f"{s:.3g}")) for name, s in t.seconds[stretch.low].items()}
            lines.append(f"{format_bytes(stretch.low):>{first}}  {stretch.name:<29} {of['winner']:>9}  {of['nccl']:>9}")
        for name in FRAMEWORKS:
            lost = f"{100.0 * t.lost[name]:.1f} % lost on average"
            lines.append(f"#   {name} ships: {_words(t.shipped[name])}; {lost}")
            if t.best[name] != t.shipped[name]:
                lines.append(f"#   {' ' * len(name)}  best: {_words(t.best[name])}")
    return "\n".join(folded(lines)) + "\n"


def _words(stretches: Sequence[KernelStretch]) -> str:
    first, *rest = stretches
    return ", ".join([first.kernel, *(f"{s.kernel} from {format_bytes(s.low)}" for s in rest)])


def kernel_map(tunings: Sequence[KernelTuning]) -> Figure:
    """A colour for the quickest at each size and number of GPUs."""
    winners = []
    for t in tunings:
        for size in t.seconds:
            stretch = [s for s in t.winners if s.low <= size][-1]
            winners.append(Winner(size, t.ranks, stretch.name, t.machine))
    return plot_map(winners, f"all_reduce on {tunings[0].machine}, {tunings[0].contest.calls}")
