"""What the study of all-reduce kernels prints, and its page in the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from commsim.files import write_atomically
from study.kernels import WAYS
from study.paths import DOCS
from study.words import words_of

PAGE = DOCS / "accuracy-kernels.md"

GROUPS = {
    "by_gpu": "GPU",
    "by_number_of_gpus": "number of GPUs",
    "by_framework": "framework",
    "by_call": "call",
    "by_kernel": "kernel",
}

_WORDS = {
    "as_fitted": "as fitted",
    "gpu_left_out": "GPU left out",
    "count_left_out": "number left out",
    "three_sizes_known": "three sizes known",
}


def summary(figures: Mapping[str, Any]) -> str:
    """Medians of all rows, by group and by curve; what could not be predicted; what choosing by the model loses."""
    head = ("", "rows", "pred/meas", *(_WORDS[way] for way in WAYS))
    table = [head, ("all", str(figures["n_scored"]), "", *_cells(figures["median_error_pct"]))]
    for group in GROUPS:
        table += [(name, *_counted(of)) for name, of in figures[group].items()]
    table += [(_curve_name(curve), *_counted(curve)) for curve in figures["curves"]]
    width = [max(len(row[c]) for row in table) for c in range(len(head))]
    lines = [f"{figures['n_scored']:,} of {figures['n_rows']:,} rows predicted; median errors in %"]
    lines += ["  ".join([row[0].ljust(width[0]), *map(str.rjust, row[1:], width[1:])]).rstrip() for row in table]
    lines += [f"not predicted: {of['rows']} rows of {of['device']}: {of['reason']}" for of in figures["not_predicted"]]
    return "\n".join([*lines, *_choice_lines(figures["choice"])]) + "\n"


def page(figures: Mapping[str, Any]) -> str:
    """The page docs/accuracy-kernels.md."""
    whole = figures["median_error_pct"]
    lines = [
        "# All-reduce kernels",
        "",
        "Written by `commsim validate kernels --report`; do not edit by hand. What the kernels are and how they are "
        "predicted: [Custom all-reduce](guides/custom-all-reduce.md).",
        "",
        words_of("accuracy-kernels"),
        "",
        f"{figures['n_scored']:,} rows of vLLM, SGLang and TensorRT-LLM on 2, 4 and 8 GPUs, 256 B to 1 GiB, in CUDA "
        "graphs and called from Python, which NVIDIA measured (`validation/kernels/custom_all_reduce.csv`). The error "
        "is |predicted time / measured time - 1|; medians in percent. Where a framework falls back to NCCL, NCCL's "
        "model answers, which no row of the table was fitted to.",
        "",
        "- *as fitted*: by the parameters that ship, which were fitted to these rows;",
        "- *GPU left out*: fitted to the rows of other GPUs; of the GPU scored only its datasheet is known;",
        "- *number left out*: fitted to the rows of other numbers of GPUs;",
        "- *three sizes known*: fitted without the GPU, then each curve moved to three of its sizes, which are not "
        "scored.",
        "",
        _head("rows of"),
        _RULE,
        f"| all | {figures['n_scored']} | | {' | '.join(_cells(whole))} |",
    ]
    for group, word in GROUPS.items():
        lines += ["", f"## By {word}", "", _head(word), _RULE]
        lines += [f"| {name} | {' | '.join(_counted(of))} |" for name, of in figures[group].items()]
    lines += ["", "## By curve", "", _head("curve"), _RULE]
    lines += [f"| {_curve_name(curve)} | {' | '.join(_counted(curve))} |" for curve in figures["curves"]]
    lines += ["", "## Which kernel", "", *_choice_lines(figures["choice"]), ""]
    lines += [
        "## What misses",
        "",
        "- vLLM 0.19 and 0.24 on GB200 and vLLM 0.14 on H100 ran where NVLink did not multicast: from 256 KiB to 8 MiB "
        "their times are those of vLLM's own kernel, and NCCL's of 1 GiB on 4 and 8 GPUs 1.1 and 1.3 times those "
        "elsewhere. On two GPUs of that GB200, and of SGLang 0.5.9's, NCCL takes 2.7 times as long as on the other "
        "GB200. The table does not say so, and the scores don't know it.",
        "- SGLang from Python on four B200 takes twice as long as on two and on eight of them (0.5.9 and 0.5.14).",
        "- The fence between the two shots of vLLM's kernel: what it costs on two dies is told by those alone.",
        "- TensorRT-LLM above the workspace of its kernels copies into registered memory and runs NCCL's symmetric "
        "kernels up to 32 MiB; NCCL's other kernels stand for them here.",
    ]
    return "\n".join(lines) + "\n"


def write_report(figures: Mapping[str, Any]) -> list[Path]:
    """Writes the page."""
    return [write_atomically(PAGE, page(figures))]


_RULE = "|---|--:|--:|--:|--:|--:|--:|"


def _head(word: str) -> str:
    return f"| {word} | rows | predicted / measured | {' | '.join(_WORDS[way] for way in WAYS)} |"


def _counted(of: Mapping[str, Any]) -> tuple[str, ...]:
    return (str(of["rows"]), f"{of['predicted_to_measured']:.2f}", *_cells(of))


def _cells(of: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple("-" if of[way] is None else f"{of[way]:.1f}" for way in WAYS)


def _curve_name(curve: Mapping[str, Any]) -> str:
    mode = "graph" if curve["cuda_graph"] else "eager"
    return f"{curve['framework']} {curve['version']} {mode}, {curve['number_of_gpus']} x {curve['gpu']}"


def _choice_lines(choice: Mapping[str, Any]) -> Iterator[str]:
    if not choice["n_sizes"]:
        yield "no size at which NCCL and a framework's kernel were both measured"
        return
    always = ", ".join(f"{name} {lost:.1f} %" for name, lost in choice["always_lost_pct"].items())
    sizes = f"{choice['n_sizes']} size{'s' * (choice['n_sizes'] != 1)}"
    yield (
        f"Choosing among NCCL and the frameworks' kernels by predicted time at {sizes} loses "
        f"{choice['time_lost_pct']:.1f} % of the best measured time, all sizes together; by size "
        f"{choice['median_lost_pct']:.1f} % in the median, {choice['mean_lost_pct']:.1f} % on average; the best is "
        f"chosen at {choice['best_chosen']}. Always taking one of them, where it has a kernel, loses on average: "
        f"{always}."
    )
