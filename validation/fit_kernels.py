"""Fits all-reduce kernels of serving frameworks to measured ones; writes commsim/kernels/parameters.yaml.

    python validation/fit_kernels.py              show what moved, and the errors
    python validation/fit_kernels.py --ablation   also the errors without each parameter
    python validation/fit_kernels.py --write      also write the values

Reads validation/kernels/custom_all_reduce.csv. `study.kernel_fit` has the fit, `study.kernels` the errors. The band is
that of rows whose GPU was left out: the tenth and the ninetieth of a hundred ratios of measured to predicted time.
"""

from __future__ import annotations

import re
import sys

import numpy as np
from fit_training import yaml_number

from commsim.files import write_atomically
from commsim.kernels.predict import PATH, kernel_parameters
from commsim.training.compute import Values
from study.kernel_fit import NAMES, Design, design, fitted, predicted, with_facts
from study.kernel_rows import PROJECT, KernelRow, read_table
from study.kernels import left_out_seconds


def gpu_of(row: KernelRow) -> object:
    """What is left out."""
    return row.call.device.name


def band(rows: tuple[KernelRow, ...]) -> tuple[float, float]:
    """Factors on predicted times that held eight of ten rows of kernels whose GPU was left out."""
    seconds = left_out_seconds(rows, rows, gpu_of)
    kernel = np.array([row.choice.kernel != "nccl" for row in rows])
    ratio = (np.array([row.seconds for row in rows]) / seconds)[kernel]
    return float(min(np.quantile(ratio, 0.1), 1.0)), float(max(np.quantile(ratio, 0.9), 1.0))


def with_values(text: str, v: Values) -> str:
    """The text of `parameters.yaml` with other values."""
    for p in kernel_parameters():
        pattern = re.compile(rf"^({re.escape(p.name)}:\n(?:  .*\n)*?  value: ).*$", re.MULTILINE)
        text, hits = pattern.subn(rf"\g<1>{yaml_number(v[p.name])}", text)
        if hits != 1:
            raise SystemExit(f"{PATH}: found {hits} entries of {p.name}, expected one")
    return text


def median_error(rows: Design, v: Values) -> float:
    """Of rows by values."""
    return float(np.median(np.abs(predicted(rows, v) / rows.seconds - 1.0)))


def show_ablation(seen: Design) -> None:
    """Print the median errors of all rows fitted without each parameter: a latency or byte that costs nothing, a factor
    of 1."""
    print(f"{'all':24s} {100 * median_error(seen, fitted(seen)):.2f} %")
    for name in NAMES:
        v = fitted(seen, without=name)
        print(f"- {name:22s} {100 * median_error(seen, v):.2f} %")


def main() -> int:
    """Show the fit and its errors, write it where asked."""
    rows = read_table(PROJECT).rows
    seen = design(with_facts(rows))
    v = dict(fitted(seen))
    v["band.low"], v["band.high"] = band(rows)
    if "--ablation" in sys.argv[1:]:
        show_ablation(seen)
    for p in kernel_parameters():
        print(f"{p.name:24s} start {p.start:10.4g}   ships {p.value:10.4g}   fit {yaml_number(v[p.name])}")
    print(f"{len(rows):,} rows, {len(seen.seconds):,} fitted: median error {100 * median_error(design(rows), v):.2f} %")
    if "--write" in sys.argv[1:]:
        print(f"wrote {write_atomically(PATH, with_values(PATH.read_text(encoding='utf-8'), v))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
