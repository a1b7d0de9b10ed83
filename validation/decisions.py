"""Scores the decisions that plans and tuner rules make, and writes their error.

    python validation/decisions.py                    the tables (some minutes: every published step is simulated)
    python validation/decisions.py --write            also docs/accuracy-decisions.md, the residuals of training steps,
                                                      the best published steps, the margin of tuner rules
    ... --figures simulation.json closed_form.json    predictions that `commsim validate training --json` wrote

A plan's bands and ties are scored with the source left out, tuner rules by the log that the fit has not seen.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from commsim.api import plan
from commsim.files import write_atomically
from commsim.planner.published import BEST
from commsim.planner.ties import above_published, spread
from commsim.planner.tune import CHOICES
from commsim.training.uncertainty import RESIDUALS
from study import plan_decisions as plans
from study import tune_decisions as tuning
from study.training import training_steps, validate_training
from study.training_rows import MeasuredRows, read_published, table_of
from study.words import words_of

CHECKOUT = Path(__file__).resolve().parents[1]
PAGE = CHECKOUT / "docs" / "accuracy-decisions.md"

PLANS = {
    "GPT-3 175B, 1,024 A100": {"model": "gpt3-175b", "preset": "dgx-a100-hdr200", "nodes": 128, "batch": 1536},
    "OPT-30B, 64 A100": {"model": "opt-30b", "preset": "dgx-a100-hdr200", "nodes": 8, "batch": 512},
    "Llama 3 405B, 16,384 H100": {"model": "llama-3.1-405b", "preset": "hgx-h100-ndr400", "nodes": 2048, "batch": 2048},
}
"""Plans whose best choice is held against the best that was published."""

Predictions = Mapping[str, "np.ndarray"]


def predictions(table: MeasuredRows, figures: Sequence[str]) -> Predictions:
    """Seconds of every row without its source, by engine."""
    if not figures:
        validation = validate_training(training_steps(), workers=2)
        return {"simulation": validation.first, "closed_form": validation.closed}
    out = {}
    for engine, path in zip(("simulation", "closed_form"), figures, strict=True):
        rows = json.loads(Path(path).read_text(encoding="utf-8"))["per_row"]
        known = {row["id"]: row["predicted_s"] for row in rows}
        out[engine] = np.array([known[row.id] for row in table.rows])
    return out


def plan_lines(table: MeasuredRows, seconds: Predictions) -> list[str]:
    """How many published steps are inside the band, by source."""
    errors = plans.residuals(table, seconds["simulation"])
    inside, own = plans.inside(errors), plans.spread_of(errors, plans.pairs(table, seconds["simulation"]))
    rows, all_rows = sum(n * share for n, share in inside.values()), sum(n for n, _ in inside.values())
    return [
        "## A plan's band: published steps inside, their source left out",
        "",
        f"**{100 * rows / all_rows:.0f} % of {all_rows:,} rows, {100 * np.mean([s for _, s in inside.values()]):.0f} % "
        f"in the mean of {len(inside)} sources.** The band that ships is {own.low:.2f} to {own.high:.2f} times the "
        "predicted time. A source counts as at most four rows, as in the fit.",
        "",
        "| source | rows | inside (%) |",
        "|---|--:|--:|",
        *(f"| {source} | {n} | {100 * share:.0f} |" for source, (n, share) in sorted(inside.items())),
        "",
    ]


def order_lines(table: MeasuredRows, seconds: Predictions) -> list[str]:
    """How often the layout that is said to be quicker is the quicker one."""
    by_source = plans.orders(plans.pairs(table, seconds["simulation"]))
    differ, right = (sum(int(o[key]) for o in by_source.values()) for key in ("differ", "right"))
    ties, ties_right = (sum(int(o[key]) for o in by_source.values()) for key in ("ties", "ties_right"))
    return [
        "## A plan's ties: two layouts of one machine and model",
        "",
        "Pairs of published steps of one source, machine, model, batch and precision that differ in their layout, "
        "with the margin of the other sources. "
        f"**Said to differ: {differ:,} pairs, {100 * right / differ:.1f} % in the right order. Said to be a tie: "
        f"{ties:,}, {100 * ties_right / ties:.0f} % in the predicted order**, where a coin would have half.",
        "",
        "| source | margin | differ | right (%) | ties | as predicted (%) | most lost by a wrong order (%) |",
        "|---|--:|--:|--:|--:|--:|--:|",
        *(
            f"| {source} | {o['margin']:.2f} | {o['differ']:.0f} | {_share(o['right'], o['differ'])} | "
            f"{o['ties']:.0f} | {_share(o['ties_right'], o['ties'])} | {100 * o['worst']:.0f} |"
            for source, o in by_source.items()
        ),
        "",
    ]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}" if whole else ""


def best_lines() -> list[str]:
    """The best choice of some plans beside the best published step of the kind."""
    lines = [
        "## The best plan beside the best published step",
        "",
        "Model TFLOP/s of one GPU, attention counted without its mask; the band is that above.",
        "",
        "| plan | best choice | its band | best published | from | above it by more than its band |",
        "|---|--:|--:|--:|---|---|",
    ]
    for name, asked in PLANS.items():
        question = {
            "model": asked["model"],
            "clusters": [{"topology": {"preset": asked["preset"], "nodes": asked["nodes"]}}],
            "global_batch_size": asked["batch"],
            "best": 3,
        }
        with tempfile.TemporaryDirectory() as folder:
            best = plan(write_atomically(Path(folder) / "plan.yaml", json.dumps({"name": name, "plan": question}))).best
        published, ratio = above_published(best)
        assert published is not None
        own, rate = spread(best), ratio * published.tflops_per_gpu
        lines.append(
            f"| {name} | {rate:.0f} | {rate / own.high:.0f} to {rate / own.low:.0f} | {published.tflops_per_gpu:.0f} | "
            f"{published.model}, {published.gpus:,} GPUs, {published.source} | {'yes' if ratio > own.high else 'no'} |"
        )
    return [*lines, ""]


def tune_lines(some: Sequence[tuning.Decision]) -> list[str]:
    """The rules that the unseen logs confirm."""
    rules = tuning.rules(some)
    confirmed = [d for d in rules if d.measured > 0]
    harm = [d for d in rules if d.measured < -np.log1p(tuning.LOSS)]
    before = [d for d in some if d.predicted > d.band]
    right = sum(d.measured > 0 for d in before)
    return [
        "## Tuner rules: confirmed by the log that the fit has not seen",
        "",
        f"{len({frozenset((d.seen, d.unseen)) for d in some})} pairs of published logs of one machine, publisher and "
        "version ran unlike algorithms or protocols. Each log of a pair is fitted to in turn; at each common size with "
        "unlike choices the fit says which is quicker. A rule is a choice that gains more than the fit's own band "
        "and more than the margin, of which the machine that is scored was left out. **"
        f"{len(confirmed)} of {len(rules)} rules are confirmed, {len(harm)} lose more than {100 * tuning.LOSS:.0f} %"
        f".** By the fit's own band alone there would be {len(before)}, of which {right} are confirmed. The rules of a "
        "pair are no independent cases: neighbouring sizes and both directions agree or fail together. The margin of "
        f"all pairs is {tuning.margin(some):.2f}.",
        "",
        "| fitted to | confirmed by | sizes with unlike choices | rules | confirmed | predicted gain | measured gain |",
        "|---|---|--:|--:|--:|--:|--:|",
        *(_pair_line(seen, unseen, some, rules) for seen, unseen in dict.fromkeys((d.seen, d.unseen) for d in some)),
        "",
    ]


def _pair_line(seen: str, unseen: str, some: Sequence[tuning.Decision], rules: Sequence[tuning.Decision]) -> str:
    own = [d for d in rules if (d.seen, d.unseen) == (seen, unseen)]
    sizes = sum((d.seen, d.unseen) == (seen, unseen) for d in some)

    def gains(values: Sequence[float]) -> str:
        return f"x{np.exp(min(values)):.2f} .. x{np.exp(max(values)):.2f}" if values else ""

    cells = gains([d.predicted for d in own]), gains([d.measured for d in own])
    right = sum(d.measured > 0 for d in own)
    return f"| `{seen}` | `{unseen}` | {sizes} | {len(own)} | {right} | {cells[0]} | {cells[1]} |"


def write(table: MeasuredRows, seconds: Predictions, some: Sequence[tuning.Decision]) -> list[Path]:
    """What the package reads: residuals of steps, the best published ones, the margin of choices."""
    head = "# How far predicted steps are off, their source left out: `validation/decisions.py --write` writes it.\n"
    lines = []
    for engine, of in seconds.items():
        own = plans.spread_of(plans.residuals(table, of), plans.pairs(table, of))
        figures = f"low: {own.low:.3f}, high: {own.high:.3f}, margin: {own.margin:.3f}"
        lines.append(f"{engine}: {{{figures}, rows: {own.rows}, sources: {own.sources}, pairs: {own.pairs}}}\n")
    best = plans.best_published(table)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(best[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(best)
    of_choices = CHOICES.read_text(encoding="utf-8").rsplit("{", 1)[0]
    count = len({frozenset((d.seen, d.unseen)) for d in some}), len({(d.seen, d.unseen) for d in some}), len(some)
    margin = f"{{margin: {tuning.margin(some):.3f}, pairs: {count[0]}, fits: {count[1]}, sizes: {count[2]}}}\n"
    return [
        write_atomically(RESIDUALS, head + "".join(lines)),
        write_atomically(BEST, text.getvalue()),
        write_atomically(CHOICES, of_choices + margin),
    ]


def main(words: Sequence[str]) -> int:
    """Print the tables; write what was asked for."""
    figures = [word for word in words if word.endswith(".json")]
    if len(figures) not in (0, 2):
        raise SystemExit(f"found {len(figures)} files of figures, expected those of the simulation and the closed form")
    table = table_of(read_published(training_steps()))
    seconds, some = predictions(table, figures), tuning.decisions()
    written = write(table, seconds, some) if "--write" in words else []
    lines = [
        "# Accuracy of decisions",
        "",
        "Written by `python validation/decisions.py --write`; do not edit by hand. What is decided from predictions, "
        "held against what was published: which layout is quicker, and which of NCCL's choices.",
        "",
        words_of("accuracy-decisions"),
        "",
        *plan_lines(table, seconds),
        *order_lines(table, seconds),
        *best_lines(),
        *tune_lines(some),
    ]
    page = "\n".join(lines).rstrip() + "\n"
    print(page)
    written += [write_atomically(PAGE, page)] if "--write" in words else []
    for path in written:
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
