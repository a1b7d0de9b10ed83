"""Verdicts on several logs at once: one table, an overall sentence, and JUnit for acceptance tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from xml.etree import ElementTree as ET

import numpy as np

from commsim.accuracy.verdict import Verdict
from commsim.report.tables import aligned
from commsim.report.verdict import Judged, answer_line
from commsim.units import factor_text, format_bytes

GRAVEST = ("wrong", "slower", "unjudged", "faster", "as expected")
"""States of a verdict, the one that decides over others first."""


def overall(verdicts: Sequence[Verdict]) -> str:
    """The verdict on all of several logs: the gravest, and how many of them it is."""
    count = Counter(verdict.state for verdict in verdicts)
    state = next(s for s in GRAVEST if count[s])
    wrong_data = all(v.comparison.measured.wrong_rows for v in verdicts if v.state == "wrong")
    words = {"wrong": "wrong data" if wrong_data else "wrong", "unjudged": "cannot judge"}.get(state, state)
    rest = ", ".join(f"{count[s]} {s}" for s in GRAVEST if s != state and count[s])
    logs = len({v.comparison.measured.source or id(v.comparison.measured) for v in verdicts})
    of = "logs" if logs == len(verdicts) else f"curves of {logs} log{'s' * (logs > 1)}"
    return f"overall: {words}: {count[state]} of {len(verdicts)} {of}" + (f" ({rest})" if rest else "")


_LONGEST = 30  # characters of a log's name


def logs_table(verdicts: Sequence[Verdict]) -> str:
    """A line for each log: what it measured, median measured / predicted time, verdict; ends with a newline."""
    rows = [["# log", "collective", "ranks", "sizes", ">1 MiB", "verdict"]]
    for verdict in verdicts:
        measured, sizes = verdict.comparison.measured, verdict.comparison.size_bytes
        name = measured.name if len(measured.name) <= _LONGEST else f"...{measured.name[3 - _LONGEST :]}"
        span = f"{format_bytes(int(sizes[0]))} .. {format_bytes(int(sizes[-1]))}"
        large = next((part for part in verdict.parts if part.name == "large"), None)
        factor = "" if large is None else factor_text(float(np.exp(large.middle)))
        rows.append([f"  {name}", measured.collective, str(measured.n_ranks), span, factor, verdict.state])
    return "\n".join(aligned(rows, (0, 1, 3, 5), spare=(3, 2, 1))) + "\n"


def junit(results: Sequence[Judged], failing: Collection[str]) -> str:
    """A JUnit document with a test case for each log: a failure where its verdict is among `failing`.

    What cannot be judged, and does not fail, is skipped.
    """
    states = [verdict.state for verdict, _ in results]
    suite = ET.Element(
        "testsuite",
        name="commsim compare",
        tests=str(len(results)),
        failures=str(sum(state in failing for state in states)),
        skipped=str(sum(state == "unjudged" and state not in failing for state in states)),
    )
    for verdict, tried in results:
        measured = verdict.comparison.measured
        case = ET.SubElement(suite, "testcase", classname=measured.collective, name=_printable(measured.name))
        line = _printable(answer_line(verdict, tried))
        if verdict.state in failing:
            ET.SubElement(case, "failure", type=verdict.state, message=line)
        elif verdict.state == "unjudged":
            ET.SubElement(case, "skipped", message=line)
        else:
            ET.SubElement(case, "system-out").text = line
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """Text without what XML cannot hold."""
    return "".join(c if c.isprintable() or c == " " else "?" for c in text)
