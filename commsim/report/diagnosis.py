"""A diagnosis in words, as a document, and as a picture: the hosts as a grid, the suspects as bars."""

from __future__ import annotations

import math
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.doctor.cluster import HostCluster
from commsim.doctor.examination import Diagnosis
from commsim.doctor.group_test import GroupTest
from commsim.report import style
from commsim.report.suspect_rows import LEAST, shown_rows, suspect_rows
from commsim.report.tables import aligned, fitted
from commsim.units import format_bytes, microseconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CERTAIN = 0.9
"""Probability from which on a part, or a host, is called slow though the whole answer is less sure."""

_WORDS = {
    "across": "one ring per GPU place across hosts",
    "inside": "a ring inside each host",
    "all": "one ring of all",
}


def host_words(hosts: tuple[int, ...], cluster: HostCluster, most: int = 5) -> str:
    """Hosts of a test in the order of its ring: all, or the first few and how many."""
    if len(hosts) == len(cluster.hosts):
        return f"all {len(hosts)} hosts"
    names = [cluster.hosts[host] for host in hosts]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def test_words(test: GroupTest, cluster: HostCluster) -> str:
    """A test in one line."""
    one = len(test.gpus) == 1 and cluster.gpus == 1
    gpus = (
        "" if len(test.gpus) == cluster.gpus else f", GPU{'s' * (len(test.gpus) > 1)} {', '.join(map(str, test.gpus))}"
    )
    shift = f" (of the second host {test.shift} further)" if test.shift else ""
    how = "" if one else f", {_WORDS[test.scope]}"
    return f"{test.collective} of {format_bytes(test.nbytes)} on {host_words(test.hosts, cluster)}{gpus}{shift}{how}"


def verdict_line(d: Diagnosis) -> str:
    """The answer, and how sure it is."""
    if not d.observed:
        return "Nothing has been measured yet."
    after = f"after {len(d.observed)} test{'s' * (len(d.observed) != 1)}"
    if d.factor is not None:
        return _factor_line(d.factor)
    if not d.fits:
        return (
            f"The tests contradict each other {after}: neither one fault nor two explain them. Repeat the test that "
            "stands out, or state the noise (--noise)."
        )
    if not d.blamed and not d.sure and d.healthy < _CERTAIN:
        return f"No answer is sure yet; likeliest is that nothing is slow ({100 * d.healthy:.1f} %) {after}."
    if not d.blamed:
        return f"Nothing is slow: {100 * d.healthy:.1f} % sure {after}."
    names = "; ".join(d.suspects.name(at) for at in d.blamed[:4])
    more = f"; and {len(d.blamed) - 4} more" if len(d.blamed) > 4 else ""
    host = int(d.of_hosts.argmax())
    certain = [each for each in d.suspicions if each.probability >= _CERTAIN]
    if not d.sure and d.answer < _CERTAIN and certain:
        names = "; ".join(each.name for each in certain)
        p = min(each.probability for each in certain)
        return f"{names}: {100 * p:.1f} % sure {after}. Whether anything else is slow is not sure yet."
    if not d.sure and d.answer < _CERTAIN <= d.of_hosts[host]:
        return f"{d.suspects.cluster.hosts[host]}: a part of it is slow, {100 * d.of_hosts[host]:.1f} % sure {after}."
    if d.answer < 0.5:
        return f"No answer is likely yet {after}; the likeliest ({100 * d.answer:.1f} %): {names}{more}."
    located = "" if d.located else f"{'One' if d.faults == 1 else 'Some'} of these, which are not told apart yet: "
    return f"{located}{names}{more}: {100 * d.answer:.1f} % sure {after}."


def _factor_line(factor: float) -> str:
    """That all tests are off by one factor, and what that may be."""
    if factor < 1:
        return (
            f"All tests are faster than this machine allows (the middle one takes {1 / factor:.3g} times less): "
            "the wrong machine, or a wrong size or time."
        )
    return (
        f"All tests take {factor:.3g} times what this machine should: the whole cluster, the wrong machine, "
        "or a setting."
    )


def diagnosis_lines(d: Diagnosis) -> list[str]:
    """The answer, the suspects, and why it ends where it ends."""
    lines = ["\n".join(fitted([verdict_line(d)]))]
    shown, more = shown_rows(d) if d.factor is None or d.factor > 1 else ([], 0)  # too quick is no part's fault
    if d.observed and shown and (not d.fits or d.factor is not None):
        lines += fitted(["# the likeliest suspects, were one part or two to blame all the same:"])
    if d.observed and shown:
        rows = [
            ("#  suspect", "probability", "rate left", "mended, calls are"),
            ("", "", "(if slow)", "as fast (times)"),
        ]
        rows += [(f"   {row.name}", row.percent, f"{100 * row.share:.0f} %", f"{row.gain:.2f}") for row in shown]
        lines += filter(None, aligned(rows, spare=[2, 3]))
        lines += [f"# and {more} more of {100 * LEAST:.1f} % and above"] if more else []
    return lines + fitted(f"# {text}" for text in advice(d))


