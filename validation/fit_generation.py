"""Fits the kernels of generation to operators measured one by one, with a GPU left out or seen.

    python validation/fit_generation.py            errors by operator and GPU, as the table of the docs
    python validation/fit_generation.py --kernels  also by kernel
    python validation/fit_generation.py --write    also write commsim/generation/kernels.yaml, and into
                                                   validation/generation the terms without each GPU, the table's figures
    python validation/fit_generation.py --runs     fits parameters to runs instead, to all and without each architecture
                                                   and GPU; with --write into parameters.yaml and
                                                   validation/generation/runs_without.yaml
    python validation/fit_generation.py --first F  fits what servers need before the queue to a score's JSON file

Terms of a kind of kernel (family and format) are shared by all GPUs. Of a GPU that is left out only its datasheet is
known. Residuals are those of logarithms with a robust loss; every GPU weighs as much as any other.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from generation_operators import BOUNDS, OPERATORS, Float64, Kernel
from measured_operators import CHECKOUT

from commsim.document import read_documents
from commsim.files import write_atomically
from commsim.generation.parameters import PATH as PARAMETERS
from commsim.generation.parameters import generation_parameters
from commsim.generation.terms import PATH, Kernels, Terms, kernels

SEEN = ("a100_sxm", "h100_sxm", "b200_sxm", "gb200")
FOLDER = CHECKOUT / "validation" / "generation"

MOST = 500
"""Rows of a kernel on a GPU that a fit looks at, drawn with a fixed seed; all are scored."""

PRIOR = 0.05
"""Weight of a term's logarithm over its start: decides only what rows leave open."""


def fitted(o: Kernel, rows: pd.DataFrame) -> Terms:
    """Terms of rows of one kernel, at the best point of its grid."""
    rows = pd.concat([of.sample(min(len(of), MOST), random_state=0) for _, of in rows.groupby("system")])
    best, least = dict(o.starts), np.inf
    for point in product(*o.grid.values()):
        terms, cost = _fitted(o, rows, {**o.starts, **dict(zip(o.grid, point, strict=True))})
        if cost < least:
            best, least = dict(terms), cost
    return best


def _fitted(o: Kernel, rows: pd.DataFrame, starts: Terms) -> tuple[Terms, float]:
    from scipy.optimize import least_squares

    free = [name for name in starts if name not in o.grid]
    begin = np.log([starts[name] for name in free])
    low, high = (np.log([BOUNDS[name][end] for name in free]) for end in (0, 1))
    predict, measured = o.predictor(rows), np.log(rows.seconds.to_numpy(np.float64))
    sizes = rows.groupby("system").seconds.transform("size").to_numpy(np.float64)
    weight = np.sqrt(sizes.mean() / sizes)

    def terms(x: Float64) -> Terms:
        return {**starts, **dict(zip(free, np.exp(x).tolist(), strict=True))}

    def residuals(x: Float64) -> Float64:
        return np.concatenate([weight * (np.log(predict(terms(x))) - measured), PRIOR * (x - begin)])

    fit = least_squares(residuals, begin, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    return terms(fit.x), float(fit.cost)


def all_terms(o: Kernel, without: str = "") -> dict[str, Terms]:
    """By kind of kernel, of the GPUs seen but one."""
    rows = o.rows[o.rows.system.isin(SEEN) & (o.rows.system != without)]
    return {f"{o.name}.{kernel}": fitted(o, of) for kernel, of in rows.groupby("kernel")}


def errors(o: Kernel, rows: pd.DataFrame, terms: Kernels) -> pd.Series:
    """Relative errors of rows."""
    out = pd.Series(np.nan, rows.index)
    for kernel, of in rows.groupby("kernel"):
        t = terms.of(o.name, *str(kernel).split("."))
        out[of.index] = o.predictor(of)(t) / of.seconds.to_numpy(np.float64) - 1.0
    return out


def scored(o: Kernel, terms: Mapping[str, Kernels]) -> pd.DataFrame:
    """The rows with relative errors: ``own`` by the terms of all GPUs, ``left_out`` by those of the others."""
    left = pd.concat([errors(o, of, terms[str(system)]) for system, of in o.rows.groupby("system")])
    return o.rows.assign(own=errors(o, o.rows, terms[""]), left_out=left)


def figures(o: Kernel, rows: pd.DataFrame) -> list[dict[str, object]]:
    """Median errors in percent, of all rows, by GPU, and by kind of kernel."""
    out: list[dict[str, object]] = []
    groups = [("all", "", rows)]
    groups += [("GPU", str(name), of) for name, of in rows.groupby("system")]
    groups += [("kernel", str(name), of) for name, of in rows.groupby("kernel")]
    for by, name, of in groups:
        own, left = (round(100.0 * float(of[c].abs().median()), 1) for c in ("own", "left_out"))
        out.append({"operator": o.name, "by": by, "name": name, "rows": len(of), "own": own, "left_out": left})
    return out


def text_of(terms: Mapping[str, Terms], without: str = "") -> str:
    """Terms as YAML, a line for each kind of kernel."""
    head = [
        "# Terms of kernels of serving frameworks, fitted by `python validation/fit_generation.py --write` to",
        "# gemm.csv, moe.csv, attention_generation.csv, attention_context.csv (NVIDIA, aiconfigurator-core 0.12.0;",
        f"# A100 SXM, H100 SXM, B200 SXM, GB200{f'; without {without}' if without else ''}). Seconds and shares; "
        "commsim/generation says what each means.",
    ]
    lines = []
    for name, of in sorted(terms.items()):
        parts = ", ".join(f"{term}: {_number(value)}" for term, value in of.items())
        lines.append(f"{name}: {{{parts}}}")
    return "\n".join([*head, *lines]) + "\n"


def _number(value: float) -> str:
    text = f"{value:.4g}"
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa if '.' in mantissa or not e else mantissa + '.0'}{e}{exponent}"


