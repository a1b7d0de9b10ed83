"""`commsim calibrate` with training steps, and the scenario that uses what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import CalibrationError, LogFormatError
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run

SCENARIO = """\
name: a small step
topology: {preset: dgx-a100}
workload:
  - training: {model: megatron-22b, global_batch_size: 4, micro_batch_size: 4, mesh: {tp: 8}, flash_attention: false,
               recompute: full, precision: fp16, pipeline_schedule: 1f1b}
"""
ROWS = """\
id,source,model,layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,global_batch_seqs,micro_batch,gpu_model,n_gpus,tp,pp,recompute,precision,iteration_time_s
mine-1,my cluster,megatron-22b,48,6144,24576,64,64,51200,2048,4,4,A100-SXM4-80GB,8,8,1,full,fp16,1.9
mine-2,my cluster,megatron-22b,48,6144,24576,64,64,51200,2048,,4,A100-SXM4-80GB,8,8,1,full,fp16,1.9
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    (tmp_path / "steps.csv").write_text(ROWS)
    return tmp_path


def _calibrate(folder: Path, *options: str) -> str:
    files = [str(folder / name) for name in ("scenario.yaml", "steps.csv")]
    result = CliRunner().invoke(app, ["calibrate", *files, "-o", str(folder / "machine.yaml"), *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_step_calibrates_a_machine(folder: Path) -> None:
    found = json.loads(_calibrate(folder, "--json"))
    assert found["moved"]["scale"] > 1.02
    assert abs(found["after_pct"]["mine-1"]) < abs(found["before_pct"]["mine-1"]) / 2
    assert found["held_out_pct"] == {}
    assert found["left_out"] == {"mine-2": "missing: global_batch_seqs"}
    (before,) = load_scenarios(folder / "scenario.yaml")
    (after,) = load_scenarios(folder / "scenario.yaml", ["workload.0.training.params=machine.yaml"])
    times = [run(s).trainings[0].step_s for s in (before, after)]
    errors = [1 + found[name]["mine-1"] / 100 for name in ("before_pct", "after_pct")]
    assert times[1] / times[0] == pytest.approx(errors[1] / errors[0], rel=0.01)  # simulated as the closed form moved


def test_the_table_says_what_changed(folder: Path) -> None:
    text = _calibrate(folder)
    assert "moved: scale x 1." in text
    assert "one row tells nothing of the error on others" in text
    assert "mine-2                   not used: missing: global_batch_seqs" in text


def test_a_missing_file_of_values_is_a_fault_at_its_key(folder: Path) -> None:
    from commsim.errors import ScenarioError

    (scenario,) = load_scenarios(folder / "scenario.yaml", ["workload.0.training.params=none.yaml"])
    with pytest.raises(ScenarioError, match=r"training\.params.*no such file"):
        run(scenario)


def test_a_launch_mode_that_changes_nothing_is_told(folder: Path) -> None:
    """By `calibrate` and by `run`; a collective beside the step is launched as the mode says."""
    words = ["calibrate", str(folder / "scenario.yaml"), str(folder / "steps.csv"), "-o", str(folder / "m.yaml")]
    asked = "library={name: nccl, launch_mode: one_process}"
    told = "warning: override 'library={name: nccl, launch_mode: one_process}' library.launch_mode: found one_process"
    result = CliRunner().invoke(app, [*words, asked])
    assert f"{told}, which does not change training" in result.stderr
    assert "launch_mode" not in CliRunner().invoke(app, words).stderr
    (scenario,) = load_scenarios(folder / "scenario.yaml", [asked])
    assert [w for w in run(scenario).warnings if "launch_mode" in w] == [
        f"{told.removeprefix('warning: ')}, which does not change training: there a process drives each GPU"
    ]
    (folder / "scenario.yaml").write_text(
        "name: x\ntopology: {preset: dgx-a100}\nworkload: [{collective: all_reduce, sizes: 8 B}]\n"
    )
    (alone,) = load_scenarios(folder / "scenario.yaml", [asked])
    assert not [w for w in run(alone).warnings if "launch_mode" in w]


def test_a_table_that_lacks_a_column_is_refused_as_one_of_steps(folder: Path) -> None:
    (folder / "steps.csv").write_text("id,source\n1,2\n")
    files = [str(folder / name) for name in ("scenario.yaml", "steps.csv")]
    result = CliRunner().invoke(app, ["calibrate", *files, "-o", str(folder / "machine.yaml")])
    assert isinstance(result.exception, LogFormatError)  # exit status 2 of the command
    assert "expected also gpu_model" in str(result.exception)


def test_steps_of_another_gpu_are_refused_and_of_a_like_one_told(folder: Path) -> None:
    files = [str(folder / name) for name in ("scenario.yaml", "steps.csv")]
    words = ["calibrate", *files, "-o", str(folder / "machine.yaml")]
    (folder / "steps.csv").write_text(ROWS.replace("A100-SXM4-80GB", "H100-SXM5-80GB"))
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, CalibrationError)
    assert "expected those of the scenario's GPU, A100" in str(result.exception)
    assert not (folder / "machine.yaml").exists()
    (folder / "steps.csv").write_text(ROWS.replace("A100-SXM4-80GB", "A100-SXM4-40GB"))
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert "warning: steps of A100-SXM4-40GB calibrate a scenario of A100" in result.stderr


def test_unlike_steps_of_one_id_are_refused(folder: Path) -> None:
    head, first, _ = ROWS.splitlines()
    (folder / "steps.csv").write_text("\n".join([head, first, first.replace(",1.9", ",2.4")]) + "\n")
    files = [str(folder / name) for name in ("scenario.yaml", "steps.csv")]
    result = CliRunner().invoke(app, ["calibrate", *files, "-o", str(folder / "machine.yaml")])
    assert isinstance(result.exception, CalibrationError)
    assert "found several steps of the id 'mine-1'" in str(result.exception)


def test_more_than_all_of_the_peak_is_no_measurement(folder: Path) -> None:
    (folder / "steps.csv").write_text(ROWS.replace("iteration_time_s", "mfu_pct").replace(",1.9\n", ",140\n", 1))
    files = [str(folder / name) for name in ("scenario.yaml", "steps.csv")]
    result = CliRunner().invoke(app, ["calibrate", *files, "-o", str(folder / "machine.yaml")])
    assert isinstance(result.exception, CalibrationError)
    assert "found mfu_pct 140, expected at most 100" in str(result.exception)


def test_a_file_of_another_gpu_is_said(folder: Path) -> None:
    _calibrate(folder)
    assert "calibrated_on: ampere" in (folder / "machine.yaml").read_text()
    own, other = (
        load_scenarios(folder / "scenario.yaml", ["workload.0.training.params=machine.yaml", f"topology.preset={name}"])
        for name in ("dgx-a100", "hgx-h100")
    )
    warnings = [" ".join(run(one[0]).warnings) for one in (own, other)]
    assert "calibrated" not in warnings[0]
    assert "machine.yaml was calibrated with steps of GPUs of the generation ampere" in warnings[1]
