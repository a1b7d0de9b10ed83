"""A rollout: the tail, one batch of a library, and what does not fit."""

from __future__ import annotations

import re

import pytest

from commsim.errors import InfeasibleError
from commsim.generation.policy import Policy
from commsim.generation.replica import Replica
from commsim.rl.lengths import asked, lengths_of
from commsim.rl.rollout import roll_out
from commsim.training.accelerator import accelerator
from commsim.training.model import model


def test_alike_answers_end_together_and_others_have_a_tail() -> None:
    replica = Replica(model("llama3-8b"), accelerator("H100"))
    alike, long = (
        roll_out(replica, lambda batch: 0.01, asked(100, lengths, 16, 4), 4, memory_share=0.9, policy=Policy())
        for lengths in (lengths_of(200, 2000, 0.0), lengths_of(200, 2000, 1.0))
    )
    assert alike.total_s == pytest.approx(200 * 0.01, rel=0.02)
    assert alike.total_s == pytest.approx(alike.half_s)
    assert long.half_s < alike.half_s < long.most_s < long.total_s


def test_weights_that_leave_no_room_are_refused() -> None:
    replica = Replica(model("llama3-70b"), accelerator("H100"))
    message = "found 131.4 GiB of weights of llama3-70b on each GPU of an engine"
    with pytest.raises(InfeasibleError, match=re.escape(message)):
        roll_out(replica, lambda batch: 0.01, asked(10, lengths_of(9, 9), 2, 1), 1, memory_share=0.9, policy=Policy())
