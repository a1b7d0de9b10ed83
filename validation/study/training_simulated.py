"""Published training steps simulated as `commsim run` simulates them, each on the machine of its GPUs.

A machine is the preset of the row's GPUs with the row's network; what no column says (the switches, the release of
NCCL) is a machine that is not oversubscribed and a release of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsim.nccl.predict import Options
from commsim.processes import Pool
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec
from commsim.training.compute import Values
from commsim.training.nccl_groups import NcclGroups
from commsim.training.spec import Step, StepPlan
from commsim.training.step_run import step_program
from commsim.training.work import compute_time, optimizer_time

Float64 = npt.NDArray[np.float64]

PRESETS = {
    "V100": "dgx-1v-edr100", "A100": "dgx-a100-hdr200", "A800": "dgx-a100-hdr200", "H100": "hgx-h100-ndr400",
    "H800": "h800-ndr400", "H200": "hgx-h200-ndr400", "B200": "hgx-b200-ndr400", "B300": "hgx-b300-xdr800",
    "GB200": "gb200-nvl72-ndr", "GB300": "gb300-nvl72",
}  # fmt: skip
"""By the accelerator's name up to its first dash."""

LARGE = {("V100", 4): "v100-sxm2-4", ("V100", 16): "dgx-2-edr100"}
"""Where nodes have another number of GPUs than the preset's."""

RELEASES = {"B200": (2, 25, 1), "B300": (2, 27, 5), "GB200": (2, 25, 1), "GB300": (2, 27, 5)}
"""Of NCCL, by accelerator: the first that names the GPU."""

RELEASE = (2, 21, 5)
"""Of NCCL for all others: most rows are of 2021 to 2025 and name none."""

PER_TASK = 8
"""Steps that a process simulates at once: those of a machine follow one another, so that it is searched once."""


class Machine(NamedTuple):
    """Nodes of a preset with so many GPUs, each with its NIC, and how NCCL runs on them."""

    preset: str
    nodes: int
    gpus_per_node: int
    nic_bytes_per_s: float
    release: tuple[int, int, int]
    chunk: int = 0  # of sends between nodes, 0: NCCL's own


def machine_of(step: Step, chunk: int = 0) -> Machine | None:
    """The machine of a step; None where there is no preset, or the ranks do not fill its nodes."""
    chip, ranks = step.accelerator.name.split("-")[0], step.world_size
    preset = LARGE.get((chip, step.gpus_per_node), PRESETS.get(chip))
    if preset is None:
        return None
    domain, release = step.nvlink_domain, RELEASES.get(chip, RELEASE)
    if ranks <= domain:
        return Machine(preset, 1, ranks, float(step.nic_bytes_per_s), release, chunk)
    # Of a rack a job takes as many GPUs as make its racks alike.
    each = (
        domain if domain == step.gpus_per_node else next(n for n in (72, 64, 48, 36, 32, 16, 8, 4, 1) if ranks % n == 0)
    )
    return None if ranks % each else Machine(preset, ranks // each, each, float(step.nic_bytes_per_s), release, chunk)


@lru_cache(maxsize=8)
def _calls(machine: Machine) -> NcclGroups:
    spec: dict[str, object] = {"preset": machine.preset, "nodes": machine.nodes, "gpus_per_node": machine.gpus_per_node}
    if machine.nodes > 1:
        spec |= {"nics_per_node": machine.gpus_per_node, "nic_bandwidth": f"{machine.nic_bytes_per_s:g} B/s"}
    topology = load_topology(TopologySpec.model_validate(spec), Path())
    env = {"NCCL_P2P_NET_CHUNKSIZE": f"{machine.chunk}"} if machine.chunk else {}
    return NcclGroups(topology, Options(version=machine.release, mode="single", env=env))


class _Task(NamedTuple):
    machine: Machine
    steps: Sequence[tuple[Step, Values]]


def _simulate(task: _Task) -> list[float]:
    calls = _calls(task.machine)
    return [
        step_program(
            step,
            compute_time(step, values),
            calls,
            optimizer_s=optimizer_time(step, values),
            calls=calls,
            plan=StepPlan(values=values),
        ).run().step_s
        for step, values in task.steps
    ]  # fmt: skip


Progress = Callable[[Iterable[list[float]], str, int], Iterable[list[float]]]


def simulated(
    steps: Sequence[Step],
    values: Sequence[Values],
    workers: int = 1,
    progress: Progress | None = None,
    chunks: Sequence[int] | None = None,
) -> Float64:
    """Seconds of each step with its own parameters; NaN where `machine_of` knows none. Alike ones are run once.

    ``chunks``: of NCCL's sends between nodes, one for each step.
    """
    known: dict[tuple[Machine, Step, int], list[int]] = {}
    for i, (step, own, chunk) in enumerate(zip(steps, values, chunks or [0] * len(steps), strict=True)):
        machine = machine_of(step, chunk)
        if machine is not None:
            known.setdefault((machine, step, id(own)), []).append(i)
    order = sorted(known, key=lambda one: one[0])
    tasks, rows = [], []
    for first in range(0, len(order), PER_TASK):
        of_machine: dict[Machine, list[tuple[Machine, Step, int]]] = {}
        for one in order[first : first + PER_TASK]:
            of_machine.setdefault(one[0], []).append(one)
        for machine, some in of_machine.items():
            tasks.append(_Task(machine, [(one[1], dict(values[known[one][0]])) for one in some]))
            rows.append([known[one] for one in some])
    out = np.full(len(steps), np.nan)
    with Pool(workers) as pool:
        results: Iterable[list[float]] = pool.map(_simulate, tasks)
        if progress is not None:
            results = progress(results, "simulating", len(tasks))
        for alike, seconds in zip(rows, results, strict=True):
            for index, time in zip(alike, seconds, strict=True):
                out[index] = time
    return out
