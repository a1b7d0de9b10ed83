"""Holds the operators of `commsim.training.kernels` to kernels measured one by one, with a GPU left out or seen.

    python validation/fit_operators.py               errors by operator and GPU, as the table of the docs
    python validation/fit_operators.py FOLDER        also of the tables that a folder has of other GPUs
    python validation/fit_operators.py --kernels     also by kernel, with its terms
    python validation/fit_operators.py --ablation    also without each term
    python validation/fit_operators.py --write       also write the table into docs/background/training.md, and what a
                                                     step has from here into commsim/training/parameters.yaml

The rows and terms are those of `measured_operators`. Of a GPU that is left out only its datasheet is known: the terms
are those of the same kernel on other GPUs, or of the nearest kernel that they have. Rows of GPUs other than `SEEN` are
predicted, never fitted. Residuals are those of logarithms with a robust loss.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from fit_training import yaml_number
from measured_operators import CHECKOUT, Float64, Operator, Terms, attention, experts, products

from commsim.files import write_atomically
from commsim.training.parameters import PATH, shipped_values

KernelTerms = dict[tuple[str, str], Terms]
"""By kernel and GPU."""

PAGE = CHECKOUT / "docs" / "background" / "training.md"
BEGIN, END = "<!-- operators: begin -->", "<!-- operators: end -->"

SEEN = ("a100_sxm", "h100_sxm", "b200_sxm", "gb200")
"""GPUs that terms are fitted to."""

MOST = 400
"""Rows of a kernel on a GPU that a fit looks at, drawn with a fixed seed; all are scored."""

PRIOR = 0.05
"""Weight of a term's logarithm over its start: decides only what rows leave open."""


def fitted(o: Operator, rows: pd.DataFrame, without: str = "") -> Terms:
    """Terms of rows, each GPU of which weighs as much as any other; ``without``: a term that is off."""
    from scipy.optimize import least_squares

    rows = pd.concat([of.sample(min(len(of), MOST), random_state=0) for _, of in rows.groupby("system")])
    free = [name for name in o.starts if name not in (without, "cast" if _wide(rows) else "")]
    starts = np.log([o.starts[name] for name in free])
    fixed = {**o.starts, **({without: o.off[without]} if without else {})}
    predict, measured = o.predictor(rows), np.log(rows.seconds.to_numpy(np.float64))
    sizes = rows.groupby("system").seconds.transform("size").to_numpy(np.float64)
    weight = np.sqrt(sizes.mean() / sizes)
    low, high = (np.log([bounds.get(name, end) for name in free]) for bounds, end in ((LEAST, 1e-12), (GREATEST, 1e4)))

    def terms(x: Float64) -> Terms:
        return {**fixed, **dict(zip(free, np.exp(x).tolist(), strict=True))}

    def residuals(x: Float64) -> Float64:
        return np.concatenate([weight * (np.log(predict(terms(x))) - measured), PRIOR * (x - starts)])

    return terms(least_squares(residuals, starts, bounds=(low, high), loss="soft_l1", f_scale=0.1).x)


LEAST, GREATEST = {"corner": 1.0}, {"tail": 0.999, "corner": 16.0}
"""Ends of terms that cannot have any positive value."""


def _wide(rows: pd.DataFrame) -> bool:
    return "gemm_dtype" in rows and bool((rows.gemm_dtype == "bfloat16").all())


def error(o: Operator, rows: pd.DataFrame, t: Terms) -> pd.Series:
    """Relative errors of rows."""
    return pd.Series(o.predictor(rows)(t) / rows.seconds.to_numpy(np.float64) - 1.0, rows.index)


def scored(o: Operator, without: str = "", terms_of: KernelTerms | None = None) -> pd.DataFrame:
    """The rows with relative errors: ``own`` by terms of the kernel on the GPU, ``left_out`` by those of other GPUs.

    ``terms_of`` gets the terms by kernel and GPU.
    """
    rows = o.rows
    own, left_out = pd.Series(np.nan, rows.index), pd.Series(np.nan, rows.index)
    for (kernel, system), of in rows[rows.system.isin(SEEN)].groupby(["kernel0", "system"]):
        t = fitted(o, of, without)
        own[of.index] = error(o, of, t)
        if terms_of is not None:
            terms_of[str(kernel), str(system)] = t
    for system, here in rows.groupby("system"):
        others = rows[rows.system.isin(SEEN) & (rows.system != system)]
        waiting = here
        for level in range(4):
            column = f"kernel{level}"
            for kernel, of in waiting.groupby(column):
                same = others[others[column] == kernel]
                if len(same):
                    left_out[of.index] = error(o, of, fitted(o, same, without))
            waiting = waiting[left_out[waiting.index].isna()]
        if len(waiting):
            left_out[waiting.index] = error(o, waiting, fitted(o, others, without))
    return rows.assign(own=own.abs(), left_out=left_out.abs())


