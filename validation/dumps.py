"""Writes docs/accuracy-dumps.md: dumps whose truth is known through `commsim dump`; `make accuracy-dumps`.

Real ones are left by gloo on four ranks here (ten minutes), others are written by hand in NCCL's forms. Without
``--write`` the figures are printed and nothing is written; ``--quick`` leaves the real ranks and most mutants out.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from commsim.files import write_atomically
from study import dump_hostile, dump_runs, dump_score
from study.words import words_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy-dumps.md"
RECORD = ROOT / "validation" / "dumps.json"
LATE_RUNS, BROKEN_RUNS, DRAWN_JOBS, MUTANTS = 4, 2, 40, 2_000


def measured(*, quick: bool = False) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scores = [] if quick else _real(folder / "real")
        for seed in range(4 if quick else DRAWN_JOBS):
            scores += dump_score.score_forms(folder / "forms", seed)
        hostile, executed = _hostile(folder / "hostile", 50 if quick else MUTANTS)
    return {"scores": [_kept(score) for score in scores], "hostile": hostile, "executed": executed}


def _kept(score: dump_score.Score) -> dict[str, Any]:
    """A score as the record holds it: the answer only where it does not name what was wrong."""
    fields = asdict(score) | {"errors": [round(error, 6) for error in score.errors]}
    return fields | {"answer": "" if score.named else score.answer}


def _record(figures: dict[str, Any]) -> str:
    """The figures as JSON, a line for each score and kind of file."""
    parts = {name: ",\n".join(json.dumps(row) for row in figures[name]) for name in ("scores", "hostile")}
    executed = json.dumps(figures["executed"])
    return f'{{"scores": [\n{parts["scores"]}\n],\n"hostile": [\n{parts["hostile"]}\n],\n"executed": {executed}}}\n'


def _real(folder: Path) -> list[dump_score.Score]:
    plans = [dump_runs.late_plan(seed) for seed in range(LATE_RUNS)]
    plans += [dump_runs.broken_plan(kind, seed) for kind in dump_runs.BROKEN for seed in range(BROKEN_RUNS)]
    scores = []
    for number, plan in enumerate(plans):
        place = folder / str(number)
        dump_runs.run(plan, place)
        scores += dump_score.score_run(plan, place)
        print(f"{number + 1} of {len(plans)} runs: {plan.broken or 'late'}", file=sys.stderr)
    return scores


def _hostile(folder: Path, count: int) -> tuple[list[dict[str, Any]], bool]:
    rows = [
        dump_hostile.of_mutants(kind, files, count, folder / "mutants")
        for kind, files in dump_hostile.sound_files(folder / "sound").items()
    ]
    rows.append(dump_hostile.of_bombs(folder / "bombs"))
    pickles, executed = dump_hostile.of_pickles(folder / "pickles")
    return [asdict(row) for row in (*rows, pickles)], executed


def _cells(scores: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each source, form and thing that was wrong."""
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for score in scores:
        grouped[score["source"], score["form"], score["wrong"]].append(score)
    rows = []
    for (source, form, wrong), group in grouped.items():
        errors = [100 * abs(error) for score in group for error in score["errors"]]
        row = {"dumps": f"{source}: {form}", "wrong": wrong, "n": len(group), "named": sum(s["named"] for s in group)}
        row |= {
            "waiting off, median (%)": f"{median(errors):.2f}" if errors else "",
            "worst (%)": f"{max(errors):.2f}" if errors else "",
        }
        rows.append(row)
    return rows


def _table(rows: list[dict[str, Any]]) -> list[str]:
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([str(row[name]) for name in head] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def page(figures: dict[str, Any]) -> str:
    """The page of the documentation."""
    scores = figures["scores"]
    named = sum(score["named"] for score in scores)
    real = [score for score in scores if score["source"].startswith("gloo")]
    errors = [abs(error) for score in scores for error in score["errors"]]
    pairs = f"{len(errors)} ranks and calls"
    own = [abs(error) for score in real for error in score["errors"]]
    hostile = [
        {
            "files": row["kind"], "n": row["files"], "refused": row["refused"], "answered": row["answered"],
            "failed": row["failed"], "slowest (s)": f"{row['longest_s']:.2f}", "memory at most (MiB)": row["peak_mib"],
        }
        for row in figures["hostile"]
    ]  # fmt: skip
    total = sum(row["n"] for row in hostile)
    lines = [
        "# Dumps whose truth is known",
        "",
        "Written by `make accuracy-dumps`; do not edit by hand. [Read my dump](guides/read-my-dump.md) says what the "
        "command reads. Here it reads dumps of jobs in which one rank was late, missing or wrong on purpose.",
        "",
        words_of("accuracy-dumps"),
        "",
        f"{len(scores)} sets of dumps: rank, call and cause are named in {named}. Waiting of "
        f"{1e3 * dump_score.LEAST_S:.0f} ms and more is off by {100 * max(errors):.1f} % at most ({pairs})"
        + (f", in dumps of real ranks by {100 * max(own):.1f} % ({len(own)})." if own else "."),
        "",
        "Real ones were left by four ranks of gloo (PyTorch 2.13) on one machine: their flight recorders and traces of "
        "torch.profiler. The truth is the time that each rank read just before each call. The others are written by "
        "hand in the forms that NCCL and PyTorch write on GPUs, from drawn timelines of 2 to 32 ranks: the forms are "
        "right, the jobs are not real. `named` counts those in which the first finding has the right rank, call and "
        "kind; of late ranks in real jobs, those in which every late rank is named. One that cost less than 5 % of "
        "what the files cover, starts of torch.profiler included, stands in the tables and not in the sentences "
        "(`--late`).",
        "",
        *_table(_cells(scores)),
        "",
        "## Hostile files",
        "",
        f"{total:,} files: mutants of sound dumps, bombs, and pickles that execute. A file is refused with a message "
        "(exit 2) or answered with what is left of it. "
        + ("Something in a pickle was executed." if figures["executed"] else "Nothing in a pickle was executed."),
        "",
        *_table(hostile),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measures, and writes record and page if told to."""
    figures = measured(quick="--quick" in sys.argv)
    text = page(figures)
    if "--write" in sys.argv:
        write_atomically(RECORD, _record(figures))
        write_atomically(PAGE, text)
    print(text)


if __name__ == "__main__":
    main()
