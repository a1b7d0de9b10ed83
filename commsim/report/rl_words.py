"""What bounds a step of reinforcement learning, in sentences and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commsim.report.rl_plots import MEANING
from commsim.units import format_time

if TYPE_CHECKING:
    from commsim.scenario.rl_result import RlItem

_LONG_TAIL = 0.3
"""Share of the rollout from which on its last tenth of answers is worth a word."""


def rl_words(item: RlItem) -> list[str]:
    """The longest part, what waits for what, and the tail."""
    shares = _shares(item)
    first, *rest = sorted((name for name in shares if shares[name] > 5e-3), key=lambda name: -shares[name])
    others = "".join(f", {100 * shares[name]:.0f} % {name}" for name in rest)
    lines = [
        f"{item.name}: {format_time(item.step_s)} a step, bound by the {first} ({MEANING[first]}): "
        f"{100 * shares[first]:.0f} % of it{others}."
    ]
    rollout = item.step.seconds("rollout")
    if item.step.behind:
        spare = item.step_s - rollout
        waits = "engines wait" if shares.get("rollout", 0.0) == 0.0 else "the trainer waits"
        if waits == "engines wait":
            lines.append(f"Engines are ready {format_time(spare)} before the trainer: fewer GPUs would do for them.")
        else:
            lines.append("The trainer waits for the rollout: more of the GPUs should generate.")
    if rollout and item.tail_s > _LONG_TAIL * rollout:
        part = 100 * item.tail_s / rollout
        lines.append(f"{part:.0f} % of the rollout are for the last tenth of the answers.")
    return lines


def rl_bound(item: RlItem) -> dict[str, Any]:
    """The longest part and the shares of all."""
    shares = _shares(item)
    return {"bound_by": max(shares, key=lambda name: shares[name]), "shares": shares}


def _shares(item: RlItem) -> dict[str, float]:
    """Of the step by stage: what it is longer for it."""
    shares: dict[str, float] = {}
    shown = item.step.shown()
    for phase in item.step.phases:
        shares[phase.stage] = shares.get(phase.stage, 0.0) + shown[phase.name] / item.step_s
    return shares
