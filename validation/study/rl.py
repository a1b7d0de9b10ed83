"""Published steps of reinforcement learning beside the model's: `validation/rl`, a row per step.

What a source does not print is an assumption that its row or `validation/rl/README.md` names. Nothing is fitted to the
rows; those marked ``built`` were looked at while the model was written, those marked ``held`` only scored.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commsim import api
from commsim.errors import CommsimError
from commsim.processes import Pool, usable_cores

FOLDER = Path(__file__).resolve().parents[1] / "rl"

Cells = dict[str, str]


@dataclass(frozen=True)
class Score:
    """A published step and the predicted one; ``printed`` and ``predicted`` seconds by part, of which one is the step.

    ``reason``: why a row has no answer.
    """

    cells: Cells
    printed: dict[str, float]
    predicted: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def ratio(self) -> float:
        """Predicted over printed."""
        return self.predicted["step"] / self.printed["step"]

    @property
    def error(self) -> float:
        """|predicted - printed| / printed."""
        return abs(self.ratio - 1.0)


def rows_of(name: str, ids: Sequence[str] = ()) -> Iterator[Cells]:
    """The rows of a table of the folder, of those that begin with one of the ids if there are any."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as stream:
        for cells in csv.DictReader(stream):
            if not ids or any(cells["id"].startswith(one) for one in ids):
                yield cells


def step_scores(ids: Sequence[str] = ()) -> list[Score]:
    """All steps of `steps.csv`."""
    with Pool(usable_cores()) as pool:
        return list(pool.map(_score, list(rows_of("steps.csv", ids))))


def _score(cells: Cells) -> Score:
    columns = {"step": "step_s", "generation": "generation_s", "scoring": "scoring_s", "update": "update_s"}
    printed = {name: float(cells[column]) for name, column in columns.items() if cells[column]}
    try:
        item = api.run(scenario_of(cells)).rl[0]
    except CommsimError as error:
        return Score(cells, printed, reason=str(error).splitlines()[0].removeprefix(":1:1 "))
    step = item.step
    lead = sum(s.end_s - s.start_s for s in step.spans if s.phase.stage == "rollout")
    scored = max((s.end_s for s in step.spans if s.phase.stage == "scoring"), default=lead)
    begun = min((s.start_s for s in step.spans if s.phase.stage == "update"), default=scored)
    ended = max((s.end_s for s in step.spans if s.phase.stage == "update"), default=begun)
    parts = {"generation": lead, "scoring": scored - lead, "update": ended - begun}
    if "scoring" not in printed and "generation" in printed:
        parts["generation"] = scored  # it is counted with what scores
    return Score(cells, printed, {"step": step.step_s, **parts}, step.shown())


def scenario_of(cells: Cells) -> dict[str, Any]:
    """The scenario of a row of `steps.csv`."""
    whole = {key: int(cells[key]) for key in ("prompts", "samples", "prompt_len", "update_batch", "micro_batch")}
    prompt, most = whole["prompt_len"], int(cells["max_len"])
    hf = cells["engine"] in ("hf", "deepspeed")
    engines: dict[str, Any] = {
        "framework": cells["engine"],
        "tp": int(cells["gen_tp"]),
        "precision": "fp8_block" if cells["gen_precision"] == "fp8" else cells["gen_precision"],
        "memory_share": float(cells["gen_memory"]),
        "deal": cells["deal"],
        "log_probs": cells["source"].startswith("NeMo-RL"),  # `SamplingParams(logprobs=0)` in its vllm_worker.py
    }
    if cells["engine"] != "deepspeed":
        engines["release"] = cells["engine_release"]
    if int(cells["gen_gpus"]):
        engines["gpus"] = int(cells["gen_gpus"])
    if cells["engine"] == "hf":
        engines["most_sequences"] = whole["micro_batch"]
    elif cells["most_sequences"]:
        engines["most_sequences"] = int(cells["most_sequences"])
    roles = {name: int(cells[f"{name}_gpus"]) for name in ("reference", "reward", "critic") if cells[f"{name}_gpus"]}
    rl = {
        "algorithm": cells["algorithm"],
        "prompts": whole["prompts"],
        "samples": whole["samples"],
        "prompt_len": prompt,
        "answer": {"mean": float(cells["total_len"]) - prompt, "most": most - prompt},
        "packing": cells["packing"] == "yes",
        "behind": int(cells["behind"]),
        "training": training_of(cells),
        "engines": engines,
        "roles": roles,
        "offload": not hf,
    }
    if cells["critic"]:
        rl["critic"] = cells["critic"]
    return {
        "name": cells["id"],
        "topology": machine_of(cells),
        "library": {"name": "nccl", "version": "2.27.5" if cells["backend"] == "megatron" else "2.18.1"},
        "workload": [{"rl": rl}],
    }


def machine_of(cells: Cells) -> dict[str, Any]:
    """The machine of a row; racks of 72 GPUs are used up to 64, two nodes of A800 are joined by assumed NICs."""
    gpus = int(cells["gpus"])
    if cells["preset"].startswith("gb200"):
        racks = -(-gpus // 64)
        return {"preset": cells["preset"], "nodes": racks, "gpus_per_node": gpus // racks}
    machine: dict[str, Any] = {"preset": cells["preset"], "nodes": int(cells["nodes"])}
    if cells["preset"] == "a800" and machine["nodes"] > 1:
        machine |= {"nics_per_node": 8, "nic_bandwidth": "200 Gb/s"}
    return machine


def training_of(cells: Cells) -> dict[str, Any]:
    """The training item of a row."""
    megatron, tp = cells["backend"] == "megatron", int(cells["tp"])
    mesh = {axis: int(cells[axis]) for axis in ("tp", "cp", "ep", "pp")}
    training: dict[str, Any] = {
        "model": cells["model"],
        "seq_len": int(cells["max_len"]),
        "global_batch_size": int(cells["update_batch"]),
        "micro_batch_size": int(cells["micro_batch"]),
        "mesh": mesh,
        "zero_stage": int(cells["zero_stage"]),
        "recompute": cells["recompute"],
        "precision": cells["precision"],
        "sequence_parallel": tp > 1,
        "framework": cells["backend"],
        "stack": "tuned" if megatron else "eager",
        "flash_attention": cells["engine"] != "deepspeed",  # OPT of transformers in 2023 has none
        "attention_kernel": "vendor" if megatron else "open",
        "bytes_per_parameter": 16,  # gradients are summed in 16 bit
    }
    if cells["stage_layers"]:
        training["stage_layers"] = [int(n) for n in cells["stage_layers"].split()]
    if cells["adam_offload"] == "yes":
        training["offload"] = {"optimizer": True}
    return training
