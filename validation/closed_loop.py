"""Writes docs/accuracy-gloo.md and the parameter files beside the recorded gloo runs: `make accuracy-gloo`.

Measured (`validation/runs`), calibrated, predicted, compared: every figure of the page comes from here. A calibration
takes about a minute.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gloo_faults import section
from typer.testing import CliRunner

from commsim.cli import app
from commsim.files import write_atomically
from commsim.fitting.calibration import LARGE_BYTES, Calibration, calibrate
from commsim.measure.parsers import read_measured
from commsim.report.calibration import calibration_table, params_yaml, plot_residuals
from commsim.report.plots import figure_bytes
from commsim.scenario.fit import curve_model
from commsim.scenario.load import load_scenarios
from commsim.scenario.setting import build_topology
from study.words import words_of

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "validation" / "runs"
PAGE = ROOT / "docs" / "accuracy-gloo.md"
PICTURE = ROOT / "docs" / "images" / "gloo-star.svg"
SHOWN_SIZES = (256 << 10, 1 << 20, 4 << 20)


@dataclass(frozen=True)
class Loop:
    """A recorded run, the scenario that it measured, and the largest error that it may have."""

    folder: str
    scenario: str
    network: bool

    @property
    def name(self) -> str:
        return self.folder.removeprefix("testbed/")


LOOPS = (
    Loop("loopback", "gloo-quickstart", network=False),
    Loop("loopback-busy", "gloo-quickstart", network=False),
    Loop("testbed/star", "gloo-testbed-star", network=True),
    Loop("testbed/tree", "gloo-testbed-tree", network=True),
    Loop("testbed/ring", "gloo-testbed-ring", network=True),
)


def calibrated(loop: Loop) -> Calibration:
    """The calibration of a run; its parameter file lies beside the run afterwards."""
    (scenario,) = load_scenarios(ROOT / "scenarios" / f"{loop.scenario}.yaml")
    topology = build_topology(scenario)
    curves = read_measured(RUNS / loop.folder)
    calibration = calibrate(curve_model(scenario, topology, curves), curves)
    write_atomically(RUNS / loop.folder / "params.yaml", params_yaml(calibration, scenario, [topology] * len(curves)))
    return calibration


def bar(loop: Loop, c: Calibration) -> tuple[float, float]:
    """(error on sizes left out, the largest allowed): above 64 KiB on a network, over all sizes on loopback."""
    if loop.network:
        return c.error(c.held_out_s, LARGE_BYTES), 0.10
    return c.error(c.held_out_s), max(0.15, 1.5 * (c.spread() or 0.0))


def summary(calibrations: dict[Loop, Calibration]) -> str:
    """The table of errors."""
    lines = [
        "| run | sizes left out | above 64 KiB | as shipped, above 64 KiB | spread of repeats | above 64 KiB | bar |",
        "|---|---|---|---|---|---|---|",
    ]
    for loop, c in calibrations.items():
        error, allowed = bar(loop, c)
        cells = [
            c.error(c.held_out_s),
            c.error(c.held_out_s, LARGE_BYTES),
            c.error(c.before_s, LARGE_BYTES),
            c.spread() or 0.0,
            c.spread(LARGE_BYTES) or 0.0,
        ]
        where = "above 64 KiB" if loop.network else "all sizes"
        verdict = f"{where} at most {allowed:.1%}: {'met' if error <= allowed else 'missed'}".replace("%", " %")
        lines.append(f"| {loop.name} | " + " | ".join(f"{100 * x:.1f} %" for x in cells) + f" | {verdict} |")
    return "\n".join(lines)


def by_collective(calibrations: dict[Loop, Calibration]) -> str:
    """Measured over predicted time, each predicted by a fit that had not seen the size."""
    lines = ["| collective | " + " | ".join(loop.name for loop in calibrations if loop.network) + " |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    ratios: dict[str, dict[str, str]] = {}
    for loop, c in calibrations.items():
        if not loop.network:
            continue
        ends = np.cumsum([len(curve) for curve in c.curves])[:-1]
        for curve, held in zip(c.curves, np.split(c.held_out_s, ends), strict=True):
            at = [int(np.argmin(np.abs(curve.size_bytes - size))) for size in SHOWN_SIZES]
            text = ", ".join(f"{curve.time_s[i] / held[i]:.2f}" for i in at)
            ratios.setdefault(curve.collective, {})[loop.name] = text
    names = [loop.name for loop in calibrations if loop.network]
    lines += [f"| {name} | " + " | ".join(row.get(n, "") for n in names) + " |" for name, row in ratios.items()]
    return "\n".join(lines)


def command(*words: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return result.stdout.rstrip()


def predicted_and_compared(loop: Loop) -> str:
    """The last two commands on a run."""
    with tempfile.TemporaryDirectory() as folder:
        scenario, out = str(ROOT / "scenarios" / f"{loop.scenario}.yaml"), f"{folder}/p"
        command("run", scenario, f"params={RUNS / loop.folder / 'params.yaml'}", "--out", out)
        printed = command("compare", out, str(RUNS / loop.folder), "--no-plot")
        return printed.replace(f"{folder}/", "out/").replace(f"{ROOT}/", "")


def conditions(loop: Loop) -> dict[str, Any]:
    """What ``run.json`` says of a run."""
    recorded: dict[str, Any] = json.loads((RUNS / loop.folder / "run.json").read_text())
    return recorded


def page(calibrations: dict[Loop, Calibration]) -> str:
    """The page."""
    first, busy = LOOPS[0], LOOPS[1]
    run, load = conditions(first), conditions(busy)["load_average"]
    return f"""# Accuracy of the gloo model

