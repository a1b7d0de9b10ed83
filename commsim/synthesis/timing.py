"""Seconds of a laid-out schedule on a network's links: every row on its own way, links serve in the order of steps."""

from __future__ import annotations

import numpy as np

from commsim.engine.program import Program, pointers
from commsim.synthesis.in_steps import run_in_steps
from commsim.synthesis.laying import Laid
from commsim.synthesis.network import FlowNetwork


def program_of(laid: Laid, network: FlowNetwork) -> Program:
    """The Program of a schedule whose rows take ways over a network; parallel links are one of their joint rate."""
    ptr, idx = laid.schedule.dependencies()
    return Program(
        nbytes=laid.schedule.payload_bytes(),
        route=laid.way.astype(np.int32),
        delay_s=np.zeros(laid.schedule.rows),
        succ_ptr=ptr,
        succ_idx=idx,
        route_ptr=pointers([len(way) for way in laid.ways]),
        route_link=np.array([edge for way in laid.ways for edge in way], np.int32),
        link_bandwidth=np.asarray(network.capacity * float(network.unit), np.float64),
        link_latency=network.latency,
    )


def seconds_of(laid: Laid, network: FlowNetwork) -> float:
    """When the last row ends."""
    return float(run_in_steps(program_of(laid, network))[1].max(initial=0.0))
