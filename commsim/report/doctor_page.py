"""The page of a diagnosis: which part is slow and how probable that is, what was tested, what to test next."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from commsim.doctor.cluster import HostCluster
from commsim.doctor.examination import Diagnosis
from commsim.report import style
from commsim.report.chart import Axis, Chart, Span
from commsim.report.diagnosis import advice, test_words, verdict_line
from commsim.report.page import Cell, Column, Page, Section, plot, table
from commsim.report.suspect_rows import LEAST, suspect_rows
from commsim.units import format_time

_MOST = 40  # bars of a chart
_MORE = re.compile(r"(,| or) its .*| or NVLinks$|, cable or port$")


def doctor_page(d: Diagnosis, cluster: HostCluster, assumed: Sequence[str] = ()) -> Page:
    """The answer, its suspects and hosts as bars, every test, those to run next, and what was `assumed`."""
    sections = []
    if d.suspicions and d.observed:
        rows = [(row.name, Cell(row.percent, row.probability), 100 * row.share, row.gain) for row in suspect_rows(d)]
        head: list[str | Column] = [
            "suspect",
            Column("probability", number=True),
            "rate left if slow (%)",
            "mended, calls are as fast (times)",
        ]
        drawn = plot(suspects_chart(d), "How probable it is that a part is slow.")
        sections.append(Section("Parts", (drawn, table(head, rows))))
        sections.append(Section("Hosts", (plot(hosts_chart(d, cluster), "The same of every host with its parts."),)))
    tests = [(test_words(o.test, cluster), Cell(format_time(o.seconds), o.seconds)) for o in d.observed]
    if tests:
        sections.append(Section("Tests", (table(["test", "time"], tests),)))
    following = [(test_words(one.test, cluster), one.bits) for one in d.following]
    if following:
        sections.append(Section("Next tests", (table(["test", "tells (bits)"], following),)))
    answer = (verdict_line(d), *advice(d))
    mind = (f"nothing says it, so assumed: {', '.join(assumed)}",) if assumed else ()
    return Page("Diagnosis of a cluster", "Which part is slow?", answer, tuple(sections), mind)


def suspects_chart(d: Diagnosis) -> Chart:
    """A bar per suspect, the likeliest first: the probability that it is slow."""
    # A narrow screen cuts names off at their end: what else the part is, which the table says, is left out.
    rows = suspect_rows(d)
    names = [_MORE.sub("", row.name).replace("network card", "card") for row in rows]
    likely = [(name, row.probability, row.percent) for name, row in zip(names, rows, strict=True)]
    return _bars(likely, "Suspects", "parts")


def hosts_chart(d: Diagnosis, cluster: HostCluster) -> Chart:
    """A bar per host, the likeliest first: the probability that a part of it is slow."""
    order = [int(at) for at in np.argsort(-d.of_hosts, kind="stable")]
    of = [(cluster.hosts[at], float(d.of_hosts[at])) for at in order]
    return _bars([(name, p, f"{100 * p:.1f} %") for name, p in of], "Hosts", "hosts")


def _bars(likely: list[tuple[str, float, str]], title: str, what: str) -> Chart:
    likely = [each for i, each in enumerate(likely) if each[1] >= LEAST or not i]
    shown, colour = likely[:_MOST], style.MEASURED_COLOURS[0]
    return Chart(
        title,
        Axis("probability that it is slow", unit="%", low=0.0, high=100.0),
        rows=tuple(name for name, *_ in shown),
        spans=tuple(Span(i, 0.0, 100 * p, percent, colour) for i, (_, p, percent) in enumerate(shown)),
        note=f"{len(likely) - _MOST:,} more {what} are not drawn" if len(likely) > _MOST else "",
    )
