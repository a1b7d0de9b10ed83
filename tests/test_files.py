"""Files are whole or absent."""

from __future__ import annotations

import os
import stat
import threading
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


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "deep" / "target.txt", tmp_path / "link.txt"
    link.symlink_to(Path("deep") / "target.txt")
    for text in ("first", "second"):  # of a target that is not there, and of one that is
        assert write_atomically(link, text) == link
        assert link.is_symlink()
        assert target.read_text() == text
    assert [p.name for p in target.parent.iterdir()] == ["target.txt"]


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.txt"
    link.symlink_to(link)
    with pytest.raises(CommsimError, match=r"link\.txt: cannot be written: "):
        write_atomically(link, "text")
    assert link.is_symlink()


@pytest.mark.parametrize("linked", [False, True])
def test_a_pipe_is_written_into(tmp_path: Path, linked: bool) -> None:
    pipe = path = tmp_path / "pipe"
    os.mkfifo(pipe)
    if linked:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    check_writable(path)
    texts: list[str] = []
    reader = threading.Thread(target=lambda: texts.append(pipe.read_text()), daemon=True)
    reader.start()
    # Were the pipe replaced, its reader would wait for ever: a writer that leaves lets it go.
    assert write_atomically(path, "größe\n") == path
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    reader.join(timeout=10)
    assert texts == ["größe\n"]


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_one_before_and_after(device: str) -> None:
    assert stat.S_ISCHR(Path(device).stat().st_mode)
    check_writable(Path(device))
