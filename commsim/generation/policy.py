"""What an engine's scheduler puts into one step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """How an engine fills its steps.

    ``token_budget``: tokens of one step of each rank of attention, decoding ones and those of prompts together.
    ``most_sequences``: that a rank has under way at once. ``mixed``: chunks of prompts go beside decoding sequences;
    else a step does prompts or decodes, prompts first. ``chunked``: a prompt may be cut to what the budget leaves.
    ``reserve_answer``: the cache is reserved for whole answers, so that nothing is preempted.
    ``ranks``: of attention data parallelism, which go in step and wait for the busiest of them.
    ``static``: a batch is taken, padded, and done to its end before the next one, as ``generate`` of a library does.
    ``block_tokens``: of the cache that are taken together.
    """

    token_budget: int = 8192
    most_sequences: int = 1024
    mixed: bool = True
    chunked: bool = True
    reserve_answer: bool = False
    ranks: int = 1
    static: bool = False
    block_tokens: int = 16


FRAMEWORKS = {
    "vllm": Policy(),
    "sglang": Policy(most_sequences=2048, mixed=False, block_tokens=1),
    "tensorrt_llm": Policy(most_sequences=2048, chunked=False, reserve_answer=True, block_tokens=32),
    "hf": Policy(static=True, chunked=False, block_tokens=1),
}
"""By framework what its scheduler does where nobody says otherwise.

vLLM 0.11 (vllm/engine/arg_utils.py: 8,192 tokens and 1,024 sequences on GPUs of 70 GiB and more; vllm/v1/core/sched/
scheduler.py: running sequences first, then prompts in chunks). SGLang 0.5 (python/sglang/srt/server_args.py:
chunked_prefill_size 8,192 on GPUs of 80 GiB, enable_mixed_chunk off; managers/scheduler.py: a batch of prompts goes
before decoding). TensorRT-LLM 1.0 (llmapi: max_batch_size 2,048, max_num_tokens 8,192, enable_chunked_prefill off,
GUARANTEED_NO_EVICT, tokens_per_block 32). Transformers' ``generate``: one batch to its end.
"""
