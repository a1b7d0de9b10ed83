"""Single changes of a step of reinforcement learning, each simulated by `commsim explain`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commsim.planner.changes import ITEM, Change

if TYPE_CHECKING:
    from commsim.scenario.rl import RlSpec
    from commsim.training.accelerator import Accelerator


def rl_changes(spec: RlSpec, gpus: int, gpu: Accelerator) -> Iterator[Change]:
    """Other engines, cuts of them, and what is moved and scored; prompts, lengths and the trainer's mesh stay."""
    e = spec.engines

    def say(words: str, **values: Any) -> Change:
        return Change(words, {f"{ITEM}.rl.{name.replace('__', '.')}": value for name, value in values.items()})

    if e.precision == "bf16" and gpu.supports("fp8"):
        yield say("engines with weights in fp8", engines__precision="fp8")
    if e.cache_precision == "bf16" and gpu.supports("fp8"):
        yield say("a cache in fp8", engines__cache_precision="fp8")
    if e.of_a_library:
        yield say("engines of vLLM", engines__framework="vllm")
        yield say("CUDA graphs", engines__cuda_graphs=True)
    for tp in (2 * e.tp, e.tp // 2):
        if tp >= 1 and (e.gpus or gpus) % (tp * e.pp * e.attention_dp) == 0:
            yield say(f"engines of tp {tp} instead of {e.tp}", engines__tp=tp)
    if e.most_sequences is not None and not e.of_a_library:
        yield say(
            f"{2 * e.most_sequences} sequences of an engine at once", engines__most_sequences=2 * e.most_sequences
        )
    if e.log_probs:
        yield say("no log-probabilities from engines", engines__log_probs=False)
    if spec.old_log_probs:
        yield say("no forward for old log-probabilities", old_log_probs=False)
    if not spec.packing:
        yield say("packed sequences", packing=True)
    if e.gpus is None:
        yield say(f"engines on {gpus // 2} of the GPUs, a step ahead", engines__gpus=gpus // 2, behind=1)
        if spec.offload:
            yield say("nothing leaves for the host", offload=False)
    else:
        if spec.behind == 0:
            yield say("engines a step ahead", behind=1)
        if spec.sync == "broadcast":
            yield say("weights from GPU to GPU", sync="point_to_point")
