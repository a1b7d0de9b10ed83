"""Does the ranking find the best? Spaces of about 2,000 configurations that fit, every one of them simulated.

    python benchmarks/plan_best.py [CASE ...]

For each case: the best of the 20 that were ranked first (which `commsim plan` simulates), against the best of all.
The bar: within 0.5 % in five of five.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from commsim.document.types import Document
from commsim.planner.clusters import ClusterSpace, machines
from commsim.planner.plan import PlanAnswer, simulate
from commsim.planner.question import PlanFile
from commsim.planner.ranking import Ranked, evaluated
from commsim.training.memory import Framework
from commsim.training.parameters import shipped_values

FIRST, MOST = 20, 2_000

CASES = {
    "llama-8b-16-h100": ("llama3.1-8b", "hgx-h100-ndr400", 2, 64, 4096, "megatron"),
    "llama-8b-32-a100": ("llama3.1-8b", "dgx-a100-hdr200", 4, 64, 8192, "megatron"),
    "gpt-22b-64-a100": ("megatron-22b", "dgx-a100-hdr200", 8, 64, 2048, "megatron"),
    "mixtral-32-h100": ("mixtral-8x7b", "hgx-h100-ndr400", 4, 64, 4096, "megatron"),
    "llama-70b-64-h100": ("llama3.1-70b", "hgx-h100-ndr400", 8, 64, 4096, "fsdp2"),
}


def question(name: str) -> PlanFile:
    """The plan of a case."""
    model, preset, nodes, batch, seq_len, framework = CASES[name]
    return PlanFile.model_validate(
        {
            "name": name,
            "plan": {
                "model": model,
                "clusters": ({"topology": {"preset": preset, "nodes": nodes}},),
                "global_batch_size": (batch,),
                "seq_len": (seq_len,),
                "framework": framework,
            },
        }
    )


def everything(machine: ClusterSpace, framework: Framework) -> list[Ranked]:
    """All configurations that fit, or an even choice of `MOST` of them, in the order of the ranking."""
    fitting: list[Ranked] = []
    for block in machine.space.blocks():
        index = np.flatnonzero(block.reasons() == 0)
        if not len(index):
            continue
        batch = evaluated(block.take(index), framework, shipped_values())
        fits = np.flatnonzero(batch.memory_bytes <= machine.space.accelerator.memory_bytes)
        fitting += [batch.ranked(i) for i in fits.tolist()]
    fitting.sort(key=lambda r: r.seconds_per_token)
    half = MOST // 2
    return fitting[:half] + fitting[half :: max(1, (len(fitting) - half) // half)][:half]


def main() -> int:
    """Prints a line per case; exit status 1 if one misses the bar."""
    missed = 0
    for name in sys.argv[1:] or CASES:
        file = question(name)
        spec = file.plan
        machine = machines(spec, Document("", file.model_dump()), Path())[0]
        ranked = everything(machine, spec.memory)
        begun, answer = time.process_time(), PlanAnswer()
        simulate(spec, [(machine, r) for r in ranked], answer)
        simulated = {id(choice.ranked): choice.seconds for choice in answer.choices}
        seconds = [simulated[id(r)] for r in ranked if id(r) in simulated]  # the others do not fit beside NCCL
        best, first = min(seconds), min(seconds[:FIRST])
        gap = 100 * (first / best - 1)
        missed += gap > 0.5
        print(
            f"{name}: {len(seconds)} simulated in {time.process_time() - begun:.0f} s CPU; best of all {best:.4f} s "
            f"(ranked {seconds.index(best) + 1}), best of the first {FIRST} {first:.4f} s: {gap:.2f} %",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
