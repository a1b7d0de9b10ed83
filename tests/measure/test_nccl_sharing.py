"""The variables of NCCL ranks that share a GPU, and the batch script; no GPU is needed."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import MeasurementError
from commsim.measure.rank_environment import meaning, sharing
from commsim.measure.run import Run, check_run
from commsim.measure.sbatch import sbatch
from commsim.measure.tasks import Task


def test_one_rank_per_gpu_needs_nothing() -> None:
    assert sharing(1, 0, (2, 28, 9), {}) == {}
    assert meaning(1, (2, 28, 9), {}) == ""


def test_before_2_30_3_every_rank_is_a_host() -> None:
    hosts = [sharing(2, rank, (2, 30, 2), {}) for rank in range(2)]
    assert hosts[0]["NCCL_HOSTID"] != hosts[1]["NCCL_HOSTID"]
    assert {name: hosts[0][name] for name in ("NCCL_NET", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")} == {
        "NCCL_NET": "Socket",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
    }
    assert "sockets through the host" in meaning(2, (2, 30, 2), {})


def test_from_2_30_3_it_is_allowed() -> None:
    assert sharing(4, 1, (2, 30, 3), {}) == {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "2"}
    assert "NCCL_HOSTID" in sharing(4, 1, (2, 31, 0), {"NCCL_MULTI_RANK_GPU_ENABLE": "0"})
    assert "copies within it" in meaning(4, (2, 30, 3), {})
    assert "sockets through the host" in meaning(4, (2, 31, 0), {"NCCL_MULTI_RANK_GPU_ENABLE": "0"})


def test_what_the_user_has_set_stays() -> None:
    assert "NCCL_NET" not in sharing(2, 0, (2, 28, 9), {"NCCL_NET": "IB"})


def test_gloo_has_no_gpus_to_share() -> None:
    run = Run("a run", (Task("all_reduce", (64,)),), "gloo", 2)
    with pytest.raises(MeasurementError, match="are of NCCL, and this run is over gloo"):
        check_run(replace(run, ranks_per_gpu=2))


def test_the_batch_script_is_a_shell_script(tmp_path: Path) -> None:
    script = sbatch(["my run.yaml", "--backend", "nccl"], world_size=16, ranks_per_node=8, gpus_per_node=8)
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n" in script
    assert "srun --kill-on-bad-exit=1 commsim measure 'my run.yaml' --backend nccl\n" in script
    (tmp_path / "run.sh").write_text(script)
    assert subprocess.run(["bash", "-n", str(tmp_path / "run.sh")], check=False).returncode == 0


def test_the_command_prints_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["commsim", "measure", "allreduce-2-nodes-a100", "--backend", "nccl", "--emit-sbatch"]
    monkeypatch.setattr("sys.argv", words)
    result = CliRunner().invoke(app, words[1:])
    assert result.exit_code == 0, result.output
    assert "srun --kill-on-bad-exit=1 commsim measure allreduce-2-nodes-a100 --backend nccl\n" in result.stdout
