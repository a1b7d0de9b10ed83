"""The batch script that runs a measurement under SLURM; it is printed, never submitted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

_TEMPLATE = """#!/bin/bash
#SBATCH --job-name=commsim-measure
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={per_node}
{gpus}#SBATCH --exclusive
#SBATCH --time=01:00:00
#SBATCH --output=commsim-measure-%j.out

# Every task is one rank: commsim reads SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID, and these two.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))

srun --kill-on-bad-exit=1 {command}
"""


def sbatch(words: Sequence[str], *, world_size: int, ranks_per_node: int, gpus_per_node: int) -> str:
    """The script for `commsim measure` with these words; ``gpus_per_node`` 0 asks for none."""
    return _TEMPLATE.format(
        nodes=-(-world_size // ranks_per_node),
        per_node=min(ranks_per_node, world_size),
        gpus=f"#SBATCH --gpus-per-node={gpus_per_node}\n" if gpus_per_node else "",
        command=shlex.join(["commsim", "measure", *words]),
    )
