"""`commsim run --communicator-memory`: the table and the document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commsim.cli import app

_SCENARIO = """\
name: first calls
topology: {preset: hgx-h100}
library: {name: LIBRARY, version: 2.26.2}
workload:
  - {collective: all_reduce, sizes: [1GiB]}
  - {collective: all_to_all, sizes: [1MiB]}
  - {collective: all_reduce, sizes: [64B], channels: 4}
"""


def invoke(folder: Path, text: str, *options: str) -> str:
    path = folder / "s.yaml"
    path.write_text(text)
    done = CliRunner().invoke(app, ["run", str(path), "--no-files", "--communicator-memory", *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_table_says_what_is_taken_when(tmp_path: Path) -> None:
    lines = invoke(tmp_path, _SCENARIO.replace("LIBRARY", "nccl")).splitlines()
    rows = [line.rsplit(maxsplit=2) for line in lines]
    figures = {" ".join(row[0].split()): float(row[1]) for row in rows if len(row) == 3 and _number(row[1])}
    assert figures["first NVLS NVLS buffers"] == 256
    assert figures["first send connections of sends"] == 7 * 32 * 12
    assert figures["first Ring ring connections"] == 16 * 12  # NVLS has 16 channels, and so has the communicator
    assert [line for line in lines if line.startswith("# all_reduce, all_to_all: 8 ranks on 1 node")]
    assert [line for line in lines if line.startswith("# all_reduce: 8 ranks on 1 node")]
    assert "# kernels of NCCL, once for a process: 97.2 MiB" in lines


def _number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def test_document_adds_up(tmp_path: Path) -> None:
    (result,) = json.loads(invoke(tmp_path, _SCENARIO.replace("LIBRARY", "nccl"), "--json"))["results"]
    first, second = result["memory"]["communicators"]
    assert first["of"] == "all_reduce, all_to_all"
    assert first["calls"][1] == {"collective": "all_to_all", "algorithm": ""}
    for one in (first, second):
        assert one["gpu_bytes"] == sum(held["gpu_bytes"] for held in one["held"])
        assert one["host_bytes"] == sum(held["host_bytes"] for held in one["held"])
    assert {held["when"] for held in second["held"]} == {"init", "ring"}
    assert result["memory"]["kernel_bytes"] == 101_906_652


def test_more_than_the_gpu_has_is_said(tmp_path: Path) -> None:
    text = _SCENARIO.replace("LIBRARY, version: 2.26.2", "nccl, version: 2.26.2, env: {NCCL_BUFFSIZE: 1099511627776}")
    (note,) = [line for line in invoke(tmp_path, text).splitlines() if "out of memory" in line]
    assert "H100-SXM5-80GB has 79.65 GiB" in note
    assert note.startswith("# the communicators of the collectives take ")
    assert "out of memory" not in invoke(tmp_path, _SCENARIO.replace("LIBRARY", "nccl"))


def test_other_libraries_have_none(tmp_path: Path) -> None:
    text = _SCENARIO.replace("name: LIBRARY, version: 2.26.2", "name: none").split("  - {collective: all_to_all")[0]
    assert "# the library is none: none of NCCL's" in invoke(tmp_path, text)


@pytest.mark.parametrize("name", ["training/llama-3-70b-512-h100"])
def test_stages_that_are_alike_stand_together(name: str) -> None:
    done = CliRunner().invoke(app, ["run", name, "--no-files", "--communicator-memory"])
    assert done.exit_code == 0
    assert "# stage 0, stage 1, stage 2, stage 3: 16 ranks on 16 nodes, rank 0" in done.stdout
    assert "# stage 0, stage 1, stage 2, stage 3: 2 ranks on 2 nodes, rank 0, 2 each" in done.stdout


def test_beside_kernels_stands_the_nccl_that_they_fall_back_to(tmp_path: Path) -> None:
    """vLLM on 8 H100: 64 KiB is its own kernel's, 1 GiB NCCL's by NVLS, whose buffers come with that call alone."""
    text = (
        "name: n\ntopology: {preset: hgx-h100}\nlibrary: {name: custom_all_reduce, framework: vllm}\n"
        "workload: [{collective: all_reduce, dtype: bfloat16, sizes: SIZES}]\n"
    )
    nccl = text.replace("custom_all_reduce, framework: vllm", "nccl, version: 2.27.5")

    def memory(text: str, sizes: str) -> dict[str, Any]:
        (result,) = json.loads(invoke(tmp_path, text.replace("SIZES", sizes), "--json"))["results"]
        return dict(result["memory"])

    both, large = memory(text, "[64 KiB, 1 GiB]"), memory(nccl, "[1 GiB]")
    assert both["communicators"] == large["communicators"]
    assert both["kernel_bytes"] == large["kernel_bytes"]
    assert both["notes"] == ["the buffers of vllm's own kernels are not counted"]
    (small,) = memory(text, "[64 KiB]")["communicators"]
    assert {held["when"] for held in small["held"]} == {"init"}