def path_without(system: str) -> Path:
    """Where the terms without a GPU stand."""
    return FOLDER / f"kernels_without_{system}.yaml"


FIRST = ("host.first.vllm", "host.first.sglang", "host.first.tensorrt_llm")
STARTS = {p.name: p.start for p in generation_parameters()}


def _queued(rows: Sequence[Any], values: Terms) -> list[float]:
    """Of rows the seconds to the first token that the queue says; NaN of those that it refuses."""
    from study.generation import Job, times_of

    jobs: dict[Any, dict[Any, None]] = {}
    for row in rows:
        jobs.setdefault(row.replica, {})[row.loop] = None
    known: dict[Any, float] = {}
    for replica, loops in jobs.items():
        times = times_of(Job(replica, None, tuple(loops), values, PATH))
        known |= {
            (replica, loop): float("nan") if isinstance(t, str) else t.first_s
            for loop, t in zip(loops, times, strict=True)
        }
    return [known[row.replica, row.loop] for row in rows]


def fit_runs(*, write: bool) -> int:
    """Fit parameters to the project's runs, whole and with each architecture and GPU left out."""
    from study.generation import MODES, PROJECT, key_of, path_without
    from study.serving_fit import Predictions, first_seconds, fitted, free_parameters, some_runs
    from study.serving_rows import read_runs

    rows = some_runs([row for row in read_runs(PROJECT).rows if row.split is None])
    names, shared = [*free_parameters(), *FIRST], Predictions()
    whole = dict(fitted(rows, shared))
    print("whole", flush=True)
    queued = _queued(rows, {**whole, **dict.fromkeys(FIRST, 0.0)})

    def with_first(values: Terms, chosen: list[int]) -> dict[str, float]:
        """Parameters with what servers need before the queue, by some of the rows; as shipped where none says."""
        some, seconds = [rows[i] for i in chosen], [queued[i] for i in chosen]
        out = dict(values)
        for name in FIRST:
            stated = first_seconds(some, seconds, name.rsplit(".", 1)[1])
            out[name] = STARTS[name] if np.isnan(stated) else stated
        return out

    whole = with_first(whole, list(range(len(rows))))
    left: dict[str, Terms] = {}
    for mode in MODES:
        for key in sorted({key_of(row, mode) for row in rows}):
            chosen = [i for i, row in enumerate(rows) if key_of(row, mode) != key]
            others = [rows[i] for i in chosen]
            system = next(row.system for row in rows if key_of(row, mode) == key)
            one = shared if mode == MODES[0] else Predictions(kernels(path_without(system)))
            left[key] = {name: v for name, v in with_first(fitted(others, one), chosen).items() if name in names}
            print(key, " ".join(f"{name}={_number(value)}" for name, value in left[key].items()), flush=True)
    for name in names:
        print(f"{name:30} {_number(whole[name]):>10}  {' '.join(_number(of[name]) for of in left.values())}")
    if write:
        _write_runs(left, {name: whole[name] for name in names})
    return 0


