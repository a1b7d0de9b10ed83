"""What `commsim gpu` says before anything is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_gpus import FakeGpus

from commsim.__main__ import main


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str]:
    monkeypatch.setattr("commsim.measure.gpu.gpus", lambda: FakeGpus(2))
    monkeypatch.setattr("sys.argv", ["commsim", "gpu", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0), " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--minutes", "0", "--out", "nowhere"], "found nothing that was measured, expected a folder of `commsim gpu`"),
        (["--minutes", "0", "--fresh"], "--minutes 0 measures nothing: leave out one of them"),
        (["--largest", "4 B"], "found 4 B, expected at least 8 B"),
        (["--only", "rates,foo"], "found 'foo', expected some of collectives, rates, steps, forced"),
        (["--out", "a-file"], "--out a-file: cannot be written"),
        (["--out", "a-file/lab"], "--out a-file/lab: cannot be written: Not a directory"),
    ],
)
def test_what_cannot_begin_is_refused_at_once(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: list[str],
    fault: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").touch()
    status, text = said(capsys, monkeypatch, *words)
    assert status == 2
    assert fault in text
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


@pytest.mark.parametrize(
    ("earlier", "fault"),
    [
        ({"world_size": 8}, "world_size was 8, is 2"),
        ({"gpu": "NVIDIA H200"}, "gpu was NVIDIA H200, is NVIDIA H100 80GB HBM3"),
        ({"nccl": "2.21.5"}, "nccl was 2.21.5, is 2.27.7"),
    ],
)
def test_a_folder_of_another_machine_stays_as_it_is(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    earlier: dict[str, object],
    fault: str,
) -> None:
    same = {"world_size": 2, "ranks_per_gpu": 1, "gpu": "NVIDIA H100 80GB HBM3", "nccl": "2.27.7"}
    (tmp_path / "collectives").mkdir()
    (tmp_path / "collectives" / "run.json").write_text(json.dumps(same | earlier))
    status, text = said(capsys, monkeypatch, "--out", str(tmp_path))
    assert status == 2
    assert f"holds measurements of another machine ({fault}); use another --out, or --fresh" in text
    assert [path.name for path in tmp_path.iterdir()] == ["collectives"]
