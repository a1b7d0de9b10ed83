"""What `commsim gpu` says before anything is measured."""

from __future__ import annotations

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
