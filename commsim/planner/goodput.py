"""What failures leave of a run: mean time between them, checkpoints, their best interval, goodput.

Interval and expected time are those of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", Future Generation Computer Systems 22 (2006), equations 20 and 37; the first order is Young's (1974).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from commsim.errors import CommsimError
from commsim.units import GIGA

if TYPE_CHECKING:
    from commsim.planner.question import Failures
    from commsim.topology.graph import Topology
    from commsim.training.spec import Step

HOUR_S = 3600.0

STORAGE_PER_NODE = GIGA
"""Bytes per second of storage for each node, where the question does not say: see `Failures`."""

INTERRUPTIONS = {"gpu": 268, "nic": 7, "network": 35, "host": 46, "software": 63}
"""Unexpected interruptions of the Llama 3 405B run by what failed: 419 in 54 days on 16,384 H100 GPUs in 2,048 nodes.

Llama Team, "The Llama 3 Herd of Models" (arXiv:2407.21783), table 5. gpu: GPU, HBM3, SRAM, system processor, thermal,
silent corruption; network: switch and cable; host: maintenance, SSD, power, chassis, board, CPU, memory; software:
bugs, watchdog timeouts, dependencies.
"""

_LLAMA_HOURS = 54 * 24.0
_LLAMA_GPUS, _LLAMA_NODES = 16_384, 2_048


@dataclass(frozen=True)
class Reliability:
    """Mean hours between failures of one GPU, one NIC (with cable and switch ports) and one host (with its software).

    The defaults are read off `INTERRUPTIONS`.
    """

    gpu_hours: float = _LLAMA_HOURS * _LLAMA_GPUS / INTERRUPTIONS["gpu"]
    nic_hours: float = _LLAMA_HOURS * _LLAMA_GPUS / (INTERRUPTIONS["nic"] + INTERRUPTIONS["network"])
    host_hours: float = _LLAMA_HOURS * _LLAMA_NODES / (INTERRUPTIONS["host"] + INTERRUPTIONS["software"])

    def mtbf_s(self, gpus: int, nics: int, hosts: int) -> float:
        """Seconds between failures of a job on all of them; failures are independent and any of them stops the job."""
        per_hour = gpus / self.gpu_hours + nics / self.nic_hours + hosts / self.host_hours
        return HOUR_S / per_hour if per_hour else math.inf


def checkpoint_seconds(nbytes: float, network_bytes_per_s: float, storage_bytes_per_s: float = math.inf) -> float:
    """Seconds to write a checkpoint: all nodes send their parts at once, over the network, into the storage."""
    rate = min(network_bytes_per_s, storage_bytes_per_s)
    if rate <= 0:
        raise CommsimError("found no way to the storage, expected NICs with a bandwidth")
    return nbytes / rate


def best_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """Seconds of work between checkpoints that lose least: Daly's higher order (equation 37)."""
    if math.isinf(mtbf_s):
        return math.inf
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    x = checkpoint_s / (2 * mtbf_s)
    return math.sqrt(2 * checkpoint_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9) - checkpoint_s


def goodput(interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float) -> float:
    """Share of wall-clock time that is work kept: Daly's complete model (equation 20), exponential failures.

    Restarts fail too, and work since the last checkpoint is lost.
    """
    if math.isinf(mtbf_s):
        return 1.0 if math.isinf(interval_s) else interval_s / (interval_s + checkpoint_s)
    exponent = (interval_s + checkpoint_s) / mtbf_s
    if exponent + restart_s / mtbf_s > 700:
        return 0.0
    wall = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(exponent)
    return interval_s / wall


@dataclass(frozen=True)
class Outlook:
    """A run with failures: seconds between them, of a checkpoint and between checkpoints, and the goodput.

    ``bound`` is what a checkpoint waits for, in words.
    """

    mtbf_s: float
    checkpoint_s: float
    interval_s: float
    goodput: float
    bound: str = ""


def outlook(
    reliability: Reliability,
    gpus: int,
    nics: int,
    hosts: int,
    checkpoint_s: float,
    restart_s: float,
) -> Outlook:
    """Goodput at the best checkpoint interval."""
    mtbf = reliability.mtbf_s(gpus, nics, hosts)
    interval = best_interval_s(checkpoint_s, mtbf)
    return Outlook(mtbf, checkpoint_s, interval, goodput(interval, checkpoint_s, restart_s, mtbf))


def outlook_of(failures: Failures, topology: Topology, step: Step) -> Outlook:
    """Goodput at the best checkpoint interval of a step on its machine.

    A checkpoint leaves through the cards of all nodes to a storage at the top of the network, which each half of the
    nodes reaches at the bisection bandwidth: oversubscribed uplinks and narrow PCIe links count.
    """
    known = {n: v for n in ("gpu_hours", "nic_hours", "host_hours") if (v := getattr(failures, n)) is not None}
    states = step.precision.weight_bytes + step.precision.optimizer_bytes(step.optimizer)
    network = topology.nodes * topology.nics_per_node * topology.nic_bandwidth
    if topology.nodes > 1:
        network = min(network, 2 * topology.bisection_bandwidth())
    storage = failures.storage_bandwidth or STORAGE_PER_NODE * topology.nodes
    seconds = checkpoint_seconds(step.model.parameters() * states, network, storage)
    nics = topology.nodes * topology.nics_per_node
    view = outlook(Reliability(**known), topology.world_size, nics, topology.nodes, seconds, failures.restart)
    return replace(view, bound="the network" if network < storage else "the storage")
