"""Where a rank sits: its GPU, its host, and who else is there; found out before NCCL or gloo begin."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from commsim.errors import MeasurementError
from commsim.measure.conditions import host_digest, run_conditions
from commsim.measure.gpu import Gpus, gpus
from commsim.measure.rank_environment import (
    gloo_interface,
    library_environment,
    meaning,
    own_address,
    sharing,
    watchdog_environment,
)
from commsim.measure.rendezvous import Place, Rendezvous
from commsim.measure.run import Run


@dataclass(frozen=True)
class Seat:
    """What a rank works on; `gpu` is None on a CPU, and `index` the GPU's number in this process."""

    device: Any
    gpu: Gpus | None
    index: int
    hosts: tuple[str, ...]  # the digest of every rank's host


def take_seat(run: Run, place: Place, meeting: Rendezvous) -> Seat:
    """Chooses this rank's GPU, learns of the others, and sets what libraries read when they begin.

    Raises MeasurementError where there is no such GPU, more ranks share one than the run says, or the environment
    contradicts the scenario.
    """
    import torch

    os.environ.update(library_environment(run, os.environ))
    os.environ.update(watchdog_environment(run, os.environ))
    gpu = gpus() if run.backend == "nccl" else None
    index = 0 if gpu is None else gpu_index(gpu, run, place)
    if gpu is not None:
        gpu.use(index)
    mine = {"host": host_digest("" if gpu is None else gpu.host), "gpu": "", "address": own_address(place.address)}
    if gpu is not None:
        name = gpu.properties(index).uuid or f"{os.environ.get('CUDA_VISIBLE_DEVICES', '')} {index}"
        mine["gpu"] = f"{mine['host']} {name}"
    every = meeting.gather("seat", mine, run.timeout_s)
    if gpu is not None:
        check_shared_gpus([one["gpu"] for one in every], run.ranks_per_gpu)
    os.environ.update(gloo_interface(every, place.rank, os.environ))
    if gpu is not None:
        # NCCL reads its environment when the group is made.
        os.environ.update(sharing(run.ranks_per_gpu, place.rank, gpu.nccl_version() or (0, 0, 0), os.environ))
    device = torch.device("cpu") if gpu is None else gpu.torch_device(index)
    return Seat(device, gpu, index, tuple(one["host"] for one in every))


def gpu_index(gpu: Gpus, run: Run, place: Place) -> int:
    """The number of a rank's GPU among those that its process sees.

    A process that sees one alone was given it (srun --gpus-per-task=1, CUDA_VISIBLE_DEVICES): that one is its own.
    """
    if not gpu.available():
        import torch

        raise MeasurementError(f"backend nccl needs a CUDA GPU, and torch {torch.__version__} sees none")
    count, index = gpu.count(), place.local_rank // run.ranks_per_gpu
    if count == 1:
        return 0
    if index >= count:
        raise MeasurementError(
            f"local rank {place.local_rank} needs GPU {index}, but this process sees {count}; "
            "several ranks can share one with --ranks-per-gpu"
        )
    return index


def check_shared_gpus(of_ranks: list[str], ranks_per_gpu: int) -> None:
    """Raise a MeasurementError if more ranks than the run says sit on one GPU; NCCL would name no rank."""
    for one in dict.fromkeys(of_ranks):
        ranks = [rank for rank, other in enumerate(of_ranks) if other == one]
        if len(ranks) > ranks_per_gpu:
            named = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
            raise MeasurementError(
                f"ranks {named} have the same GPU, expected {ranks_per_gpu} on each; give every rank its own "
                "(srun --gpus-per-task=1, or all GPUs of the node visible), or share them with --ranks-per-gpu"
            )


def check_gpus_here(run: Run) -> None:
    """Raise a MeasurementError if this machine has fewer GPUs than the ranks that shall start on it."""
    if run.backend != "nccl":
        return
    gpu = gpus()
    count = gpu.count() if gpu.available() else 0
    if count * run.ranks_per_gpu < run.world_size:
        raise MeasurementError(
            f"found {count} GPU{'s' * (count != 1)} here, expected {-(-run.world_size // run.ranks_per_gpu)} for "
            f"{run.world_size} ranks; start fewer with --nproc, share GPUs with --ranks-per-gpu, or start the ranks of "
            "several machines with torchrun or srun (--emit-sbatch)"
        )


def differences(expects: dict[str, Any], machine: dict[str, Any], ranks: int) -> list[str]:
    """Where the machine is another one than the scenario predicts, each in a sentence."""
    notes = []
    if expects.get("ranks", ranks) != ranks:
        notes.append(f"the scenario has {expects['ranks']} ranks, measured are {ranks}")
    if "sm" in expects and machine.get("sm") not in (None, expects["sm"]):
        gpu = expects["gpu"] or f"of sm {expects['sm']}"
        notes.append(f"the scenario has GPUs {gpu}, found {machine.get('gpu')}")
    if "nccl" in expects and machine.get("nccl") not in (None, expects["nccl"]):
        notes.append(f"the scenario has NCCL {expects['nccl']}, found {machine.get('nccl')}")
    return notes


_MEASURES = {
    "torch": "torch.distributed's calls: the library's time with the launch from Python and c10d before it; medians "
    "over the calls of the slowest rank",
    "libnccl": "NCCL's calls, many in a row with one synchronisation, as nccl-tests; means over the calls and ranks",
}


def conditions_of(run: Run, seat: Seat, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """What ``run.json`` says of a run, from what every rank runs on."""
    machine = run_conditions(ranks)
    version = seat.gpu.nccl_version() if seat.gpu is not None else None
    asked = {
        "graph_launches": run.graph,
        "register": "" if run.register == "none" else run.register,
        "split": run.split,
        "library_env": run.env,
    }
    notes = {
        "differs": differences(run.expects, machine, run.world_size),
        "meaning": meaning(run.ranks_per_gpu, version or (0, 0, 0), os.environ),
    }
    return {
        **run.description(),
        "mode": run.mode,
        "measures": _MEASURES[run.runner],
        **{name: value for name, value in asked.items() if value},
        "ranks_per_gpu": run.ranks_per_gpu,
        **machine,
        **{name: value for name, value in notes.items() if value},
        **run.conditions,
    }