def advice(d: Diagnosis) -> list[str]:
    """What to do where no test tells more."""
    if not d.observed or d.following or d.sure:
        return []
    return ["no further test tells these apart: swap a cable or a card between hosts, and run again"]


def diagnosis_dict(d: Diagnosis, cluster: HostCluster) -> dict[str, Any]:
    """The figures; times in microseconds."""
    return {
        "healthy": d.healthy,
        "sure": d.sure,
        "fits": d.fits,
        "factor": d.factor,
        "answer": {"slow": [d.suspects.name(at) for at in d.blamed], "probability": d.answer, "located": d.located},
        "hosts": {
            cluster.hosts[at]: float(d.of_hosts[at]) for at in np.argsort(-d.of_hosts)[:20] if d.of_hosts[at] > 1e-4
        },
        "tests": len(d.observed),
        "rounds": d.rounds,
        "suspects": [
            {"suspect": s.name, "probability": s.probability, "rate_left": s.share, "gain": s.gain}
            for s in d.suspicions
        ],
        "observed": [_test_dict(o.test, cluster) | {"time_us": microseconds(o.seconds)} for o in d.observed],
        "next": [_test_dict(choice.test, cluster) | {"bits": choice.bits} for choice in d.following],
    }


def _test_dict(test: GroupTest, cluster: HostCluster) -> dict[str, Any]:
    return {
        "hosts": [cluster.hosts[host] for host in test.hosts],
        "gpus": list(test.gpus),
        "scope": test.scope,
        "shift": test.shift,
        "collective": test.collective,
        "size_bytes": test.nbytes,
    }


def plot_diagnosis(d: Diagnosis) -> Figure:
    """Hosts as a grid, coloured by the probability that something of a host is slow; the likeliest suspects as bars."""
    from matplotlib.ticker import PercentFormatter

    s = d.suspects
    hosts = len(s.cluster.hosts)
    of_host = d.of_hosts
    columns = min(64, math.ceil(math.sqrt(hosts * 2.5)))
    grid = np.full((math.ceil(hosts / columns), columns), np.nan)
    grid.ravel()[:hosts] = of_host
    shown, more = shown_rows(d)
    bars = shown or suspect_rows(d)
    height = 1.6 + min(6.0, 0.5 * grid.shape[0] + 0.6) + 0.36 * max(1, len(bars))
    ratios = (min(6.0, 0.5 * grid.shape[0] + 0.6), 0.36 * max(1, len(bars)) + 0.3)
    with style.drawing(9.0, height, nrows=2, height_ratios=ratios) as (figure, axes):
        top, bottom = axes
        image = top.imshow(grid, cmap="OrRd", vmin=0.0, vmax=1.0, aspect="auto")
        figure.suptitle("\n".join(wrap(verdict_line(d), 100)), fontsize=11, fontweight="bold", x=0.01, ha="left")
        top.grid(visible=False)
        top.set_xticks([])
        top.set_yticks([])
        top.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        top.set_yticks(np.arange(grid.shape[0] + 1) - 0.5, minor=True)
        top.grid(which="minor", color="white", linewidth=1.5 if hosts <= 256 else 0.4)
        top.tick_params(which="minor", length=0)
        for side in top.spines.values():
            side.set_visible(False)
        for host in range(hosts) if hosts <= 64 else np.flatnonzero(of_host >= 0.05)[:40]:
            row, column = divmod(int(host), columns)
            colour = "white" if of_host[host] > 0.6 else style.INK
            name = s.cluster.hosts[host]
            top.text(
                column,
                row,
                name if len(name) <= 9 else f"..{name[-7:]}",
                ha="center",
                va="center",
                fontsize=6.5,
                color=colour,
            )
        figure.colorbar(
            image,
            ax=top,
            label="probability that a part\nof the host is slow",
            pad=0.01,
            format=PercentFormatter(1.0, symbol=" %"),
        )
        names = [each.name for each in bars][::-1]
        values = [each.probability for each in bars][::-1]
        bottom.barh(range(len(bars)), values, color=style.MEASURED_COLOURS[0], height=0.65)
        bottom.set_yticks(range(len(bars)), names)
        bottom.set_xlim(0.0, 1.12)
        bottom.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
        bottom.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        bottom.set_xlabel(f"probability that it is slow{f' (and {more} more suspects)' if more else ''}")
        for i, each in enumerate(bars[::-1]):
            bottom.text(each.probability + 0.01, i, each.percent, va="center", fontsize=8)
    return figure
