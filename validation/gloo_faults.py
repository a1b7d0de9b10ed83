"""Scores gloo's model against the testbed with known faults, and writes that into docs/accuracy-gloo.md.

Measured (`validation/runs/faults`): slow or missing links, a rank that stops before its calls, two jobs at once.
Nothing is fitted to these runs: the parameters are those of the healthy runs in `validation/runs/testbed`, made before.
`python validation/gloo_faults.py` prints the tables and writes the section; it takes some seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commsim.files import write_atomically
from commsim.measure.capture import read_object
from commsim.measure.run_folder import JOBS
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run
from commsim.scenario.schema import Scenario
from commsim.units import format_bytes

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "validation" / "runs"
FAULTS = RUNS / "faults"
PAGE = ROOT / "docs" / "accuracy-gloo.md"
BEGIN, END = "<!-- begin: faults -->", "<!-- end: faults -->"
BAR = 0.10

PARAMS = {
    "star": "star",
    "fast-star": "star",
    "tree": "tree",
    "ring": "ring",
    "jobs": "tree",
    "more-star": "star",
    "more-tree": "tree",
    "more-jobs": "tree",
}
"""By file of scenarios, the healthy run of the testbed whose parameters predict it."""

LATER = "more-"
"""How files begin that were measured when the model stood: some of it was decided with the others in view."""


@dataclass(frozen=True)
class Point:
    """One measured time with a cause, beside the time without it: of the healthy machine, or of the job alone."""

    cause: str
    scenario: str
    call: str
    measured_s: float
    without_s: float
    predicted_s: float
    predicted_without_s: float
    shipped_s: float

    @property
    def error(self) -> float:
        """Of the predicted time, as a share of the measured one."""
        return self.predicted_s / self.measured_s - 1

    @property
    def shipped_error(self) -> float:
        """The same, with the shipped parameters."""
        return self.shipped_s / self.measured_s - 1

    @property
    def slowdown(self) -> float:
        """Measured."""
        return self.measured_s / self.without_s

    @property
    def predicted_slowdown(self) -> float:
        """Predicted."""
        return self.predicted_s / self.predicted_without_s

    @property
    def slowdown_error(self) -> float:
        """Of the predicted slowdown, as a share of the measured one."""
        return self.predicted_slowdown / self.slowdown - 1


def points() -> list[Point]:
    """Every recorded point, in the order of the files."""
    return [point for file in PARAMS for point in (_of_jobs(file) if file.endswith("jobs") else _of_faults(file))]


def _of_faults(file: str) -> Iterator[Point]:
    """Rows of the scenarios of a file, the first of which is the healthy machine."""
    healthy, *others = [
        (scenario, _times(file, scenario), _times(file, shipped))
        for scenario, shipped in zip(_scenarios(file), _as_shipped(file), strict=True)
    ]
    for scenario, times, as_shipped in others:
        cause = _named("slow or failed link" if scenario.variation is None else "late rank", file)
        for key, (measured_s, predicted_s) in times.items():
            without_s, predicted_without_s = healthy[1][key]
            call = f"{key[0]} of {format_bytes(key[1])}"
            values = measured_s, without_s, predicted_s, predicted_without_s, as_shipped[key][1]
            yield Point(cause, scenario.name, call, *values)


def _named(cause: str, file: str) -> str:
    return f"{cause}, later" if file.startswith(LATER) else cause


def _times(file: str, scenario: Scenario) -> dict[tuple[str, int], tuple[float, float]]:
    """Seconds measured and predicted, by collective and the size that was measured."""
    beside = run(scenario.model_copy(update={"compare": (f"{file}/{scenario.slug}",)}))
    return {
        (measured.collective, int(size)): (float(seconds), float(expected))
        for item in beside.items
        for measured, predicted in zip(item.measured, item.at_measured, strict=True)
        for size, seconds, expected in zip(measured.size_bytes, measured.time_s, predicted.time_s, strict=True)
    }


def _of_jobs(file: str) -> Iterator[Point]:
    """Jobs beside another one."""
    for scenario, shipped in zip(_scenarios(file), _as_shipped(file), strict=True):
        predicted, as_shipped = (
            {(i, row.job): row for i, item in enumerate(run(s).jobs) for row in item.rows} for s in (scenario, shipped)
        )
        times: dict[tuple[int, str], list[tuple[float, float]]] = {}
        for item in read_object(FAULTS / file / scenario.slug / JOBS)["items"]:
            for job in item["jobs"]:
                pair = job["together_us"] * 1e-6, job["alone_us"] * 1e-6
                times.setdefault((int(item["name"].split()[-1]) - 1, job["job"]), []).append(pair)
        for key, pairs in times.items():
            row, beside = predicted[key], next(r for k, r in predicted.items() if k[0] == key[0] and k[1] != key[1])
            together, alone = np.median(pairs, axis=0).tolist()
            call = f"{row.collective} of {format_bytes(row.size_bytes)} beside {beside.collective} of "
            call += format_bytes(beside.size_bytes)
            yield Point(
                _named("two jobs", file),
                scenario.name,
                call,
                together,
                alone,
                row.together_s,
                row.alone_s,
                as_shipped[key].together_s,
            )


def _scenarios(file: str) -> list[Scenario]:
    path = FAULTS / f"{file}.yaml"
    fitted = load_scenarios(path, [f"params={RUNS / 'testbed' / PARAMS[file] / 'params.yaml'}"])
    names = [one.name for one in load_scenarios(path)]  # those of the folders with what was measured
    return [one.model_copy(update={"name": name}) for one, name in zip(fitted, names, strict=True)]


def _as_shipped(file: str) -> list[Scenario]:
    return load_scenarios(FAULTS / f"{file}.yaml")


def _median(values: Sequence[float]) -> float:
    return float(np.median(np.abs(values)))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def summary(every: Sequence[Point]) -> str:
    """A row per cause and one for all."""
    causes = sorted(dict.fromkeys(point.cause for point in every), key=lambda cause: cause.endswith("later"))
    lines = [
        "| cause | points | median error | worst | as shipped | slowdown, median error | worst | bar, both medians |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for cause in [*causes, "all"]:
        of = [point for point in every if cause in (point.cause, "all")]
        errors, ratios = [p.error for p in of], [p.slowdown_error for p in of]
        met = _median(errors) <= BAR and _median(ratios) <= BAR
        cells = [
            _median(errors),
            float(np.abs(errors).max()),
            _median([p.shipped_error for p in of]),
            _median(ratios),
            float(np.abs(ratios).max()),
        ]
        texts = " | ".join(_percent(cell) for cell in cells)
        lines.append(
            f"| {cause} | {len(of)} | {texts} | at most {BAR:.0%}: {'met' if met else 'missed'} |".replace("0%", "0 %")
        )
    return "\n".join(lines)


def by_scenario(every: Sequence[Point]) -> str:
    """A row per scenario."""
    lines = [
        "| scenario | points | slowdown measured | median error | of the slowdown | worst of the slowdown |",
        "|---|--:|---|--:|--:|---|",
    ]
    for name in dict.fromkeys(point.scenario for point in every):
        of = [point for point in every if point.scenario == name]
        worst = max(of, key=lambda p: abs(p.slowdown_error))
        span = f"{min(p.slowdown for p in of):.2f} .. {max(p.slowdown for p in of):.2f}"
        lines.append(
            f"| {name} | {len(of)} | {span} | {_percent(_median([p.error for p in of]))} | "
            f"{_percent(_median([p.slowdown_error for p in of]))} | "
            f"{100 * worst.slowdown_error:+.1f} %, {worst.call} "
            f"({worst.predicted_slowdown:.2f} for {worst.slowdown:.2f}) |"
        )
    return "\n".join(lines)


def table(every: Sequence[Point]) -> str:
    """A row per point."""
    lines = [
        "| scenario | call | measured (ms) | predicted (ms) | error | slowdown measured | predicted | error |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {p.scenario} | {p.call} | {1e3 * p.measured_s:.1f} | {1e3 * p.predicted_s:.1f} | "
        f"{100 * p.error:+.1f} % | {p.slowdown:.2f} | {p.predicted_slowdown:.2f} | {100 * p.slowdown_error:+.1f} % |"
        for p in every
    ]
    return "\n".join(lines)


def section(every: Sequence[Point] | None = None) -> str:
    """The section of the page, between its markers; of the points as they come out now where none are given."""
    every = points() if every is None else every
    return f"""{BEGIN}
## On machines with known faults

The same testbed with [a slow or missing link, a rank that stops before each call, or two jobs at
once](guides/measure.md#faults-late-ranks-and-jobs-beside-each-other) (`validation/runs/faults`). The parameters are
those of the healthy runs above: nothing is fitted to these points. `python validation/gloo_faults.py` writes this
section.

{summary(every)}

*Slowdown*: the time over that of the healthy machine, or of the job alone, measured in the same run or just before.
*As shipped*: the median error with the shipped parameters, whose `goodput` is that of frames of 1,500 B. What
the model does of two things was decided with points of these in view: jobs that meet are served as they come, not
evenly, and who is slow comes last to an all_to_all. Points *later*, of other sizes, rates, places and ranks, were
measured after that. The command prints every point.

{by_scenario(every)}
{END}"""


def main() -> None:
    """Prints the tables and writes the section."""
    every = points()
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN, 1)
    write_atomically(PAGE, before + section(every) + rest.split(END, 1)[1])
    print(summary(every), table(every), sep="\n\n")


if __name__ == "__main__":
    main()
