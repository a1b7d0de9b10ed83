"""DeepSpeed-Chat's printed hours beside the model's: `validation/rl/deepspeed_chat.csv`.

What the tables do not print follows from the project's scripts: sequences of a GPU, GPUs of an engine, rank of LoRA. A
model without a script has as many sequences as one that has: that keep as many activations (sequences * layers *
width); on 40 GB half as many, and twice the GPUs of an engine. 6.7B's script cannot be that of the table: with its 4
sequences reading the weights for 256 tokens alone takes longer than the printed 1.8 s of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commsim import api
from commsim.errors import CommsimError
from study.rl import Cells, Score, rows_of

SAMPLES = 264_292
"""Questions of the epoch: "the total training samples we have here is 264292", 256 + 256 tokens each, 135,317,504 in
all (`BenckmarkSetting.md`). The blog's footnote says 131.9k questions of the same 135 M tokens: half of them."""


def chat_scores(ids: Sequence[str] = ()) -> list[Score]:
    """All rows, hours."""
    return [_score(cells) for cells in rows_of("deepspeed_chat.csv", ids)]


def _score(cells: Cells) -> Score:
    printed = {"step": float(cells["hours"])}
    try:
        item = api.run(chat_scenario(cells)).rl[0]
    except CommsimError as error:
        return Score(cells, printed, reason=str(error).splitlines()[0])
    hours = SAMPLES / item.sequences / 3600.0
    phases = {name: seconds * hours for name, seconds in item.step.shown().items()}
    return Score({**cells, "step_s": f"{item.step_s:.2f}"}, printed, {"step": hours * item.step_s}, phases)


def chat_scenario(cells: Cells) -> dict[str, Any]:
    """The scenario of a row."""
    each = int(cells["each"])
    sequences = each * int(cells["gpus"])
    training: dict[str, Any] = {
        "model": cells["model"],
        "accelerator": cells["accelerator"],
        "global_batch_size": sequences,
        "micro_batch_size": each,
        "zero_stage": 3,
        "recompute": "full",
        "framework": "deepspeed",
        "stack": "eager",
        "flash_attention": False,
        "precision": "fp16",
    }
    if int(cells["lora"]):
        training["finetune"] = {
            "kind": "lora",
            "rank": int(cells["lora"]),
            "targets": ["q", "k", "v", "o", "up", "down"],
        }
    rl = {
        "algorithm": "ppo",
        "prompts": sequences,
        "prompt_len": 256,
        "answer": {"most": 256, "cv": 0.0},
        "packing": False,
        "critic": cells["reward"],
        "training": training,
        "engines": {"framework": "deepspeed", "tp": int(cells["tp"]), "memory_share": 1.0},
        "offload": False,
    }
    return {
        "name": cells["id"],
        "topology": {"preset": cells["preset"], "nodes": int(cells["nodes"])},
        "library": {"name": "nccl", "version": "2.14.3"},
        "workload": [{"rl": rl}],
    }
