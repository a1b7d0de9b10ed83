"""The executed guides say what their code prints today, and show the pictures that it draws."""

from __future__ import annotations

import os
from pathlib import Path

import examples
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("page", examples.EXECUTED, ids=lambda page: page.stem)
def test_the_page_says_what_its_code_prints(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(examples.ROOT)
    text = page.read_text(encoding="utf-8")
    again, pictures = examples.executed(text)
    assert again == text, "run `make examples`"
    for name, content in pictures.items():
        assert f"../images/guides/{name}.png" in text
        assert content.startswith(b"\x89PNG")
        assert (examples.PICTURES / f"{name}.png").is_file()
    assert pictures


def test_output_is_written_anew_and_a_fault_is_seen() -> None:
    text = "```pycon\n>>> n = 3\n>>> for i in range(n):\n...     print(i)\nold\n```\n"
    again, _ = examples.executed(text)
    assert again == "```pycon\n>>> n = 3\n>>> for i in range(n):\n...     print(i)\n0\n1\n2\n```\n"
    with pytest.raises(ZeroDivisionError):
        examples.executed("```pycon\n>>> 1 / 0\n```\n")
    assert os.environ["MPLBACKEND"] == "Agg"
