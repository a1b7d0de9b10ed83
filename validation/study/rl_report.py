"""The page of published steps of reinforcement learning beside the model's, and the same as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from study.rl import Score

BANDS = ((0.1, "10"), (0.2, "20"), (0.5, "50"))


def lines(steps: Sequence[Score], chat: Sequence[Score]) -> Iterator[str]:
    """A line for each row, and the summary."""
    for score in steps:
        cells = score.cells
        said = score.reason or (
            f"{score.printed['step']:9.1f} s printed {score.predicted['step']:9.1f} s predicted {score.ratio:6.2f}"
        )
        how = "one step ahead" if cells["behind"] == "1" else "in step"
        yield f"{cells['id']:13} {cells['seen']:5} {cells['model']:16} {cells['gpus']:>4} GPUs {how:14} {said}"
    for score in chat:
        cells = score.cells
        said = score.reason or f"{score.printed['step']:7.2f} h printed {score.predicted['step']:7.2f} h predicted {score.ratio:6.2f}"
        yield f"{cells['id']:13} {cells['model']:16} {cells['gpus']:>4} x {cells['accelerator']:16} {said}"
    yield ""
    for name, some in groups(steps).items():
        yield f"{name:44} {len(some):3} rows  median {100 * median(s.error for s in some):5.1f} %"
    answered = [score for score in chat if not score.reason]
    if answered:
        ratios = [score.ratio for score in answered]
        yield f"{'DeepSpeed-Chat: hours predicted / printed':44} {len(ratios):3} rows  {min(ratios):.2f} to {max(ratios):.2f}"


def groups(steps: Sequence[Score]) -> dict[str, list[Score]]:
    """The rows with an answer: all, and by what tells them apart."""
    some = [score for score in steps if not score.reason]
    by = {
        "all": some,
        "looked at while the model was written": [s for s in some if s.cells["seen"] == "built"],
        "only scored": [s for s in some if s.cells["seen"] == "held"],
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
    return [
        s
        for s in some
        if s.cells["source"].startswith("NeMo") and s.cells["preset"].startswith(machine) and s.cells["behind"] == behind
    ]


def _experts(score: Score) -> bool:
    from commsim.training.model import model

    return model(score.cells["model"]).moe is not None


def page(steps: Sequence[Score], chat: Sequence[Score]) -> str:
    """``docs/accuracy-rl.md``."""
    return "\n".join(_page(steps, chat)) + "\n"


def _page(steps: Sequence[Score], chat: Sequence[Score]) -> Iterator[str]:
    yield "# Accuracy of reinforcement learning"
    yield ""
    yield "Written by `python validation/rl.py --report`; do not edit by hand. How a step is modelled and asked for: [Reinforcement learning](guides/reinforcement-learning.md)."
    yield ""
    yield (
        "Rows are published steps with model, GPUs, cuts, batch and lengths; conditions and what is assumed of each stand "
        "in `validation/rl/steps.csv` and `validation/rl/README.md`. Nothing is fitted to them. The error is |predicted - "
        "printed| / printed of the whole step. Rows of NeMo-RL 0.4 were looked at while the model was written, and the "
        "others of NeMo-RL are the same recipes on later releases or other GPUs; rows marked *held* were only scored."
    )
    yield ""
    yield "| rows | n | median error (%) | within 20 % |"
    yield "|---|--:|--:|--:|"
    for name, some in groups(steps).items():
        near = sum(s.error <= 0.2 for s in some) / len(some)
        yield f"| {name} | {len(some)} | {100 * median(s.error for s in some):.1f} | {100 * near:.0f} % |"
    yield ""
    yield "## DeepSpeed-Chat's table"
    yield ""
    yield (
        "Hours of step 3 for one epoch (`validation/rl/deepspeed_chat.csv`). What the roofline of before missed, in the order "
        "of what it matters: the epoch has 264,292 questions, not the 131.9k of the blog's footnote, which do not make its "
        "135 M tokens; a GPU takes 2 to 16 sequences at once, as the scripts have it, not what fills 1,024; each token waits "
        "for kernels that Python launches one by one; the actor's weights are gathered for every rollout and pass, and two "
        "more forwards score. The hybrid engine gathers once a rollout; `engines: {gather: every_token}` says what it would "
        "cost for every token."
    )
    yield ""
    yield "| row | actor | GPUs | sequences of a GPU | printed (h) | predicted (h) | ratio | rollout | scoring | updates | weights, controller |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for score in chat:
        cells = score.cells
        if score.reason:
            yield f"| {cells['id']} | {cells['model']} | {cells['gpus']} x {cells['accelerator']} | {cells['each']} | {cells['hours']} | {score.reason} | | | | | |"
            continue
        yield (
            f"| {cells['id']} | {cells['model']} | {cells['gpus']} x {cells['accelerator']} | {cells['each']} | "
            f"{score.printed['step']:g} | {score.predicted['step']:.2f} | {score.ratio:.2f} | {_shares(score)} |"
        )
    yield ""
    yield "## Steps"
    yield ""
    yield "| row | source | | model | GPUs | | printed (s) | predicted (s) | ratio | rollout | scoring | updates | weights, controller |"
    yield "|---|---|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|"
    for score in steps:
        cells = score.cells
        machine = cells["preset"].split("-")[0] if not cells["preset"].startswith("hgx") else cells["preset"].split("-")[1]
        how = "one step ahead" if cells["behind"] == "1" else "in step"
        head = (
            f"| `{cells['id']}` | [{cells['source']}]({cells['url']}) | {cells['seen']} | {cells['model']} | "
            f"{cells['gpus']} {machine.upper()} | {how} | {score.printed['step']:g} |"
        )
        if score.reason:
            yield f"{head} no answer: {score.reason} | | | | | |"
            continue
        yield f"{head} {score.predicted['step']:.1f} | {score.ratio:.2f} | {_shares(score)} |"
    parts = [s for s in steps if not s.reason and len(s.printed) > 1]
    if parts:
        yield ""
        yield "## Parts that are printed"
        yield ""
        yield "Of rows whose source prints parts: seconds predicted / printed. Generation holds the scoring where no scoring is printed."
        yield ""
        yield "| row | generation | scoring | update |"
        yield "|---|--:|--:|--:|"
        for score in parts:
            cells_of = [
                f"{score.predicted[name]:.3g} / {score.printed[name]:.3g}" if name in score.printed else ""
                for name in ("generation", "scoring", "update")
            ]
            yield f"| `{score.cells['id']}` | {' | '.join(cells_of)} |"


def _shares(score: Score) -> str:
    """Shares of the predicted step by part, of what makes it longer."""
    total = sum(score.phases.values())
    kinds = {
        "rollout": ("rollout",),
        "scoring": ("old log probs", "reference", "reward model", "values"),
        "updates": ("actor update", "critic update"),
        "weights": ("weights to engines", "offload", "controller"),
    }
    return " | ".join(f"{100 * sum(score.phases.get(n, 0.0) for n in names) / total:.0f} %" for names in kinds.values())
