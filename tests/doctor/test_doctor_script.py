"""Commands and scripts of tests: words, hosts, shells."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from commsim.doctor.choice import first_round
from commsim.doctor.cluster import HostCluster
from commsim.doctor.group_test import GroupTest
from commsim.doctor.reading import read_findings
from commsim.doctor.runner import template
from commsim.doctor.script import Launcher, command, round_files
from commsim.errors import CommsimError, MeasurementError

CLUSTER = HostCluster(("n1", "n2", "n3", "n4"), 8, 8)
PART = GroupTest("across", (2, 0), (1, 3), 1 << 30)


def test_a_command_has_a_rank_for_each_gpu_and_the_rings_of_the_test() -> None:
    made = command(PART, CLUSTER, "mpirun", "HOSTS")
    assert made.hosts == ("n3", "n3", "n1", "n1")
    words = list(made.words)
    assert words[words.index("-np") + 1] == "4"
    assert {"NCCL_TESTS_SPLIT=MOD 2", "CUDA_VISIBLE_DEVICES=1,3", "NCCL_ALGO=Ring"} <= set(words)
    assert words[words.index("-a") + 1] == "3"
    inside = command(GroupTest("inside", (0, 1), tuple(range(8)), 1 << 30), CLUSTER, "slurm", "HOSTS").words
    assert {"NCCL_TESTS_SPLIT=DIV 8", "SLURM_HOSTFILE=HOSTS", "--ntasks=16"} <= set(inside)
    assert not any(word.startswith("CUDA_VISIBLE_DEVICES") for word in inside)


@pytest.mark.parametrize(("rank", "gpus"), [("0", "1,3"), ("1", "1,3"), ("2", "7,1"), ("3", "7,1")])
@pytest.mark.parametrize("variable", ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK"])
def test_the_second_of_two_hosts_may_show_other_gpus(rank: str, gpus: str, variable: str) -> None:
    words = command(GroupTest("across", (0, 1), (1, 3), 1 << 30, shift=6), CLUSTER, "mpirun", "H").words
    shell = words[words.index("-c") + 1].replace("all_reduce_perf", "printenv CUDA_VISIBLE_DEVICES #")
    done = subprocess.run(
        ["sh", "-c", shell], env={variable: rank, "PATH": "/usr/bin:/bin"}, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == gpus


@pytest.mark.parametrize("launcher", ["mpirun", "slurm"])
def test_a_script_runs_its_tests_and_leaves_logs_that_are_read(tmp_path: Path, launcher: Launcher) -> None:
    """With a launcher that prints the table of a run."""
    files = round_files(first_round(CLUSTER), CLUSTER, launcher, 1)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    stand_in = tmp_path / ("srun" if launcher == "slurm" else "mpirun")
    stand_in.write_text(
        "#!/bin/sh\necho '# nThread 1 nGpus 1 minBytes 1 maxBytes 1 step: 2(factor)'\n"
        "echo '#       size         count      type   redop    root     time   algbw   busbw #wrong'\n"
        "echo '  1073741824 268435456 float sum -1 40000 26.84 50.33 N/A'\n"
    )
    stand_in.chmod(0o755)
    script = next(name for name in files if name.endswith((".sh", ".sbatch")))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_SUBMIT_DIR": str(tmp_path)}
    subprocess.run(["bash", str(tmp_path / script)], env=env, check=True, cwd="/")
    results = read_findings(sorted(tmp_path.glob("*.log"))).results
    assert [spec.scope for *_, spec in results] == ["across", "inside"]
    assert all(spec.time == pytest.approx(0.04) and len(spec.hosts) == 4 for *_, spec in results)


def test_tests_on_disjoint_hosts_run_side_by_side() -> None:
    two = [GroupTest("across", (0, 1), tuple(range(8)), 1 << 30), GroupTest("across", (2, 3), tuple(range(8)), 1 << 30)]
    text = next(iter(round_files(two, CLUSTER, "slurm", 3).values()))
    assert text.count(" &\n") == 2
    assert text.endswith("wait\n")
    assert "#SBATCH --nodelist=n1,n2,n3,n4\n" in text


def test_a_template_is_filled_word_by_word(tmp_path: Path) -> None:
    run = template("env {env} run --on={hosts} -n {ranks} 'a b {per_host}'", CLUSTER, 10)
    assert run._filled(PART, ["n3", "n1"], "x") == [
        "env", "NCCL_ALGO=Ring", "NCCL_PROTO=Simple", "NCCL_TESTS_SPLIT=MOD 2", "run", "--on=n3,n1", "-n", "4", "a b 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run {ranks}", "neither {hosts} nor {hostfile}"),
        ("run {hosts} {x}", "found {x}, expected some of"),
        ("run '{hosts}", "cannot be split into words"),
    ],
)
def test_a_template_without_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(CommsimError, match=message):
        template(text, CLUSTER, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo {hosts}", "ended with status 0 and no table of nccl-tests: n3,n1"),
        ("no-such-program {hosts}", "No such file"),
        ("sleep 9 {hosts}", "did not end within 0.2 s|ended with status"),
    ],
)
def test_a_command_that_fails_is_named(text: str, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        template(text, CLUSTER, 0.2)([PART])
