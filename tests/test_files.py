"""Files are whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.errors import CommsimError
from commsim.files import check_writable, write_atomically


def test_it_writes_text_and_bytes_and_makes_folders(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "a" / "b" / "x.txt", "größe\n")
    assert path.read_text(encoding="utf-8") == "größe\n"
    write_atomically(path, b"\x00")
    assert path.read_bytes() == b"\x00"
    assert [p.name for p in path.parent.iterdir()] == ["x.txt"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException]
) -> None:
    path = write_atomically(tmp_path / "x.txt", "old")

    def stop(self: Path, target: Path) -> Path:
        raise interruption

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(interruption):
        write_atomically(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommsimError, match=r"file/x.txt: cannot be written"):
        write_atomically(tmp_path / "file" / "x.txt", "data")
    for path, reason in (
        (tmp_path / "file" / "x.txt", "file is no folder"),
        (tmp_path / "file" / "a" / "x.txt", "file is no folder"),
        (tmp_path, "it is a folder"),
    ):
        with pytest.raises(CommsimError, match=f"cannot be written: .*{reason}"):
            check_writable(path)


def test_a_place_that_can_be_written_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "a" / "b" / "x.txt")
    check_writable(write_atomically(tmp_path / "x.txt", "old"))
    monkeypatch.chdir(tmp_path)
    check_writable(Path("y.txt"))
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]
    monkeypatch.setattr("os.access", lambda place, mode: False)
    with pytest.raises(CommsimError, match="no permission in"):
        check_writable(Path("y.txt"))
