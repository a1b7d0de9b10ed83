"""The physical parameters of the channel model, one file per GPU generation under ``generations/``.

Each says what one thing costs: launching a kernel, starting it, one more channel, handing data to the next rank, and
how fast a thread block or a link moves bytes. `validation/fit_parameters.py` fits the ones that measured curves
determine and keeps the rest at their starting values; every file names the curves and the starting values.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from commsim.document import read_documents, validate
from commsim.errors import TopologyError
from commsim.fields import Bandwidth, Seconds

GENERATIONS = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")

_FOLDER = Path(__file__).parent / "generations"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PerProtocol(_Frozen):
    """One time per protocol."""

    LL: Seconds
    LL128: Seconds
    Simple: Seconds

    def of(self, protocol: str) -> float:
        """The time in seconds for a protocol name."""
        return float(getattr(self, protocol))


class Rates(_Frozen):
    """Payload bytes per second that one thread block moves, per protocol."""

    LL: Bandwidth
    LL128: Bandwidth
    Simple: Bandwidth

    def of(self, protocol: str) -> float:
        """The rate in bytes per second for a protocol name."""
        return float(getattr(self, protocol))


class Hops(_Frozen):
    """Time from "slice sent" to "receiver may use it" beyond the slice's own transmission, per kind of path."""

    nvlink: PerProtocol
    pcie: PerProtocol
    network: PerProtocol


class Efficiency(_Frozen):
    """Share of a link's nominal rate that payload plus protocol flags reach (packet headers, flow control)."""

    nvlink_direct: float
    nvlink_switch: float
    pcie: float
    network: float


class Launch(_Frozen):
    """Time the host needs per call, hidden behind the previous kernel in back-to-back runs."""

    one_process: Seconds  # for each GPU that the process drives
    process_per_gpu: Seconds


class Parameters(_Frozen):
    """All parameters of one GPU generation."""

    generation: str
    provenance: str
    launch: Launch
    base: PerProtocol  # kernel start and end
    channel_cost: Seconds  # each further channel
    channel_cost_before_2_22: Seconds  # the same while every channel had a work element of its own to enqueue
    block_rate: Rates
    first_pass: Seconds  # Simple: fencing a full pass of the thread block instead of a few stores
    ring_hop: Hops
    tree_hop: Hops
    message_cost: Seconds  # each further channel's message at a network hop
    efficiency: Efficiency

    def channel_cost_of(self, version: tuple[int, int, int]) -> float:
        """Seconds for each channel after the first, for an NCCL version."""
        return float(self.channel_cost if version >= (2, 22, 0) else self.channel_cost_before_2_22)


@lru_cache(maxsize=16)
def load_parameters(generation: str) -> Parameters:
    """The shipped parameters of a GPU generation (`GENERATIONS`)."""
    if generation not in GENERATIONS:
        raise TopologyError(f"found the GPU generation {generation!r}, expected one of {', '.join(GENERATIONS)}")
    document = read_documents(_FOLDER / f"{generation}.yaml", error=TopologyError)[0]
    return validate(Parameters, document, error=TopologyError)
