"""The page of a diagnosis: which part is slow and how probable that is, what was tested, what to test next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from commsim.doctor.cluster import HostCluster
from commsim.doctor.examination import Diagnosis
from commsim.report import style
from commsim.report.chart import Axis, Chart, Span
from commsim.report.diagnosis import diagnosis_lines, test_words, verdict_line
from commsim.report.page import Cell, Page, Section, plot, table
from commsim.units import format_time

_MOST = 40  # bars of a chart
_LEAST = 0.005  # probability from which on there is a bar


def doctor_page(d: Diagnosis, cluster: HostCluster, assumed: Sequence[str] = ()) -> Page:
    """The answer, its suspects and hosts as bars, every test, those to run next, and what was `assumed`."""
    sections = []
    if d.suspicions and d.observed:
        rows = [(s.name, 100 * s.probability, 100 * s.share, s.gain) for s in d.suspicions]
        head = ["suspect", "probability (%)", "rate left if slow (%)", "mended, calls are as fast (times)"]
        drawn = plot(suspects_chart(d), "How probable it is that a part is slow.")
        sections.append(Section("Parts", (drawn, table(head, rows))))
        sections.append(Section("Hosts", (plot(hosts_chart(d, cluster), "The same of every host with its parts."),)))
    tests = [(test_words(o.test, cluster), Cell(format_time(o.seconds), o.seconds)) for o in d.observed]
    if tests:
        sections.append(Section("Tests", (table(["test", "time"], tests),)))
    following = [(test_words(one.test, cluster), one.bits) for one in d.following]
    if following:
        sections.append(Section("Next tests", (table(["test", "tells (bits)"], following),)))
    notes = tuple(line.removeprefix("# ") for line in diagnosis_lines(d)[1:] if line.startswith("# no further test"))
    answer = (verdict_line(d), *notes)
    mind = (f"nothing says it, so assumed: {', '.join(assumed)}",) if assumed else ()
    return Page("Diagnosis of a cluster", "Which part is slow?", answer, tuple(sections), mind)


def suspects_chart(d: Diagnosis) -> Chart:
    """A bar per suspect, the likeliest first: the probability that it is slow."""
    # A narrow screen cuts names off at their end: what else the part is, which the table says, is left out.
    names = [s.name.partition(", ")[0].partition(" or ")[0].replace("network card ", "card ") for s in d.suspicions]
    return _bars([(name, s.probability) for name, s in zip(names, d.suspicions, strict=True)], "Suspects", "parts")


def hosts_chart(d: Diagnosis, cluster: HostCluster) -> Chart:
    """A bar per host, the likeliest first: the probability that a part of it is slow."""
    order = [int(at) for at in np.argsort(-d.of_hosts, kind="stable")]
    return _bars([(cluster.hosts[at], float(d.of_hosts[at])) for at in order], "Hosts", "hosts")


def _bars(likely: list[tuple[str, float]], title: str, what: str) -> Chart:
    likely = [each for i, each in enumerate(likely) if each[1] >= _LEAST or not i]
    shown, colour = likely[:_MOST], style.MEASURED_COLOURS[0]
    return Chart(
        title,
        Axis("probability that it is slow", unit="%", low=0.0, high=100.0),
        rows=tuple(name for name, _ in shown),
        spans=tuple(Span(i, 0.0, 100 * p, f"{100 * p:.1f} %", colour) for i, (_, p) in enumerate(shown)),
        note=f"{len(likely) - _MOST:,} more {what} are not drawn" if len(likely) > _MOST else "",
    )
