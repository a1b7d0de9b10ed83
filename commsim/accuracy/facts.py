"""What a training row's blank columns are taken for: by the words of its notes, its framework, and today's usual.

`frameworks.yaml` holds the columns that a framework implies, and those of some releases, models and GPUs. A row's
own cells always stand.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from commsim.document import read_documents
from commsim.errors import ScenarioError

Cells = Mapping[str, str]
Entry = Mapping[str, Any]

_PATH = Path(__file__).with_name("frameworks.yaml")

FACTS = {
    "framework": "what ran: megatron-lm, nemo, torchtitan ...",
    "release": "of the framework, as it counts them: 25.09, or 2021-04 of megatron-lm",
    "flops": "what a printed TFLOP/s or MFU counts: hardware, full, causal or six",
    "stack": "tuned, compiled or eager",
    "attention": "vendor (cuDNN, FlashAttention-3), open (FlashAttention-2) or unfused",
    "gradients": "type that gradients are kept and reduced in: fp32, bf16 or fp16",
    "overlap": "what moves beside compute: some of dp, params, tp, ep, pp, or none",
    "expert_dispatch": "nccl, deepep, deepep_low_latency, hybrid, nvlink; a second one is for NVL72 racks",
    "expert_tp": "yes where tp cuts experts too",
    "imbalance": "tokens of the busiest expert rank over the mean",
    "pipeline_chunk": "NCCL_P2P_NET_CHUNKSIZE in bytes, where the software sets it for sends between stages",
    "send_chunk": "the same, where it sets it whatever is sent",
    "context_parallel": "ring, all_gather or ulysses",
    "cuda_graphs": "yes, no, or experts: of layers of experts only",
    "early_stop": "yes where full recomputation ends with the last tensor that a layer keeps (torch from 2.1, XLA)",
    "recompute_modules": "what selective recomputation makes again: core_attn, moe, layernorm ...",
    "gated_mlp": "yes where the MLP has a gate, whatever its width",
    "mtp": "yes where a multi-token-prediction module is trained too",
    "lora": "yes where base weights are frozen",
    "power_limit_w": "of the board",
}
"""Columns beside those of the layout: facts about the software and the machine that a publication seldom prints."""


@lru_cache(maxsize=4)
def entries(path: Path = _PATH) -> Mapping[str, Entry]:
    """The entries of such a file by name."""
    data: dict[str, Entry] = read_documents(path)[0].data
    return data


def words_of(cells: Cells) -> str:
    """The words of a row that may name what ran."""
    return "; ".join(cells.get(name, "") for name in ("notes", "table", "model", "precision", "gpu_model"))


def framework_of(cells: Cells) -> str:
    """The framework of a row: its column, else the first that its source or words name, else what its formats tell.

    "" where nothing tells. ScenarioError where the column names none that is known.
    """
    known = [name for name in entries() if name != "usual"]
    if name := cells.get("framework", "").lower():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ScenarioError(
                f"framework = {name!r:.40}, expected {near[0] if near else 'one of ' + ', '.join(known)}"
            )
        return name
    words = f"{cells.get('source', '')}; {words_of(cells)}"
    named = next((name for name in known if re.search(entries()[name]["words"], words, re.IGNORECASE)), "")
    if named:
        return named
    if cells.get("zero_stage") == "3":
        return "fsdp"
    if not _old(cells):
        return ""
    return "megatron-lm" if cells.get("zero_stage", "") in ("", "0") else "megatron-deepspeed"


def implied(entry: Entry, cells: Cells) -> Iterator[tuple[str, str]]:
    """Columns that an entry implies for a row, the most special first."""
    words, release = words_of(cells), _release(cells)
    for case in entry.get("where", ()):
        if re.search(case.get("words", ""), words, re.IGNORECASE) and _within(release, case):
            yield from ((name, str(text)) for name, text in case.items() if name not in ("words", "since", "before"))
    yield from ((name, str(text)) for name, text in entry.get("columns", {}).items())


def filled(cells: Cells) -> dict[str, str]:
    """A row with its blank columns filled; ScenarioError for an unknown framework or what is no release."""
    framework, release = framework_of(cells), cells.get("release", "")
    if release and not re.fullmatch(r"[a-z_]*\d+([.-]\d+)*", release, re.IGNORECASE):
        raise ScenarioError(f"release = {release!r:.40}, expected such as 25.09, 0.12.0 or 2021-04")
    out = {"framework": framework} | {name: text for name, text in cells.items() if text or name != "framework"}
    usual = entries()["usual"]
    special = {"columns": {}, "where": usual["where"]}
    for entry in (special, entries().get(framework, {}), usual):
        for name, text in implied(entry, cells):
            if not out.get(name):
                out[name] = text
    if out["recompute"].lower() == "selective":
        out["recompute"] = out.get("selective", "selective")
    return out


def _release(cells: Cells) -> tuple[int, ...]:
    """The release of a row's framework: its column, the container of its notes, or 2022 where it trains in fp16."""
    if text := cells.get("release", ""):
        return _number(text)
    if container := re.search(r"container (\d\d\.\d\d)", cells.get("notes", "")):
        return _number(container[1])
    return (2022, 1) if _old(cells) else ()


def _within(release: tuple[int, ...], case: Entry) -> bool:
    """Whether a release is one of a case's, from ``since`` on and ``before`` another; what states none is of today."""
    since, before = (_number(str(case.get(name, ""))) for name in ("since", "before"))
    if not release:
        return not before
    alike = all(_dated(limit) == _dated(release) for limit in (since, before) if limit)
    return alike and since <= release and (not before or release < before)


def _old(cells: Cells) -> bool:
    """Whether a row is of the software before mid-2022: in fp16, on V100, or full recomputation without sequence
    parallelism, which came with selective recomputation."""
    whole = cells.get("recompute", "").lower() == "full" and cells.get("sp", "").lower() == "no"
    return whole or cells.get("precision", "").lower() == "fp16" or cells.get("gpu_model", "").startswith("V100")


def _dated(release: tuple[int, ...]) -> bool:
    """Whether a release counts by years (2021-04) and not by versions (25.09, 0.12)."""
    return release[0] > 1900


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])