def table(scores: Mapping[str, pd.DataFrame]) -> str:
    """Median errors as Markdown, by operator and GPU."""
    lines = ["| operator | GPU | rows | its own fit | left out |", "|---|---|--:|--:|--:|"]
    for name, rows in scores.items():
        for system, of in [("all", rows), *rows.groupby("system")]:
            own = "-" if of.own.isna().all() else f"{100 * of.own.median():.1f} %"
            lines.append(f"| {name} | {system} | {len(of):,} | {own} | {100 * of.left_out.median():.1f} % |")
    return "\n".join(lines)


def kernels_table(o: Operator, rows: pd.DataFrame, terms_of: KernelTerms) -> str:
    """Median errors and terms by kernel and GPU."""
    lines = []
    for (kernel, system), t in terms_of.items():
        of = rows[(rows.kernel0 == kernel) & (rows.system == system)]
        terms = ", ".join(f"{name} {t[name]:.3g}" for name in o.starts)
        errors = f"{100 * of.own.median():5.1f} {100 * of.left_out.median():5.1f}"
        lines.append(f"{o.name} {kernel[-70:]:70s} {system:9s} {len(of):5d} {errors}  {terms}")
    return "\n".join(lines)


STEP_TERMS = {
    "split": ("products", "split"),
    "softmax": ("attention", "softmax"),
    "attention_start": ("attention", "start"),
}
"""Parameters of a step that are terms of 16-bit kernels: the median over the vendor's on all GPUs."""

VENDOR = {"products": r"^bfloat16", "attention": r"^TRTLLM .* torch_flow bf16$"}


def step_terms(terms_of: Mapping[str, KernelTerms]) -> Terms:
    """What a step has from here."""
    out = {}
    for parameter, (operator, term) in STEP_TERMS.items():
        values = [t[term] for (kernel, _), t in terms_of[operator].items() if re.search(VENDOR[operator], kernel)]
        out[parameter] = float(np.median(values))
    return out


def _write(values: Terms, rows: str) -> None:
    text = PATH.read_text(encoding="utf-8")
    for name, value in values.items():
        pattern = re.compile(
            rf"^({re.escape(name)}:\n(?:  .*\n)*?  )start: .*\n((?:  .*\n)*?  value: ).*$", re.MULTILINE
        )
        number = yaml_number(value)
        text, hits = pattern.subn(rf"\g<1>start: {number}\n\g<2>{number}", text)
        if hits != 1:
            raise SystemExit(f"{PATH}: found {hits} entries of {name}, expected one")
    print(f"wrote {write_atomically(PATH, text)}")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    page = f"{before}{BEGIN}\n\n{rows}\n\n{END}{rest.split(END)[1]}"
    print(f"wrote {write_atomically(PAGE, page)}")


def main() -> int:
    """Show the errors, write them where asked."""
    arguments = sys.argv[1:]
    beside = next((Path(name) for name in arguments if not name.startswith("-")), None)
    scores: dict[str, pd.DataFrame] = {}
    terms_of: dict[str, KernelTerms] = {}
    for o in (products(beside), attention(beside), experts(beside)):
        terms_of[o.name] = {}
        scores[o.name] = scored(o, terms_of=terms_of[o.name])
        if "--kernels" in arguments:
            print(kernels_table(o, scores[o.name], terms_of[o.name]))
        for name in o.off if "--ablation" in arguments else ():
            of = scored(o, name)
            print(o.name, "without", name, *(f"{100 * of[c].median():.1f}" for c in ("own", "left_out")), flush=True)
    for name, value in (values := step_terms(terms_of)).items():
        print(f"{name:20s} ships {shipped_values()[name]:10.4g}   here {yaml_number(value)}")
    print(table(scores))
    if "--write" in arguments:
        _write(values, table(scores))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
