"""What communication beside compute adds to a pass: one rule, of the simulated step and of the closed form.

The values it takes are those of `commsim.training.parameters`: of every axis the least share that stays in the open
(``exposed_tp`` and so on), and how much slower compute is beside communication (``slowdown``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from commsim.training.columns import Number

IDEAL: Mapping[str, float] = MappingProxyType(
    dict.fromkeys(("exposed_tp", "exposed_ep", "exposed_cp", "exposed_pp", "exposed_dp", "alpha_z", "alpha_rank"), 0.0)
    | {"slowdown": 1.0, "constant": 0.0, "scale": 1.0}
)
"""Values of software that hides all that there is room for, and takes nothing for it."""


def added(traffic: Number, window: Number, least: Number, slowdown: Number) -> Number:
    """Seconds by which compute of `window` seconds is longer with so many seconds of traffic beside it.

    What does not fit in the window stands in the open, and the share `least` of the traffic in any case: the first
    piece has nothing to hide behind. Compute beside the rest is `slowdown` times as long, since the kernels of
    communication hold SMs and memory bandwidth. Never more than the traffic.
    """
    exposed = np.maximum(least * traffic, traffic - window)
    return exposed + (traffic - exposed) * (1.0 - 1.0 / slowdown)
