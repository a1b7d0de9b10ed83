"""`commsim topo import` and `commsim run --explain-choice`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from commsim.cli.run import run
from commsim.cli.topo import app
from commsim.errors import CommsimError, TopologyError

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-31\nGPU1\tNV12\t X \t0-31\n"
FLAGS = ("--sm", "80", "--pcie-bandwidth", "24 GB/s", "--cpu-vendor", "amd")


def topo(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_import_writes_a_topology_that_loads(tmp_path: Path) -> None:
    (tmp_path / "smi.txt").write_text(MATRIX, encoding="utf-8")
    out = tmp_path / "pair.yaml"
    assert topo("import", str(tmp_path / "smi.txt"), "-o", str(out), *FLAGS).exit_code == 0
    assert json.loads(topo("show", str(out), "--json").stdout)["nvlink"]["links_per_gpu"] == 12


def test_import_asks_for_flags_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "smi.txt").write_text(MATRIX, encoding="utf-8")
    found = topo("import", str(tmp_path / "smi.txt"), "-o", str(tmp_path / "pair.yaml"))
    assert isinstance(found.exception, TopologyError)
    assert "--pcie-bandwidth" in str(found.exception)
    assert not (tmp_path / "pair.yaml").exists()


@pytest.mark.parametrize("flags", [("-o", "x.txt"), ("-o", "x.yaml", "--nvlink-kind", "ring")])
def test_import_names_a_wrong_flag(flags: tuple[str, ...]) -> None:
    assert isinstance(topo("import", "smi.txt", *flags).exception, CommsimError)


def test_run_explains_its_choice() -> None:
    command = typer.Typer()
    command.command()(run)
    shown = CliRunner().invoke(command, ["quickstart", "--no-files", "--explain-choice"]).stdout
    assert "Pattern 4, crossNic 0, nChannels 12" in shown
    assert "Max NThreads" in shown
    assert "Bytes -> Algo RING proto" in shown
