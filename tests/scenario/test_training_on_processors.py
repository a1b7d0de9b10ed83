"""Training steps of ranks without a GPU, over gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commsim.errors import CommsimError
from commsim.scenario.load import load_scenarios, resolved_yaml
from commsim.scenario.run import run

_SCENARIO = """
name: Small
topology: {preset: loopback, gpus_per_node: 4, cpu: {cores: 2}}
library: gloo
workload:
  - training:
      model: gpt2-124m
      seq_len: 256
      global_batch_size: 8
      precision: fp32
      accelerator: processor.yaml
      framework: ddp
"""
_PROCESSOR = """processor: Some CPU
source: by hand
fp32: 100.0e+9
bf16: 50.0e+9
memory_bytes: 16000000000
memory_bytes_per_s: 10.0e+9
"""


def _load(tmp_path: Path, text: str, *overrides: str) -> Any:
    (tmp_path / "s.yaml").write_text(text)
    return load_scenarios(tmp_path / "s.yaml", list(overrides))[0]


def test_a_step_over_gloo_on_a_processor(tmp_path: Path) -> None:
    (tmp_path / "processor.yaml").write_text(_PROCESSOR)
    (item,) = run(_load(tmp_path, _SCENARIO)).trainings
    gpu = item.step.accelerator
    assert (gpu.name, gpu.peak("fp32"), gpu.memory_bytes) == ("Some CPU", 50e9, 4_000_000_000)  # 4 ranks on 2 cores
    # No step is quicker than its products on four processes, each with half a core.
    assert item.step_s > 6 * 124e6 * 8 * 256 / (4 * 50e9)
    (more,) = run(_load(tmp_path, _SCENARIO, "topology.cpu.cores=4")).trainings
    assert more.causes["compute"] == pytest.approx(item.causes["compute"] / 2, rel=0.1)
    (slower,) = run(_load(tmp_path, _SCENARIO, "workload.0.training.overlap_dp=false")).trainings
    assert slower.causes["dp"] > item.causes["dp"]


def test_a_saved_scenario_finds_the_processor_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "processor.yaml").write_text(_PROCESSOR)
    scenario = _load(tmp_path, _SCENARIO)
    out = tmp_path / "out" / "deep"
    out.mkdir(parents=True)
    (out / "scenario.yaml").write_text(resolved_yaml(scenario, out))
    (again,) = load_scenarios(out / "scenario.yaml")
    assert run(again).trainings[0].step_s == run(scenario).trainings[0].step_s


def test_a_processor_that_is_not_named_and_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CommsimError, match="expected the file that `commsim rates --device cpu` writes"):
        run(_load(tmp_path, _SCENARIO.replace("      accelerator: processor.yaml\n", "")))
    (tmp_path / "processor.yaml").write_text(_PROCESSOR.replace("fp32: 100.0e+9", "fp32: quick"))
    with pytest.raises(CommsimError, match=r"processor\.yaml:3:7 fp32: "):
        run(_load(tmp_path, _SCENARIO))


def test_training_needs_a_library(tmp_path: Path) -> None:
    with pytest.raises(CommsimError, match="found training with library none, expected library nccl or gloo"):
        _load(tmp_path, _SCENARIO.replace("library: gloo", "library: none"))
