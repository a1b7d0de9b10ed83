"""A number or two that a person knows of a machine stand for its curve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from commsim.api import run
from commsim.cli import app
from commsim.errors import CalibrationError
from commsim.fitting.known import PLATEAU_BYTES, known_curve
from commsim.scenario.params import read_params

SCENARIO = """
name: One board
topology: {preset: hgx-h100}
library: {name: nccl, version: 2.27.3}
workload: [{collective: all_reduce, sizes: [8 B, 1 MiB, 8 GiB]}]
"""


def test_times_and_bus_bandwidths_become_seconds() -> None:
    """An all_reduce of 8 ranks moves 1.75 times its size: at 350 GB/s of bus bandwidth 200 GB/s of its own."""
    curve = known_curve({"8B": "23us", "1GiB": "350GB/s", "plateau": "350 GB/s"}, "all_reduce", 8)
    assert curve.size_bytes.tolist() == [8, 1 << 30, PLATEAU_BYTES]
    np.testing.assert_allclose(curve.time_s, [23e-6, (1 << 30) / 200e9, PLATEAU_BYTES / 200e9])


def test_every_part_that_says_nothing_is_told(tmp_path: Path) -> None:
    path, text = tmp_path / "s.yaml", "8B,1 parsec=3us,plateau=3us,16B=0us,32B=2us,32B=3us,0B=1us"
    path.write_text(SCENARIO)
    done = CliRunner().invoke(app, ["calibrate", str(path), "--from", text, "-o", str(tmp_path / "p.yaml")])
    assert isinstance(done.exception, CalibrationError)
    lines = str(done.exception).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "--from '8B'", "--from '1 parsec=3us'", "--from 'plateau=3us'", "--from '16B=0us'", "--from '32B=3us'",
        "--from '0B=1us'",
    ]  # fmt: skip


def test_both_numbers_are_met_and_what_lies_between_moves_with_them(tmp_path: Path) -> None:
    path, out = tmp_path / "s.yaml", tmp_path / "p.yaml"
    path.write_text(SCENARIO)
    shipped = [row.time_s for row in run(path).items[0].rows]
    known = f"8B={1.3e6 * shipped[0]:.4f}us,plateau={1.75 * PLATEAU_BYTES / shipped[2] / 1.1 / 1e9:.4f}GB/s"
    done = CliRunner().invoke(app, ["calibrate", str(path), "--from", known, "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "no size is left that could tell the error" in done.stdout
    file = read_params(out)
    assert file.held_out_mape is None
    assert file.band is None
    rows = [row.time_s for row in run(path, f"params={out}").items[0].rows]
    assert rows[0] == pytest.approx(1.3 * shipped[0], rel=0.03)
    assert rows[2] == pytest.approx(1.1 * shipped[2], rel=0.03)
    assert shipped[1] < rows[1] < 1.35 * shipped[1]


def test_values_as_json_and_logs_beside_them_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    words = ["calibrate", str(path), "--from", "8B=23us", "-o", str(tmp_path / "p.yaml")]
    done = CliRunner().invoke(app, [*words, "--json"])
    values = json.loads(done.stdout)["values"]
    assert values["base.LL"]["value"] > values["base.LL"]["shipped"]
    log = tmp_path / "log.csv"
    log.write_text("")
    done = CliRunner().invoke(app, [*words, str(log)])
    assert isinstance(done.exception, CalibrationError)
    assert "expected known numbers or logs" in str(done.exception)


def test_one_rank_has_no_bus_bandwidth() -> None:
    with pytest.raises(CalibrationError, match="found one rank, which sends nothing"):
        known_curve({"plateau": "23GB/s"}, "all_reduce", 1)


def test_a_rate_that_no_link_has_is_told(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    done = CliRunner().invoke(
        app, ["calibrate", str(path), "--from", "plateau=780GB/s", "-o", str(tmp_path / "p.yaml")]
    )
    assert "# look at this: all_reduce of 8 GiB is not met" in done.stdout
    shares = {name: v.value for name, v in read_params(tmp_path / "p.yaml").values.items() if "efficiency" in name}
    assert shares
    assert all(float(value) <= 1 for value in shares.values())


def test_a_number_of_another_machine_is_refused_and_nothing_written(tmp_path: Path) -> None:
    path, out = tmp_path / "s.yaml", tmp_path / "p.yaml"
    path.write_text(SCENARIO)
    done = CliRunner().invoke(app, ["calibrate", str(path), "--from", "plateau=361GB/s,8B=10000s", "-o", str(out)])
    assert isinstance(done.exception, CalibrationError)
    assert "8 B is taken to last" in str(done.exception)
    assert not out.exists()
