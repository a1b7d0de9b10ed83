"""The gallery: its page is what docs/gallery.py says, its pictures are there and small, no kind is missing."""

from __future__ import annotations

import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from commsim.cli import app
from commsim.report.kinds import KINDS

MOST_BYTES = 3_000_000


@pytest.fixture(scope="module")
def gallery(checkout: Path) -> dict[str, Any]:
    return runpy.run_path(str(checkout / "docs" / "gallery.py"))


def test_the_page_is_what_the_entries_say(gallery: dict[str, Any], checkout: Path) -> None:
    assert gallery["PAGE"].read_text(encoding="utf-8") == gallery["page"]()


def test_every_entry_has_a_small_picture_and_no_other_is_left(gallery: dict[str, Any]) -> None:
    files = {path.stem: path for path in gallery["PICTURES"].iterdir()}
    assert set(files) == {entry.name for entry in gallery["entries"]()}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files.values())
    assert sum(path.stat().st_size for path in files.values()) < MOST_BYTES


def test_every_kind_of_picture_has_an_entry(gallery: dict[str, Any]) -> None:
    drawn = " ".join(command for entry in gallery["entries"]() for command in entry.commands)
    asked = {word for command in drawn.split("commsim ") for word in shlex.split(command)}
    shown = {entry.name for entry in gallery["entries"]()} | asked
    assert set(KINDS) - shown <= {"ranks"}  # replayed traces: no recorded ones are in the checkout


def test_its_commands_are_commands(gallery: dict[str, Any]) -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    for entry in gallery["entries"]():
        assert entry.commands
        for command in entry.commands:
            program, name, *_ = shlex.split(command)
            assert (program, name in known) == ("commsim", True)