Four commands close the loop on one computer: measure, calibrate, predict, compare. Everything on this page is what they
say of the runs recorded in `validation/runs`, and is written anew by `python validation/closed_loop.py`. Machine:
{run["cpu"]}, {run["cores"]} cores, kernel {run["kernel"]}, torch {run["torch"]}; five repeats of every row.

{words_of("accuracy-gloo")}

{summary(calibrations)}

*Sizes left out*: every size is predicted by a fit that had not seen it (four fits, each without every fourth size). The
error of a run is the mean over its collectives of the mean absolute relative error. *Spread*: half of highest less
lowest of the five repeats over their median, the median over sizes. Other work kept the cores busy. The runs but
`loopback-busy` had real-time priority (`chrt -r 5 commsim measure ...`), so that it did not delay them;
`loopback-busy` is the same command as a user would type it, at a load of {load} on two cores: no model of one state
of a machine is right for several.

## The loop on loopback

```sh
commsim measure scenarios/gloo-quickstart.yaml --nproc 4 --repeats 5 --out out/m
commsim calibrate scenarios/gloo-quickstart.yaml out/m -o out/params.yaml
commsim run scenarios/gloo-quickstart.yaml params=out/params.yaml --out out/p
commsim compare out/p out/m
```

`calibrate` says, of `validation/runs/loopback`:

```
{calibration_table(calibrations[first]).rstrip()}
```

and `compare`, after `run` with these parameters:

```
{predicted_and_compared(first)}
```

Of `loopback-busy`, whose repeats differ most:

```
{calibration_table(calibrations[busy]).rstrip()}
```

## On networks of known rates

The [testbed](guides/measure.md#a-network-of-known-rates-the-testbed): four hosts on a switch, eight under a tree whose
uplinks are oversubscribed 2:1, six on a ring of switches; 200 Mb/s per host.

```sh
commsim measure gloo-testbed-star --testbed scenario -i 5 -w 1 --repeats 5 --timeout 60 --out out/star
commsim calibrate gloo-testbed-star out/star -o out/star.yaml
```

Measured over predicted time at 256 KiB, 1 MiB and 4 MiB, sizes left out:

{by_collective(calibrations)}

![Residuals on the star](images/gloo-star.svg)

What is still wrong: an [all_to_all](background/gloo.md#two-ranks-and-one-connection) of small blocks (they pass in both
directions at once, while the model has one wait for the other), and broadcasts from 2 MiB on, whose ranks at times
settle into a [slower pace](background/gloo.md#what-it-does-not-know), depending on how much each socket holds.

{section()}
"""


def main() -> None:
    """Calibrates all runs and writes the page."""
    calibrations = {loop: calibrated(loop) for loop in LOOPS}
    star = next(loop for loop in LOOPS if loop.name == "star")
    write_atomically(PICTURE, figure_bytes(plot_residuals(calibrations[star], "gloo on a star of 4"), "svg"))
    write_atomically(PAGE, page(calibrations))


if __name__ == "__main__":
    main()
