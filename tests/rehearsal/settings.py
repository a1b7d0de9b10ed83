"""What machine is rehearsed, and what goes wrong on it; handed to the processes of the ranks as one variable."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

VARIABLE = "COMMSIM_REHEARSAL"


@dataclass(frozen=True)
class Failure:
    """Something that goes wrong with a call of at least `nbytes` of `collective` (empty: any) on rank `rank`.

    `kind`: ``wrong`` data, ``hang``, ``async`` (NCCL's remote error), ``kill`` (SIGKILL), ``refuse`` (an error of the
    call itself), ``throttle`` (NVML tells of heat from then on).
    """

    kind: str
    rank: int = 1
    collective: str = ""
    nbytes: int = 0


@dataclass(frozen=True)
class Settings:
    """A cluster of equal nodes; ranks lie on nodes in order, `ranks_per_node` on each.

    What a call takes says `rehearsal.law`; a channel carries at most `net_bandwidth` (bytes/s) from node to node. Every
    launch takes the CPU `launch_s`.
    """

    folder: str
    gpus: int = 8
    ranks_per_node: int = 8
    name: str = "NVIDIA H100 80GB HBM3"
    sm: int = 90
    memory_bytes: int = 80 << 30
    version: int = 22809
    net_bandwidth: float = 45e9
    launch_s: float = 4e-6
    nics: int = 8
    nvml: bool = True
    nvlink: bool = True
    oom_above: int = 0
    symmetric: bool = True
    failures: tuple[Failure, ...] = ()

    @property
    def rank(self) -> int:
        """The rank of this process, as torchrun, srun and the launcher tell it."""
        return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))

    @property
    def node(self) -> int:
        """The node on which this process runs."""
        return self.node_of(self.rank)

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self.ranks_per_node

    @property
    def gpus_of_node(self) -> int:
        """GPUs of a node that have a rank."""
        return min(self.gpus, self.ranks_per_node)

    @property
    def node_folder(self) -> Path:
        """What belongs to this node alone."""
        return Path(self.folder) / f"node{self.node}"

    def visible(self) -> list[int]:
        """The GPUs of the node that CUDA_VISIBLE_DEVICES leaves to this process."""
        named = os.environ.get("CUDA_VISIBLE_DEVICES")
        if named is None:
            return list(range(self.gpus))
        parts = [part.strip().removeprefix("GPU-rehearsal-") for part in named.split(",")]
        return [int(part) for part in parts if part.isdigit() and int(part) < self.gpus]


def environment(settings: Settings) -> dict[str, str]:
    """The variables with which a process works on the rehearsed machine."""
    said = dataclasses.asdict(settings)
    tests = str(Path(__file__).parents[1])
    return {
        VARIABLE: json.dumps(said),
        "COMMSIM_GPU_LAYER": "rehearsal.layer:Rehearsal",
        "PYTHONPATH": os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH", "")])),
    }


@cache
def settings() -> Settings:
    """The machine that this process works on."""
    said = json.loads(os.environ[VARIABLE])
    failures = tuple(Failure(**failure) for failure in said.pop("failures"))
    return Settings(failures=failures, **said)
