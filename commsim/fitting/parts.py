"""Where a time that NCCL's model predicts goes: so much to each kind of physical cost.

A predicted time is made of times and of bytes over rates by sums and maxima, so that it doubles if all of them double:
what it grows by when one kind of cost grows by a little, over that little, is the part of the time that this kind
takes, and the parts add up to the whole. What hides behind something longer takes no part.
"""

from __future__ import annotations

from copy import copy
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from commsim.fitting.fields import replaced, walk

if TYPE_CHECKING:
    from commsim.nccl.parameters import Parameters
    from commsim.nccl.predict import Predictor

_STEP = 1e-2
"""Relative step of the differences, to both sides: where two ways take equally long, either has half a part."""

_OFF = 0.05
"""Share of the time by which the parts may miss it."""

_BELOW = 0.01
"""Share of it by which one of them may be below nothing."""

_KINDS = {
    "launch by the host": ("launch.*",),
    "start and end of the kernel": ("base.*", "point_to_point.base", "channel_cost*"),
    "hops inside a node": ("ring_hop.*", "tree_hop.*"),
    "rounds through the NVSwitch": ("nvls.*",),
    "bytes through thread blocks": ("block_rate.*", "*keep_rate", "staging_rate", "flag_rate", "copy_rate"),
    "fences and barriers of thread blocks": ("first_pass", "drain", "pause.*"),
    "bytes over links of a node": ("efficiency.[!l]*", "point_to_point.channel_rate"),
    "hops between nodes": ("network.ring_hop.*", "network.tree_hop.*", "network.rendezvous", "network.fetch"),
    "messages between nodes": ("network.*_cost*",),
    "waits for the slowest between nodes": ("network.ordering", "network.spread"),
    "bytes between nodes": (
        "network.efficiency", "network.all_to_all_efficiency", "network.channel_rate", "network.copy_rate",
    ),
}  # fmt: skip
"""Kinds of cost by the parameters that hold them. Left out are shares that only lengthen a part that is there already:
`pass_share`, `efficiency.lines`, `network.through_host_efficiency`."""


def time_parts(model: Predictor, collective: str, nbytes: int) -> dict[str, float]:
    """Seconds of each kind of cost of a call, the largest first; they add up to the predicted time.

    Empty where they do not, or one is below nothing: in some trees, and rings of LL128 over nodes, a little more time
    puts messages in another order.
    """
    model = copy(model)
    parameters = model.parameters
    whole = model.predict(collective, nbytes).time_s

    def seconds(paths: tuple[str, ...], factor: float) -> float:
        model.parameters = replaced(parameters, _scaled(parameters, paths, factor))
        return float(model.predict(collective, nbytes).time_s)

    parts = {
        kind: (seconds(paths, 1 + _STEP) - seconds(paths, 1 - _STEP)) / (2 * _STEP) for kind, paths in _KINDS.items()
    }
    if abs(sum(parts.values()) - whole) > _OFF * whole or min(parts.values()) < -_BELOW * whole:
        return {}
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def _scaled(parameters: Parameters, paths: tuple[str, ...], factor: float) -> dict[str, float]:
    """The parameters of some paths with which what they stand for takes so many times as long."""
    return {
        path: value * factor if is_time else value / factor
        for path, value, is_time in walk(parameters)
        if any(fnmatchcase(path, pattern) for pattern in paths)
    }
