"""What an engine's scheduler puts into one step."""

from __future__ import annotations

from dataclasses import dataclass, replace

from commsim.generation.parameters import generation_values
from commsim.generation.replica import Replica
from commsim.units import GIGA


@dataclass(frozen=True)
class Policy:
    """How an engine fills its steps.

    ``token_budget``: tokens of one step of each rank of attention, decoding ones and those of prompts together.
    ``most_sequences``: that a rank has under way at once. ``mixed``: chunks of prompts go beside decoding sequences;
    else a step does prompts or decodes, prompts first. ``chunked``: a prompt may be cut to what the budget leaves.
    ``reserve_answer``: the cache is reserved for whole answers, so that nothing is preempted.
    ``ranks``: of attention data parallelism, which go in step and wait for the busiest of them.
    ``static``: a batch is taken, padded, and done to its end before the next one, as ``generate`` of a library does.
    ``intake_steps``: decode steps from one look for new requests to the next; after prompts it looks at once.
    ``block_tokens``: of the cache that are taken together. ``before_s``: from when a request is sent until the
    scheduler sees it (the server, its tokenizer).
    """

    token_budget: int = 8192
    most_sequences: int = 1024
    mixed: bool = True
    chunked: bool = True
    reserve_answer: bool = False
    ranks: int = 1
    static: bool = False
    intake_steps: int = 1
    block_tokens: int = 16
    before_s: float = 0.0


def policy_of(replica: Replica) -> Policy:
    """What the scheduler of a replica's framework does where nobody says otherwise.

    vLLM: a server takes 8,192 tokens a step and 1,024 sequences on GPUs of 70 GB and more, else 2,048 and 256
    (vllm/engine/arg_utils.py, defaults by usage context); running sequences first, then prompts in chunks
    (vllm/v1/core/sched/scheduler.py). SGLang: prompts of up to 2,048, 8,192 or 16,384 tokens by the GPU's memory
    (chunked_prefill_size in python/sglang/srt/server_args.py), a batch of prompts before decoding, without
    enable_mixed_chunk. TensorRT-LLM: max_batch_size 2,048, max_num_tokens 8,192, without chunked context, answers
    reserved (GUARANTEED_NO_EVICT; docs, useful runtime options). Transformers' ``generate``: one batch to its end.
    """
    name = replica.engine.framework
    return replace(_of_framework(replica), before_s=generation_values().get(f"host.first.{name}", 0.0))


def _of_framework(replica: Replica) -> Policy:
    memory, ranks = replica.gpu.memory_bytes, replica.attention_dp
    match replica.engine.framework:
        case "vllm":
            large = memory >= 70 * GIGA
            return Policy(8192 if large else 2048, 1024 if large else 256, ranks=ranks)
        case "sglang":
            tokens = 2048 if memory < 35 * GIGA else 8192 if memory < 160 * GIGA else 16_384
            return Policy(tokens, 2048, mixed=False, ranks=ranks, block_tokens=1)
        case "tensorrt_llm":
            return Policy(8192, 2048, chunked=False, reserve_answer=True, ranks=ranks, block_tokens=32)
        case _:
            return Policy(2**31, 2**31, chunked=False, static=True, block_tokens=1)
