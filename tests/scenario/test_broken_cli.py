"""``commsim run`` on broken scenarios: exit status 2, one screen on stderr, no traceback, nothing written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commsim.cli import main

BROKEN = sorted((Path(__file__).parent.parent / "data" / "broken").glob("*"))
BASE = "name: test\ntopology: {preset: hgx-h100}\nworkload: [{collective: all_reduce, sizes: 1 MiB}]\n"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of the program, in this process."""
    monkeypatch.setattr(sys, "argv", ["commsim", "run", *arguments])
    with pytest.raises(SystemExit) as info:
        main()
    assert isinstance(info.value.code, int)
    return info.value.code


def check(stdout: str, stderr: str, folder: Path) -> None:
    assert stdout == ""
    assert "Traceback" not in stderr
    assert "internal error" not in stderr
    assert 1 <= len(stderr.splitlines()) <= 26
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("path", BROKEN, ids=lambda p: p.stem)
def test_broken_files(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, str(path)) == 2
    out, err = capsys.readouterr()
    check(out, err, tmp_path)
    assert path.name in err


@pytest.mark.parametrize("override", ["topology.nodes=0", "nonsense", "workload.0.sizes=1", "topology.gpus_per_node=9"])
def test_broken_overrides(
    override: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario = tmp_path_factory.mktemp("scenario") / "s.yaml"
    scenario.write_text(BASE)
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, str(scenario), override) == 2
    out, err = capsys.readouterr()
    check(out, err, tmp_path)
    assert f"override '{override}'" in err


def test_ten_megabytes_and_a_folder(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path_factory.mktemp("scenario")
    (folder / "big.yaml").write_bytes(b"name: big\n" * 1_000_000)
    monkeypatch.chdir(tmp_path)
    for path in (folder / "big.yaml", folder, folder / "gone.yaml"):
        assert run(monkeypatch, str(path)) == 2
        out, err = capsys.readouterr()
        check(out, err, tmp_path)


@pytest.mark.parametrize("name", ["deep_nesting", "binary", "second_document"])
def test_in_a_process_of_its_own(name: str, tmp_path: Path) -> None:
    path = next(p for p in BROKEN if p.stem == name)
    done = subprocess.run(
        [sys.executable, "-m", "commsim", "run", str(path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    check(done.stdout, done.stderr, tmp_path)
