"""`commsim topo`: list, show, draw, check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from commsim.cli.topo import app
from commsim.errors import CommsimError, TopologyError
from commsim.topology.presets import preset_names


def topo(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_list_names_every_preset() -> None:
    result = topo("list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.stdout.splitlines()[1:] if line[0] != " "] == preset_names()
    assert [p["name"] for p in json.loads(topo("list", "--json").stdout)] == preset_names()


def test_show_is_a_sheet() -> None:
    text = topo("show", "hgx-h100-ndr400", "--nodes", "64", "--oversubscription", "2").stdout
    assert "512 ranks" in text
    assert "6.4 TB/s" in text
    assert "18 x 25 GB/s = 450 GB/s per GPU" in text
    (row,) = [line for line in text.splitlines() if line.startswith("GPU4")]
    assert row.split() == ["GPU4", *["NV18"] * 4, "X", *["NV18"] * 3, *["SYS"] * 4, "PIX*", *["PHB"] * 3]


def test_show_tells_where_geforce_cards_meet() -> None:
    assert "(peer to peer), but through that of the host" in topo("show", "rtx4090").stdout
    assert "peer to peer" not in topo("show", "rtx6000d").stdout
    assert json.loads(topo("show", "rtx4090", "--json").stdout)["gpu"]["peer_to_peer"] is False


def test_show_json_is_one_document() -> None:
    data = json.loads(topo("show", "dgx-1v", "--json").stdout)
    assert data["nvlink"] == {"links_per_gpu": 6, "link_bandwidth_bytes_per_s": 25e9, "nvswitch": False}
    assert data["bisection_bytes_per_s"] == 150e9
    assert data["paths"]["gpu_gpu"][0][:5] == ["LOC", "NVL", "NVL", "NVL", "NVL"]
    assert json.loads(topo("show", "dgx-1v", "--gpus-per-node", "1", "--json").stdout)["bisection_bytes_per_s"] is None


@pytest.mark.parametrize("form", ["png", "svg"])
def test_draw_writes_a_picture(form: str, tmp_path: Path) -> None:
    out = tmp_path / f"machine.{form}"
    result = topo("draw", "gh200x4", "-o", str(out))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert (b"PNG" if form == "png" else b"<svg") in out.read_bytes()[:2000]
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


def test_draw_refuses_other_endings(tmp_path: Path) -> None:
    result = topo("draw", "gh200x4", "-o", str(tmp_path / "machine.jpg"))
    assert isinstance(result.exception, CommsimError)
    assert "expected .png or .svg" in str(result.exception)


def test_check_of_a_file(tmp_path: Path) -> None:
    good = tmp_path / "mine.yaml"
    good.write_text("extends: hgx-h100-ndr400\n")
    assert topo("check", str(good), "--nodes", "2").stdout.startswith("mine: sound; 16 ranks")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["show", "hgx-h10"], "did you mean hgx-h100"),
        (["show", "absent.yaml"], "no such file"),
        (["show", "dgx-1v", "--nodes", "0"], "nodes: found 0"),
        (["check", "dgx-1v", "--nodes", "2"], "without a NIC"),
        (["show", "dgx-1v", "--nics-per-node", "1", "--nic-bandwidth", "25"], "bare number"),
    ],
)
def test_bad_input_is_a_topology_error(arguments: list[str], match: str) -> None:
    result = topo(*arguments)
    assert isinstance(result.exception, TopologyError)
    assert match in str(result.exception)
