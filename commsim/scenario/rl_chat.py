"""DeepSpeed-Chat's third step as an ``rl:`` item: PPO with its hybrid engine on the GPUs that train."""

from __future__ import annotations

from commsim.scenario.rl import RlSpec
from commsim.scenario.rl_parts import AnswerSpec, EnginesSpec
from commsim.scenario.training import TrainingSpec


def chat_spec(training: TrainingSpec, *, critic: str, engine_tp: int, prompt: int = 256, answer: int = 256) -> RlSpec:
    """The step whose updates `training` says: as many questions as it trains on, padded, all of them answered at once.

    Under ZeRO-3 the hybrid engine gathers the actor once a rollout into engines of `engine_tp` GPUs, and launches its
    kernels one by one; reward model and critic are of one kind.
    """
    return RlSpec(
        algorithm="ppo",
        training=training,
        engines=EnginesSpec(framework="deepspeed", tp=engine_tp, memory_share=1.0),
        prompts=training.global_batch_size,
        prompt_len=prompt,
        answer=AnswerSpec(most=answer, cv=0.0),
        packing=False,
        critic=critic,
        offload=False,
    )
