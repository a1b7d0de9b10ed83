"""What the study of generation prints, and its page in the documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from commsim.files import write_atomically
from study.generation import FOLDER
from study.paths import DOCS
from study.words import words_of

PAGE = DOCS / "accuracy-generation.md"

GROUPS = {
    "by_model": "model",
    "by_gpu": "GPU",
    "by_framework": "framework",
    "by_formats": "formats",
    "by_mesh": "mesh",
    "by_lengths": "tokens in and out",
    "by_concurrency": "concurrency",
    "by_release": "release",
    "by_mode": "mode",
}

OPERATORS = {
    "product": "matrix products",
    "experts": "layers of experts",
    "decode": "attention of one token",
    "context": "attention of prompts",
}


def summary(figures: Mapping[str, Any]) -> str:
    """Medians of all rows and by group, and what could not be answered."""
    table = [("", "rows", "tpot", "bias", "ttft", "bias"), ("all", *_cells(figures["median_error_pct"]))]
    for group in GROUPS:
        table += [(name, *_cells(of)) for name, of in figures[group].items()]
    width = [max(len(row[c]) for row in table) for c in range(len(table[0]))]
    head = f"{figures['n_answered']:,} of {figures['n_rows']:,} rows answered ({figures['answered_pct']} %), "
    lines = [f"{head}{_WORDS[figures['mode']]}; median errors in %"]
    lines += ["  ".join([row[0].ljust(width[0]), *map(str.rjust, row[1:], width[1:])]).rstrip() for row in table]
    return "\n".join([*lines, *_refused(figures)]) + "\n"


_WORDS = {"leave-model": "the architecture left out", "leave-gpu": "the GPU left out"}


def _refused(figures: Mapping[str, Any]) -> Iterator[str]:
    for of in figures["not_answered"]:
        ids = ", ".join(of["ids"][:5]) + (" ..." if len(of["ids"]) > 5 else "")
        yield f"not answered: {of['rows']} row{'s' * (of['rows'] != 1)} ({ids}): {of['reason']}"


def page(model: Mapping[str, Any], gpu: Mapping[str, Any], kernels: list[dict[str, Any]]) -> str:
    """The page docs/accuracy-generation.md, of the figures of both modes and of the kernels."""
    whole, other = model["median_error_pct"], gpu["median_error_pct"]
    lines = [
        "# Generation",
        "",
        "Written by `commsim validate generation --report`; do not edit by hand.",
        "",
        words_of("accuracy-generation"),
        "",
        f"{model['n_answered']:,} of {model['n_rows']:,} runs of vLLM, SGLang and TensorRT-LLM that NVIDIA measured "
        "(`validation/generation/serving.csv`) are predicted. The error is |predicted / measured - 1|, of the mean "
        "time per output token and of the time to the first token under the stated load; medians in percent.",
        "",
        "| | time per output token | within 25 % | time to the first token |",
        "|---|--:|--:|--:|",
        f"| architecture left out | {whole['tpot']} | {whole['tpot_within_25']} | {whole['ttft']} |",
        f"| GPU left out | {other['tpot']} | {other['tpot_within_25']} | {other['ttft']} |",
        "",
        "- *architecture left out*: parameters of hosts and graphs are fitted to runs of other architectures. DeepSeek "
        "R1, V3 and V3.1 are one. Kernels are fitted to operators measured one by one, which know no models.",
        "- *GPU left out*: kernels and parameters are fitted to other GPUs; of the GPU scored only its datasheet is "
        "known.",
    ]
    lines += [f"- {line}" for line in _refused(model)]
    for group, word in GROUPS.items():
        lines += ["", f"## By {word}", "", f"| {word} | rows | tpot | bias | ttft | bias | tpot, GPU left out |", _RULE]
        for name, of in model[group].items():
            left = gpu[group].get(name, {}).get("tpot")
            lines.append(f"| {name} | {' | '.join(_cells(of))} | {'-' if left is None else left} |")
    lines += ["", "## Kernels", "", *_kernels(kernels), "", *_RECIPES, "", *_MISSES]
    return "\n".join(lines) + "\n"


_RULE = "|---|--:|--:|--:|--:|--:|--:|"

_RECIPES = (
    "## What rows do not say",
    "",
    "Requests of rows of 1,024:1,024, 8,192:1,024 and 1,024:8,192 tokens are those of InferenceMAX, whose scripts"
    " are public (`validation/study/serving_recipes.py`): ten for each client, of 0.8 to 1 of the tokens stated; "
    "SGLang looks for new ones every 30 decode steps (`--scheduler-recv-interval`, 10 below 16 clients), "
    "TensorRT-LLM holds prompts back for up to 60 steps until all groups of attention have some. Of other rows "
    "nothing is known: they are taken to be measured so, with lengths from 0.9 on. Without the interval (SGLang's"
    " own default is 1) its times to the first token would be 46 % off instead of 26; with one length for all, "
    "those of TensorRT-LLM 37 instead of 24. `commsim run` does what the file says: `range_ratio`, "
    "`scheduler.intake_steps`.",
)

_MISSES = (
    "## What misses",
    "",
    "- Speculation: runs of TensorRT-LLM's DeepSeek-R1 from 1.1 on, some of SGLang's and of Qwen3.5 in fp8 take half "
    "the time per token of equal runs beside them. Multi-token prediction does that; no column says so, and none is "
    "assumed.",
    "- Pools on GB200: the source gives the GPUs of prefill and decode together as one mesh (12 to 72 GPUs with all of "
    "them as tensor parallel). As many engines of four are taken to read prompts as keep pace; the others decode.",
    "- Times to the first token of bursts: what a request waits for hangs on how many others come with it.",
)


def _kernels(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "Operators measured one by one (`python validation/fit_generation.py`): errors by terms of all GPUs, and by"
    yield "those of other GPUs than the one scored."
    yield ""
    yield "| operator | GPU | rows | its own fit | left out |"
    yield "|---|---|--:|--:|--:|"
    for row in rows:
        if row["by"] != "kernel":
            name = OPERATORS[row["operator"]]
            yield f"| {name} | {row['name'] or 'all'} | {row['rows']:,} | {row['own']} | {row['left_out']} |"


def write_report(model: Mapping[str, Any], gpu: Mapping[str, Any]) -> list[Path]:
    """Writes the page."""
    kernels = json.loads((FOLDER / "kernels.json").read_text(encoding="utf-8"))
    return [write_atomically(PAGE, page(model, gpu, kernels))]


def _cells(of: Mapping[str, Any]) -> tuple[str, ...]:
    names = ("tpot", "tpot_bias", "ttft", "ttft_bias")
    return (str(of["rows"]), *("-" if of[name] is None else f"{of[name]:.1f}" for name in names))
