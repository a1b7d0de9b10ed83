"""The page of published steps of reinforcement learning beside the model's, and the same as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from study.rl import Score
from study.words import words_of

PARTS = {
    "rollout": ("rollout",),
    "scoring": ("old log probs", "reference", "reward model", "values"),
    "updates": ("actor update", "critic update"),
    "weights": ("weights to engines", "offload"),
    "controller": ("controller",),
}

HEAD = f"""# Accuracy of reinforcement learning

Written by `python validation/rl.py --report`; do not edit by hand. How a step is modelled and asked for:
[Reinforcement learning](guides/reinforcement-learning.md).

{words_of("accuracy-rl")}

Rows are published steps with model, GPUs, cuts, batch and lengths; conditions, and what is assumed of each, stand in
`validation/rl/steps.csv` and `validation/rl/README.md`. No parameter is fitted to them. The error is
|predicted - printed| / printed of the whole step. Rows of NeMo-RL 0.4 (*built*) were looked at while the model was
written; those of its later releases are the same recipes on other software or GPUs, and were scored along. What was
added after a first score, and its source outside of these rows: engines of an asynchronous trainer take 128 sequences
at once (NVIDIA-NeMo/RL#4221), log-probabilities cost the host (vllm-project/vllm#57442), the controller takes a second
between phases (NVIDIA-NeMo/RL#1052).
"""

CHAT = """
## DeepSpeed-Chat's table

Hours of step 3 for one epoch (`validation/rl/deepspeed_chat.csv`). The roofline of before predicted 26 to 43 % of them.
What it missed, by what it matters: the epoch has 264,292 questions, not the 131.9k of the blog's footnote, which do not
make its 135 M tokens; a GPU takes 2 to 16 sequences at once, as the scripts have it, not what fills 1,024; every token
waits for kernels that Python launches one by one; two more forwards score. The hybrid engine gathers ZeRO-3's shards
once a rollout; for every token (`engines: {gather: every_token}`) that would take many times as long as the rollout.

| row | actor | GPUs | sequences of a GPU | printed (h) | predicted (h) | ratio | rollout | scoring | updates | sync |
|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"""

STEPS = """
## Steps

| row | source | | model | GPUs | | printed (s) | predicted | ratio | rollout | scoring | updates | weights | control |
|---|---|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"""

PRINTED_PARTS = """
## Parts that are printed

Of rows whose source prints parts: seconds predicted / printed. Generation holds the scoring where none is printed.

| row | generation | scoring | update |
|---|--:|--:|--:|"""


def lines(steps: Sequence[Score], chat: Sequence[Score]) -> Iterator[str]:
    """A line for each row, and the summary."""
    for score in steps:
        cells = score.cells
        head = f"{cells['id']:13} {cells['seen']:5} {cells['model']:16} {cells['gpus']:>4} GPUs {how(score):14}"
        yield f"{head} {said(score, 's')}"
    for score in chat:
        cells = score.cells
        yield f"{cells['id']:13} {cells['model']:16} {cells['gpus']:>4} x {cells['accelerator']:16} {said(score, 'h')}"
    yield ""
    for name, some in groups(steps).items():
        yield f"{name:44} {len(some):3} rows  median {100 * median(s.error for s in some):5.1f} %"
    ratios = [score.ratio for score in chat if not score.reason]
    if ratios:
        span = f"{min(ratios):.2f} to {max(ratios):.2f}"
        yield f"{'DeepSpeed-Chat: hours predicted / printed':44} {len(ratios):3} rows  {span}"


def said(score: Score, unit: str) -> str:
    """What is printed and predicted, or why nothing is."""
    if score.reason:
        return score.reason
    return f"{score.printed['step']:9.2f} {unit} printed {score.predicted['step']:9.2f} predicted {score.ratio:6.2f}"


def how(score: Score) -> str:
    """Whether the engines are ahead."""
    return "one step ahead" if score.cells["behind"] == "1" else "in step"


def groups(steps: Sequence[Score]) -> dict[str, list[Score]]:
    """The rows with an answer: all, and by what tells them apart."""
    some = [score for score in steps if not score.reason]
    by = {
        "all": some,
        "looked at while the model was written": [s for s in some if s.cells["seen"] == "built"],
        "the others": [s for s in some if s.cells["seen"] == "held"],
        "NeMo-RL on H100, in step": _nemo(some, "hgx", "0"),
        "NeMo-RL on H100, one step ahead": _nemo(some, "hgx", "1"),
        "NeMo-RL on GB200, in step": _nemo(some, "gb200", "0"),
        "NeMo-RL on GB200, one step ahead": _nemo(some, "gb200", "1"),
        "OpenRLHF and DeepSpeed-Chat": [s for s in some if not s.cells["source"].startswith("NeMo")],
        "dense models": [s for s in some if not _experts(s)],
        "models with experts": [s for s in some if _experts(s)],
    }
    return {name: rows for name, rows in by.items() if rows}


def _nemo(some: Sequence[Score], machine: str, behind: str) -> list[Score]:
    nemo = [s for s in some if s.cells["source"].startswith("NeMo")]
    return [s for s in nemo if s.cells["preset"].startswith(machine) and s.cells["behind"] == behind]


def _experts(score: Score) -> bool:
    from commsim.training.model import model

    return model(score.cells["model"]).moe is not None


def page(steps: Sequence[Score], chat: Sequence[Score]) -> str:
    """``docs/accuracy-rl.md``."""
    rows = [HEAD, "| rows | n | median error (%) | within 20 % |", "|---|--:|--:|--:|"]
    for name, some in groups(steps).items():
        near = sum(s.error <= 0.2 for s in some) / len(some)
        rows.append(f"| {name} | {len(some)} | {100 * median(s.error for s in some):.1f} | {100 * near:.0f} % |")
    rows += [CHAT, *map(_chat_row, chat), STEPS, *map(_step_row, steps)]
    parts = [score for score in steps if not score.reason and len(score.printed) > 1]
    if parts:
        rows += [PRINTED_PARTS, *map(_part_row, parts)]
    return "\n".join(rows) + "\n"


def _chat_row(score: Score) -> str:
    cells = score.cells
    head = f"| {cells['id']} | {cells['model']} | {cells['gpus']} x {cells['accelerator']} | {cells['each']} |"
    if score.reason:
        return f"{head} {cells['hours']} | {score.reason} | | | | | |"
    hours = f"{score.printed['step']:g} | {score.predicted['step']:.2f} | {score.ratio:.2f}"
    return f"{head} {hours} | {' | '.join(_shares(score)[:4])} |"


def _step_row(score: Score) -> str:
    cells = score.cells
    machine = "V100" if cells["preset"] == "dgx-2" else cells["preset"].removeprefix("hgx-").split("-")[0].upper()
    source = f"[{cells['source']}]({cells['url']})"
    who = f"{cells['seen']} | {cells['model']} | {cells['gpus']} {machine} | {how(score)}"
    head = f"| `{cells['id']}` | {source} | {who} |"
    if score.reason:
        return f"{head} {score.printed['step']:g} | no answer: {score.reason} | | | | | | |"
    seconds = f"{score.printed['step']:g} | {score.predicted['step']:.1f} | {score.ratio:.2f}"
    return f"{head} {seconds} | {' | '.join(_shares(score))} |"


def _part_row(score: Score) -> str:
    parts = [
        f"{score.predicted[name]:.3g} / {score.printed[name]:.3g}" if name in score.printed else ""
        for name in ("generation", "scoring", "update")
    ]
    return f"| `{score.cells['id']}` | {' | '.join(parts)} |"


def _shares(score: Score) -> list[str]:
    """Shares of the predicted step by part, of what makes it longer."""
    total = sum(score.phases.values())
    return [f"{100 * sum(score.phases.get(n, 0.0) for n in names) / total:.0f} %" for names in PARTS.values()]
