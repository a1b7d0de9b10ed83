"""Commands whose reader leaves (``| head``): every file is there and whole, no fault, nothing on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commsim.measure.parsers import read_measured

ONE = """
name: {name}
topology: {{preset: hgx-h100-ndr400}}
library: {{name: nccl, version: 2.26.2}}
workload: [{{collective: all_reduce, sizes: 1 MiB .. 16 MiB x16}}]
"""


def closed(*words: object, both: bool = False) -> subprocess.CompletedProcess[str]:
    """The command with a standard output (and error) that nobody reads: its first line already fails."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "commsim", *map(str, words)]
    try:
        return subprocess.run(
            command, stdout=writer, stderr=writer if both else subprocess.PIPE, text=True, timeout=120, check=False
        )
    finally:
        os.close(writer)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(ONE.format(name="one") + "---" + ONE.format(name="two"))
    return path


def test_compare_writes_its_files_before_its_table(scenario: Path, tmp_path: Path) -> None:
    (tmp_path / "INDEX_x.csv").write_text("slug,collective,n_ranks\nlog,all_reduce,8\n")
    (tmp_path / "log.csv").write_text("size_bytes,oop_time_us\n1048576,50\n16777216,180\n")
    page = tmp_path / "c.html"
    done = closed("compare", scenario, tmp_path / "log.csv", "--no-what-if", "--html", page, "--out", tmp_path / "o")
    assert (done.returncode, done.stderr) == (0, "")
    assert page.read_text().rstrip().endswith("</html>")
    assert {p.name for p in (tmp_path / "o").iterdir()} == {"comparison.csv", "comparison.png", "comparison.svg"}


@pytest.mark.parametrize("both", [False, True])
def test_run_writes_the_files_of_every_scenario(scenario: Path, tmp_path: Path, both: bool) -> None:
    change = "library.env.NCCL_UNKNOWN_TO_ALL=1"  # gives a warning
    done = closed("run", scenario, change, "--no-plot", "--html", "--out", tmp_path / "o", both=both)
    assert done.returncode == 0
    assert both or all(line.startswith("warning: ") for line in done.stderr.splitlines())
    for name in ("one", "two"):
        folder = tmp_path / "o" / f"{name}-with-nccl-unknown-to-all-1"
        assert json.loads((folder / "result.json").read_text())["name"] == f"{name}, with NCCL_UNKNOWN_TO_ALL=1"
        assert (folder / "report.html").read_text().rstrip().endswith("</html>")


@pytest.mark.slow
def test_validate_writes_its_page(tmp_path: Path) -> None:
    page = tmp_path / "v.html"
    done = closed("validate", "training", "--engine", "closed_form", "--html", page, "--json", tmp_path / "v.json")
    assert (done.returncode, done.stderr) == (0, f"# wrote {page}\n")
    assert page.read_text().rstrip().endswith("</html>")
    assert json.loads((tmp_path / "v.json").read_text())


@pytest.mark.slow
def test_measure_stops_with_whole_rows(tmp_path: Path) -> None:
    """Nobody waits for it any more; the same command goes on where it was."""
    pytest.importorskip("torch")
    words = f"measure gloo-quickstart -n 2 -i 2 -w 0 --out {tmp_path / 'o'}"
    command = f"{sys.executable} -m commsim {words} | head -7; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (curve,) = read_measured(tmp_path / "o")
    assert 1 < len(curve) < 17
    assert json.loads((tmp_path / "o" / "run.json").read_text())["finished"] is False
