"""The time of a call's kernel: its fullest channel in closed form, over all ranks in steps, or on the engine."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from commsim.collectives.semantics import CHAINED
from commsim.errors import ScenarioError
from commsim.nccl import timing
from commsim.nccl.channels import Call
from commsim.nccl.environment import ALGORITHM_NAMES
from commsim.nccl.lower import lower_ring
from commsim.nccl.nodes import Nodes

if TYPE_CHECKING:
    from commsim.nccl.tree import TreeTimer

_CLOSED = {
    "nvls": "nvls",
    "nvls_tree": "nvls",
    "pat": "pat",
    "collnet_direct": "collnet",
    "collnet_chain": "collnet",
}
"""Algorithms with a closed form of their own: X_time of `commsim.nccl.X`, imported when it is asked for."""


class BusyTime(NamedTuple):
    """Seconds of a kernel, those of them in which its busiest part is busy, that part, and the engine level."""

    seconds: float
    busy: float
    limit: str
    level: str = "closed_form"


def kernel_time(
    nodes: Nodes, call: Call, engine: str, in_a_row: float | None, one_process: bool, tree: Callable[[], TreeTimer]
) -> BusyTime:
    """The time of a call on some nodes; ScenarioError where the engine cannot time it.

    ``in_a_row``: calls that are timed together, None where one is waited for; ``tree``: gives what times trees.
    """
    closed = _CLOSED.get(call.algorithm)
    if call.algorithm == "nvls" and nodes.system.nodes > 1:
        closed = "collnet"  # of several nodes it reduces in the network
    if closed is not None or call.collective in CHAINED:
        if engine not in ("auto", "closed_form"):
            raise ScenarioError(
                f"engine {engine} cannot time {call.collective} by {ALGORITHM_NAMES[call.algorithm]}; "
                "expected auto or closed_form"
            )
        if closed is None:
            from commsim.nccl.chain import shown_time

            return BusyTime(*shown_time(nodes, call, in_a_row, one_process=one_process))
        timed = getattr(import_module(f"commsim.nccl.{closed}"), f"{closed}_time")
        rate = (nodes.tree_rate(call.split.channels),) if call.algorithm == "nvls_tree" else ()
        far = nodes.at_farthest(call.split.channels).kinds
        return BusyTime(*max(timed(nodes.system, nodes.weakest, kind.parameters, call, *rate) for kind in far))
    if call.algorithm == "tree":
        if engine in ("closed_form", "wavefront"):
            raise ScenarioError(f"engine {engine} cannot time NCCL's tree; expected auto or event")
        return BusyTime(*tree().time(nodes.at_farthest(call.split.channels), call))
    plan = lower_ring(nodes, call)
    if engine == "event":
        from commsim.nccl.ring_event import time_ring

        return BusyTime(*time_ring(plan), plan.limit, "event")
    uniform = timing.is_uniform(plan)
    if engine == "closed_form" and not uniform:
        raise ScenarioError(
            "engine closed_form needs a ring whose hops are all alike (one node); expected auto, wavefront or event"
        )
    if uniform and engine != "wavefront":
        return BusyTime(*timing.ring_closed_form(plan), plan.limit)
    return BusyTime(*timing.ring_wavefront(plan), plan.limit, "wavefront")
