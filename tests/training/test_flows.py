"""Transfers of a step: what is one of them, and what they put on links."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.engine.sharing import LinkLoad
from commsim.nccl.memory import CommunicatorMemory
from commsim.training.communicators import Ranks
from commsim.training.flows import FlowBuilder, GroupCall
from commsim.training.mesh import Mesh


class OneLink:
    """Calls that take a second, all over one link, which they fill."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.asked: list[tuple[str, float]] = []

    def __call__(self, collective: str, nbytes: float, ranks: Ranks) -> float:
        return 1.0

    def load(self, collective: str, nbytes: float, ranks: Ranks) -> LinkLoad:
        self.asked.append((collective, nbytes))
        link = np.array([7])
        return LinkLoad(link, np.array([nbytes]), np.array([1.0]), np.array([100.0]))

    def communicators(self, rank: int) -> list[CommunicatorMemory]:
        return []

    def sms(self, collective: str, nbytes: float, ranks: Ranks) -> int:
        return 0

    def fresh(self) -> OneLink:
        return self


def test_equal_transfers_are_one_call() -> None:
    calls, mesh = OneLink(), Mesh(dp=4, pp=2)
    builder = FlowBuilder(calls, calls)
    groups = mesh.groups_of(0, "dp")
    first, again = (builder.collective("all_reduce", 100.0, groups, ("all_reduce", (("dp",), 0, 1))) for _ in range(2))
    other = builder.collective("all_reduce", 100.0, mesh.groups_of(1, "dp"), ("all_reduce", (("dp",), 0, 1)))
    assert first.shared == again.shared == 0
    assert other.shared == 1
    assert calls.asked == [("all_reduce", 100.0)] * 2
    sharing = builder.sharing()
    assert sharing is not None
    assert sharing.pace((0, 1))[0] == pytest.approx([0.5, 0.5])


def test_calls_of_a_pass_follow_one_another() -> None:
    """Twice a gather and once a scatter in four seconds: a quarter of their bytes each second."""
    calls = OneLink()
    builder = FlowBuilder(calls, calls)
    groups = np.array([[0, 1]])
    parts = [GroupCall(2.0, "all_gather", 100.0, groups), GroupCall(1.0, "reduce_scatter", 200.0, groups)]
    flow = builder.of(0.0, 4.0, parts)
    beside = builder.send(groups, 10.0)
    assert (flow.seconds, flow.shared, beside.shared) == (4.0, 0, 1)
    sharing = builder.sharing()
    assert sharing is not None
    assert sharing._columns.of_call(0)[1].tolist() == [100.0]


def test_what_needs_no_link_is_no_call() -> None:
    calls = OneLink()
    builder = FlowBuilder(calls, calls)
    assert (
        builder.of(0.0, 1.0, [GroupCall(1.0, "all_reduce", 100.0, np.array([[0], [1]]))]).shared == -1
    )  # groups of one
    assert builder.of(0.0, 1.0, [GroupCall(1.0, "all_reduce", 0.0, np.array([[0, 1]]))]).shared == -1
    assert FlowBuilder(calls).send(np.array([[0, 1]]), 100.0).shared == -1  # nobody says what lies on links
    assert builder.sharing() is None


def test_one_transfer_alone_meets_none() -> None:
    calls = OneLink()
    builder = FlowBuilder(calls, calls)
    builder.send(np.array([[0, 1]]), 1000.0)
    assert builder.sharing() is None
