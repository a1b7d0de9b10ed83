"""The report of a laboratory: is this machine as it should be, what was fitted, and what NCCL chose."""

from __future__ import annotations

from collections.abc import Iterable

import commsim
from commsim.lab.findings import Choice, Findings
from commsim.report.calibration import calibration_table, residuals_chart
from commsim.report.page import Cell, Code, Column, Page, Part, Section, plot, size_cell, table
from commsim.report.verdict import answer_line, compare_page
from commsim.units import GIB, GIGA, microseconds


def lab_page(findings: Findings, machine: str, faults: Iterable[str] = (), notes: Iterable[str] = ()) -> Page:
    """The whole page; parts without data are left out and named among the warnings."""
    answers = [answer_line(verdict, tried) for verdict, tried in findings.judged]
    sections: list[Section] = []
    warnings: list[str] = []
    if findings.judged:
        compared = compare_page(findings.judged, machine)
        sections += compared.sections
        warnings += compared.warnings
    if findings.calibration is not None:
        c = findings.calibration
        answers.append(
            f"Calibrated, the model is {100 * c.error(c.held_out_s):.1f} % off at sizes that the fit had not seen; "
            f"as shipped it was {100 * c.error(c.before_s):.1f} % off."
        )
        caption = "Error of the predicted time: by a fit that had not seen the size, and paler as shipped."
        drawn = plot(residuals_chart(c, machine), caption)
        sections.append(Section("Calibration", (drawn, Code(calibration_table(c)))))
    if findings.choices:
        answers.append(_agreement(findings.choices))
        sections.append(Section("What NCCL chose", (_choices(findings.choices),)))
    sections += [
        Section(title, (part(findings),))
        for measured, title, part in (
            (findings.traffic, "Bytes on the wire", _traffic),
            (findings.calls, "What a call costs", _calls),
            (findings.variants, "CUDA graphs and registered memory", _variants),
            (findings.steps, "Training steps", _steps),
            (findings.rates, "Rates of one GPU", _rates),
        )
        if measured
    ]
    return Page(
        title=machine,
        question="Is this machine as it should be?",
        answer=tuple(answers) or ("Nothing was measured that could be judged.",),
        sections=tuple(sections),
        warnings=tuple(dict.fromkeys([*faults, *findings.gaps, *notes, *warnings])),
        provenance=f"commsim gpu, commsim {commsim.__version__}.",
    )


_SIZE = Column("size", number=True)


def _agreement(choices: list[Choice]) -> str:
    same = sum(choice.agrees for choice in choices)
    return f"NCCL's logged algorithms and protocols are those of the model in {same} of {len(choices)} calls."


def _choices(choices: list[Choice]) -> Part:
    rows = [
        (
            c.collective, size_cell(c.nbytes), c.logged, c.predicted,
            "" if c.logged_channels is None else c.logged_channels, c.predicted_channels,
            "" if c.agrees else "differs",
        )
        for c in choices
    ]  # fmt: skip
    head: list[str | Column] = ["collective", _SIZE, "NCCL's log", "the model", "channels logged", "of the model", ""]
    return table(head, rows, "Algorithm/protocol of each call, and how many channels it was spread over.")


def _traffic(findings: Findings) -> Part:
    rows = [
        (name, size_cell(size), measured, predicted, 100 * (measured / predicted - 1))
        for name, size, measured, predicted in findings.traffic
        if predicted
    ]
    head: list[str | Column] = ["collective", _SIZE, "counted (B)", "of the schedule (B)", "difference (%)"]
    note = "Bytes that all ranks together sent in one call: ranks of a node that share an adapter are not told apart."
    return table(head, rows, note)


def _calls(findings: Findings) -> Part:
    rows = []
    for row in findings.calls:
        times = [float(row[name]) if row.get(name) else "" for name in ("oop_time_us", "ip_time_us")]
        rows.append((row["collective"], size_cell(int(row["size_bytes"])), *times))
    times_head = (Column(name, number=True) for name in ("out of place (us)", "in place (us)"))
    return table(
        ["collective", _SIZE, *times_head],
        rows,
        "One rank with a GPU for itself sends nothing: what calling and launching costs.",
    )


def _variants(findings: Findings) -> Part:
    rows = [
        (
            v.way, v.collective, size_cell(v.nbytes), float(microseconds(v.time_s)), float(microseconds(v.plain_s)),
            100 * (v.time_s / v.plain_s - 1),
        )
        for v in findings.variants
    ]  # fmt: skip
    head: list[str | Column] = ["as", "collective", _SIZE, "time (us)", "without (us)", "difference (%)"]
    return table(head, rows, "The same calls launched as CUDA graphs, and on memory registered with all ranks.")


def _steps(findings: Findings) -> Part:
    rows = [
        (
            str(step["name"]), 1e3 * step["step_s"], _ms(step["compute_s"]), _ms(step["exposed_comm_s"]),
            float(step["tokens_per_s"]), max(step["peak_memory_bytes"]) / GIB, step["wrong"],
        )
        for step in findings.steps
    ]  # fmt: skip
    numbers = ["time (ms)", "computing (ms)", "exposed communication (ms)", "tokens/s", "peak memory (GiB)", "#wrong"]
    head: list[str | Column] = ["step", *(Column(name, number=True) for name in numbers)]
    return table(head, rows, "Computing alone is blank where the model without its shards has no room on a GPU.")


def _ms(seconds: float | None) -> float | str:
    return "" if seconds is None else 1e3 * seconds


_RATE_UNITS = {"copy": (GIGA, "GB/s"), "launch": (1e6, "million/s")}


def _rates(findings: Findings) -> Part:
    rows = []
    for row in findings.rates:
        scale, unit = _RATE_UNITS.get(row["kind"], (1e12, "TFLOP/s"))
        rate = float(row["per_second"])
        rows.append(
            (row["kind"].replace("_", ", "), row["shape"], row["dtype"], Cell(f"{rate / scale:.4g} {unit}", rate))
        )
    head: list[str | Column] = ["what", "shape", "type", Column("rate", number=True)]
    return table(head, rows, "Copies count what is read and what is written.")


def summary(findings: Findings) -> list[str]:
    """What the command prints at its end, a line each."""
    lines = [answer_line(verdict, tried) for verdict, tried in findings.judged]
    if findings.calibration is not None:
        c = findings.calibration
        lines.append(
            f"calibrated: {100 * c.error(c.held_out_s):.1f} % error on sizes left out "
            f"(as shipped {100 * c.error(c.before_s):.1f} %)"
        )
    if findings.choices:
        lines.append(_agreement(findings.choices))
    return lines
