"""Tests as commands of nccl-tests, one by one or as the script of a round."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from commsim.doctor.cluster import HostCluster
from commsim.doctor.forward import RING
from commsim.doctor.group_test import GroupTest
from commsim.measure.nccl_tests import PROGRAMS

Launcher = Literal["mpirun", "slurm"]


@dataclass(frozen=True)
class Command:
    """What runs a test: its words, and the lines of the file of hosts that they name, a line for each rank."""

    words: tuple[str, ...]
    hosts: tuple[str, ...]


def environment(test: GroupTest) -> dict[str, str]:
    """Variables of NCCL and nccl-tests that every rank of a test needs."""
    return (RING if test.collective == "all_reduce" else {}) | ({"NCCL_TESTS_SPLIT": test.split} if test.split else {})


def command(test: GroupTest, cluster: HostCluster, launcher: Launcher, hostfile: str) -> Command:
    """The command of a test; a rank for each GPU, the time of the slowest rank in its table (``-a 3``)."""
    ranks = len(test.hosts) * len(test.gpus)
    program = [PROGRAMS[test.collective], "-b", str(test.nbytes), "-e", str(test.nbytes), "-g", "1", "-n", "20"]
    program += ["-w", "5", "-a", "3", "-c", "0"]
    env = environment(test)
    lists = [",".join(map(str, test.gpus_of(place, cluster.gpus))) for place in (0, 1)]
    if test.shift:  # the second host shows other GPUs
        first = len(test.gpus)
        chosen = f'[ "${{SLURM_PROCID:-$OMPI_COMM_WORLD_RANK}}" -lt {first} ] && g={lists[0]} || g={lists[1]}'
        program = ["sh", "-c", f"{chosen}; CUDA_VISIBLE_DEVICES=$g exec {shlex.join(program)}"]
    elif test.gpus != tuple(range(cluster.gpus)):
        env = env | {"CUDA_VISIBLE_DEVICES": lists[0]}
    hosts = tuple(cluster.hosts[host] for host in test.hosts for _ in test.gpus)
    if launcher == "slurm":
        words = ["env", f"SLURM_HOSTFILE={hostfile}", *(f"{k}={v}" for k, v in env.items())]
        words += ["srun", "--distribution=arbitrary", f"--nodes={len(test.hosts)}", f"--ntasks={ranks}", *program]
        return Command(tuple(words), hosts)
    words = ["mpirun", "-np", str(ranks), "--hostfile", hostfile, "--map-by", "seq", "--bind-to", "none"]
    for name, value in env.items():
        words += ["-x", f"{name}={value}"]
    return Command((*words, *program), hosts)


def mark(test: GroupTest, cluster: HostCluster) -> str:
    """The line before a run by which its log is read back: hosts, GPUs and scope."""
    words: dict[str, object] = {"hosts": [cluster.hosts[host] for host in test.hosts], "scope": test.scope}
    words |= {"gpus": list(test.gpus), "collective": test.collective} | ({"shift": test.shift} if test.shift else {})
    return f"# commsim doctor: {json.dumps(words)}"


def round_files(tests: Sequence[GroupTest], cluster: HostCluster, launcher: Launcher, number: int) -> dict[str, str]:
    """The files of a round by name: its script, and the hosts of each test. Each test leaves a log beside them."""
    files: dict[str, str] = {}
    lines = ["#!/bin/bash"]
    if launcher == "slurm":
        used = [cluster.hosts[host] for host in sorted({host for test in tests for host in test.hosts})]
        lines += [f"#SBATCH --job-name=commsim-doctor-{number}", f"#SBATCH --nodelist={','.join(used)}"]
        lines += [f"#SBATCH --nodes={len(used)}", f"#SBATCH --gpus-per-node={cluster.gpus}", "#SBATCH --exclusive"]
        lines += ["#SBATCH --time=00:30:00"]
    lines += ["# Submit it in the folder where it lies: it names files there."] if launcher == "slurm" else []
    lines += ['cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")}" || exit 1']
    apart = sum(len(test.hosts) for test in tests) == len({host for test in tests for host in test.hosts})
    for i, test in enumerate(tests, 1):
        stem = f"round-{number}-test-{i}"
        made = command(test, cluster, launcher, f"{stem}.hosts")
        files[f"{stem}.hosts"] = "".join(f"{host}\n" for host in made.hosts)
        run = f"{{ echo {shlex.quote(mark(test, cluster))}; {shlex.join(made.words)}; }} > {stem}.log 2>&1"
        lines.append(f"{run} &" if apart and len(tests) > 1 else run)
    lines += ["wait"] if apart and len(tests) > 1 else []
    return {f"round-{number}.{'sbatch' if launcher == 'slurm' else 'sh'}": "\n".join(lines) + "\n"} | files
