"""`commsim explain` of a step of reinforcement learning: changes that its item can have, and what bounds it."""

from __future__ import annotations

from typing import Any

import pytest

from commsim import api
from commsim.planner.explain import explain
from commsim.planner.rl_changes import rl_changes
from commsim.report.explain import text, to_dict
from commsim.scenario.rl import RlSpec
from commsim.training.accelerator import accelerator

TRAINING = {"model": "opt-1.3b", "global_batch_size": 16, "zero_stage": 2, "seq_len": 512}
RL: dict[str, Any] = {"prompts": 16, "prompt_len": 128, "answer": {"most": 128}, "training": TRAINING}


def said(gpu: str = "H100", **keys: Any) -> list[str]:
    return [change.what for change in rl_changes(RlSpec.model_validate(RL | keys), 8, accelerator(gpu))]


def test_engines_by_turns_may_have_gpus_of_their_own_or_keep_all() -> None:
    words = said()
    assert "engines on 4 of the GPUs, a step ahead" in words
    assert "nothing leaves for the host" in words
    assert "weights from GPU to GPU" not in words


def test_engines_on_gpus_of_their_own_may_be_a_step_ahead() -> None:
    words = said(engines={"gpus": 4})
    assert {"engines a step ahead", "weights from GPU to GPU"} <= set(words)
    assert "nothing leaves for the host" not in words
    assert "engines a step ahead" not in said(engines={"gpus": 4}, behind=1)


def test_a_gpu_without_fp8_is_offered_none_and_a_library_an_engine() -> None:
    words = said("A100", engines={"framework": "deepspeed"})
    assert not any("fp8" in one for one in words)
    assert {"engines of vLLM", "CUDA graphs"} <= set(words)
    assert "engines with weights in fp8" in said("H100")


@pytest.mark.slow
def test_a_step_is_explained_by_its_longest_part() -> None:
    scenario = {
        "name": "small",
        "topology": {"preset": "dgx-a100"},
        "library": {"name": "nccl", "version": "2.18.1"},
        "workload": [{"rl": RL}],
    }
    result = api.run(scenario)
    (reason,) = explain(result)
    assert reason.rl is not None
    assert reason.seconds == result.rl[0].step_s
    plain = to_dict(reason)
    assert sum(plain["shares"].values()) == pytest.approx(1.0)
    assert plain["bound_by"] == max(plain["shares"], key=plain["shares"].get)
    assert "a step, bound by the" in text(result, [reason])
    assert explain(result, what_if=False)[0].gains == ()
