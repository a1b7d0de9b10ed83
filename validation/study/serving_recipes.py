"""What serving benchmarks do that no column of their rows says: how many requests, of which lengths, with which flags.

Rows of 1,024:1,024, 8,192:1,024 and 1,024:8,192 tokens are the grid of InferenceMAX (SemiAnalysisAI/InferenceX), whose
scripts are public: `.github/workflows/full-sweep-tmpl.yml` (`random-range-ratio: 0.8`), `benchmarks/dsr1_fp8_b200_*`,
`dsr1_fp4_b200_*` and their `trt` twins. Of other rows nothing is known: they are taken to send as many
requests, of lengths that differ little, to servers that are set up alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from commsim.generation.policy import Policy
from commsim.generation.replica import Replica
from commsim.generation.steady import ClosedLoop

GRID = frozenset({(1024, 1024), (8192, 1024), (1024, 8192)})
"""Tokens in and out of InferenceMAX's runs."""

ROUNDS, MOST_REQUESTS = 10, 2000
"""Requests of each client (`--num-prompts $((CONC * 10))`), and of all clients at most (three each at least)."""

INTAKE_STEPS = ((16, 10), (2**31, 30))
"""Below so many clients, decode steps of SGLang from one look for requests to the next
(`--scheduler-recv-interval`: 30 from 16 clients on, else 10; its own default is 1)."""

BALANCED_STEPS = 60
"""Steps for which TensorRT-LLM holds prompts back until all groups of attention have some (`attention_dp_config`:
`enable_balance: true`, `timeout_iters: 60`)."""


@dataclass(frozen=True)
class Recipe:
    """How a row was measured, as far as it is known or assumed."""

    range_ratio: float
    requests: int
    policy: Policy


def recipe_of(replica: Replica, loop: ClosedLoop, policy: Policy) -> Recipe:
    """The recipe of a row; ``policy`` is what the framework does where nobody says otherwise."""
    c, framework = loop.concurrency, replica.engine.framework
    if framework == "sglang":
        steps = next(steps for below, steps in INTAKE_STEPS if c < below)
        policy = replace(policy, intake_steps=steps)
    elif framework == "tensorrt_llm" and replica.attention_dp > 1:
        policy = replace(policy, intake_steps=BALANCED_STEPS)
    grid = (round(loop.isl), round(loop.osl)) in GRID
    return Recipe(0.8 if grid else 0.9, max(min(ROUNDS, MOST_REQUESTS // c), 3) * c, policy)
