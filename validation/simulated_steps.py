"""Simulates published training steps over several nodes, and says how far off they come out.

``python validation/simulated_steps.py [--every N] [--json FILE] [--against FILE]``: every N-th row; the seconds of each
to a file; the change of each against such a file of another version. Rows are those of `commsim validate training`,
which has a closed form in place of the simulation. Their machines are the presets of their GPUs with the row's network.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import numpy as np

from commsim.errors import CommsimError
from commsim.nccl.predict import Options
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec
from commsim.training.nccl_groups import NcclGroups
from commsim.training.parameters import shipped_values
from commsim.training.spec import Step, StepPlan
from commsim.training.step_run import step_program
from commsim.training.work import compute_time, optimizer_time
from study.training import training_steps
from study.training_rows import apart, read_published

PRESETS = {
    "A100": "dgx-a100-hdr200", "H100": "hgx-h100-ndr400", "H200": "hgx-h100-ndr400", "H800": "hgx-h100-ndr400",
    "B200": "hgx-b200-ndr400", "B300": "hgx-b200-ndr400",
}  # fmt: skip
"""By the first letters of the accelerator. Nodes of four, NVL72 and V100 have none: their NICs are in no column."""

VERSION = (2, 21, 5)
"""Of NCCL: most rows are of 2021 to 2025 and name none."""


@lru_cache(maxsize=64)
def _calls(preset: str, nodes: int, nics: int, rate: float) -> NcclGroups:
    said = {"preset": preset, "nodes": nodes, "nics_per_node": nics, "nic_bandwidth": f"{rate:g} B/s"}
    machine = load_topology(TopologySpec.model_validate(said), Path())
    return NcclGroups(machine, Options(version=VERSION, mode="single"))


def simulated(step: Step) -> float | None:
    """Seconds of a step on the machine of its GPUs; None where it stays in one node, or that machine is not known."""
    preset, each = PRESETS.get(step.accelerator.name[:4]), step.gpus_per_node
    if preset is None or step.world_size <= each or step.world_size % each:
        return None
    values = shipped_values()
    calls = _calls(preset, step.world_size // each, each, float(step.nic_bytes_per_s))
    program = step_program(
        step,
        compute_time(step, values),
        calls,
        optimizer_s=optimizer_time(step, values),
        calls=calls,
        plan=StepPlan(values=values),
    )
    return program.run().step_s


def main() -> None:
    """Simulates, prints."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--every", type=int, default=1, help="of the rows each so many")
    asked.add_argument("--json", type=Path, help="file for the seconds of every row")
    asked.add_argument("--against", type=Path, help="such a file, of another version")
    options = asked.parse_args()
    seconds, errors = dict[str, float](), defaultdict[str, list[float]](list)
    rows = [row for row in read_published(training_steps()) if row.step is not None and not apart(row)]
    for row in rows[:: options.every]:
        assert row.step is not None
        try:
            got = simulated(row.step)
        except CommsimError as error:
            print(f"{row.id}: {error}")
            continue
        if got is not None and row.measured_s:
            seconds[row.id] = got
            errors[row.source.name].append(abs(got / row.measured_s - 1))
    if options.json is not None:
        options.json.write_text(json.dumps(seconds, indent=1) + "\n")
    every = np.concatenate(list(errors.values()))
    for name, some in sorted(errors.items()):
        print(f"{name:16} {len(some):5} rows  median error {100 * np.median(some):5.1f} %")
    medians = [float(np.median(some)) for some in errors.values()]
    print(
        f"{every.size} rows: mean error {100 * every.mean():.2f} %, median {100 * np.median(every):.2f} %, "
        f"median over sources {100 * np.median(medians):.2f} %"
    )
    if options.against is not None:
        before = json.loads(options.against.read_text())
        change = 100 * np.array([abs(seconds[row] / before[row] - 1) for row in seconds if row in before])
        print(
            f"change of {change.size} rows: median {np.median(change):.3f} %, 95th percentile "
            f"{np.percentile(change, 95):.2f} %, most {change.max():.1f} %"
        )


if __name__ == "__main__":
    main()