def fit_first(scored: Path, *, write: bool) -> int:
    """Fit what servers need before the queue to a score's figures (`--mode leave-model --json`), whose times to the
    first token hold what was known of it: all else of them stays as it is."""
    from study.generation import PROJECT, WITHOUT, key_of
    from study.serving_fit import first_seconds
    from study.serving_rows import read_runs

    known: dict[str, dict[str, float]] = {k: dict(v) for k, v in read_documents(WITHOUT)[0].data.items()}
    times = {row["id"]: 1e-3 * row["ttft_ms"] for row in json.loads(scored.read_text(encoding="utf-8"))["rows"]}
    rows = [row for row in read_runs(PROJECT).rows if row.split is None and row.id in times]
    queued = [times[r.id] - float(known[key_of(r, "leave-model")][f"host.first.{r.framework}"]) for r in rows]

    def stated(chosen: list[int]) -> dict[str, float]:
        some = [rows[i] for i in chosen], [queued[i] for i in chosen]
        seconds = {name: first_seconds(*some, name.rsplit(".", 1)[1]) for name in FIRST}
        return {name: STARTS[name] if np.isnan(s) else s for name, s in seconds.items()}

    for key, of in known.items():
        mode = "leave-model" if key.startswith("model:") else "leave-gpu"
        of.update(stated([i for i, row in enumerate(rows) if key_of(row, mode) != key]))
        print(key, {name: of[name] for name in FIRST})
    whole = stated(list(range(len(rows))))
    print("all", whole)
    if write:
        _write_runs(known, whole)
    return 0


def _write_runs(left: Mapping[str, Terms], whole: Terms) -> None:
    """Parameters without each architecture and GPU, and what ships."""
    from study.generation import WITHOUT

    head = "# Parameters of parameters.yaml, fitted without one architecture or GPU by `fit_generation.py --runs`.\n"
    lines = [f'"{key}": {{{", ".join(f"{n}: {_number(v)}" for n, v in of.items())}}}' for key, of in left.items()]
    write_atomically(WITHOUT, head + "\n".join(lines) + "\n")
    text = PARAMETERS.read_text(encoding="utf-8")
    for name, value in whole.items():
        pattern = re.compile(rf"^({re.escape(name)}:\n(?:  .*\n)*?  value: ).*$", re.MULTILINE)
        text, hits = pattern.subn(rf"\g<1>{_number(value)}", text)
        assert hits == 1, name
    write_atomically(PARAMETERS, text)


def main() -> int:
    """Show the errors, write them and the terms where asked."""
    arguments = sys.argv[1:]
    if "--first" in arguments:
        return fit_first(Path(arguments[arguments.index("--first") + 1]), write="--write" in arguments)
    if "--runs" in arguments:
        return fit_runs(write="--write" in arguments)
    operators = [make() for make in OPERATORS]
    terms = {without: {k: v for o in operators for k, v in all_terms(o, without).items()} for without in ("", *SEEN)}
    by_gpu = {without: Kernels(of) for without, of in terms.items()}
    table = [row for o in operators for row in figures(o, scored(o, by_gpu))]
    for row in table:
        if row["by"] != "kernel" or "--kernels" in arguments:
            print(f"{row['operator']:8} {row['name']:28} {row['rows']:6} {row['own']:6} {row['left_out']:6}")
    if "--write" in arguments:
        write_atomically(PATH, text_of(terms[""]))
        FOLDER.mkdir(exist_ok=True)
        for system in SEEN:
            write_atomically(path_without(system), text_of(terms[system], system))
        write_atomically(FOLDER / "kernels.json", json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
