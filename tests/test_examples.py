"""The executed pages say what their code and commands print today, and show the pictures that it draws."""

from __future__ import annotations

import os
import re
from pathlib import Path

import console
import examples
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("page", examples.EXECUTED, ids=lambda page: page.stem)
def test_the_page_says_what_it_prints(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    again, pictures = examples.executed(text)
    assert again == text, f"run `make examples PAGE={page.stem}`"
    for name, content in pictures.items():
        assert f"../images/guides/{name}.png" in text
        assert content.startswith(b"\x89PNG")
        assert (examples.PICTURES / f"{name}.png").is_file()


READ_BY_USERS = [
    *console.ROOT.glob("docs/guides/*.md"),
    *console.ROOT.glob("docs/tutorial/*.md"),
    console.ROOT / "README.md",
]
RECORDED = {"doctor": 1}
"""Blocks of output that cannot be executed here, by page; the page says where they were recorded."""


@pytest.mark.parametrize("page", READ_BY_USERS, ids=lambda page: page.stem)
def test_no_output_is_typed(page: Path) -> None:
    """What a command prints stands in a console block: other blocks name what they hold."""
    languages = re.findall(r"^```(\w*)\n.*?^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert sum(language in {"", "text"} for language in languages) == RECORDED.get(page.stem, 0)


def test_a_gap_keeps_as_many_lines_as_stand_around_it() -> None:
    output = ["a", "b", "c", "d", "e"]
    assert console.kept(output, ["old"]) == output
    assert console.kept(output, ["x", "...", "y", "z"]) == ["a", "...", "d", "e"]
    assert console.kept(output, ["..."]) == ["..."]
    assert console.kept(output, ["x", "...", "y", "z", "z", "z"]) == output
    with pytest.raises(console.ExampleError, match="found 2 gaps"):
        console.kept(output, ["...", "..."])


def test_a_page_has_a_folder_files_and_commands() -> None:
    text = (
        "```yaml\n# mine.yaml\nname: x\n```\n"
        "```console\n$ grep name mine.yaml\nold\n$ cat > there <<'END'\n> one\n>\n> two\n> END\n$ tail -1 there\n```\n"
        "```console\n$ ls out; exit 3 # exit status 3\n...\n```\n"
    )
    again, _ = examples.executed(text)
    assert again == text.replace("old\n", "name: x\n").replace("tail -1 there\n", "tail -1 there\ntwo\n")
    assert examples.executed(again)[0] == again


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ("$ exit 1\n", "found exit status 1, expected 0"),
        ("$ true # exit status 2\n", "found exit status 0, expected 2"),
        ("$ pwd\n", "paths of this machine"),
        ("$ echo '$ x'\n", "lines without prompts"),
        ("output\n$ true\n", "expected a line that begins with"),
    ],
)
def test_a_command_that_does_otherwise_is_refused(block: str, words: str) -> None:
    with pytest.raises(console.ExampleError, match=words):
        examples.executed(f"```console\n{block}```\n")


def test_commsim_of_a_page_is_that_of_the_checkout() -> None:
    again, _ = examples.executed(
        "```console\n$ python -c 'import commsim, sys; print(commsim.__name__, sys.stdin.isatty())'\n```\n"
    )
    assert "commsim False" in again


def test_output_is_written_anew_and_a_fault_is_seen() -> None:
    text = "```pycon\n>>> n = 3\n>>> for i in range(n):\n...     print(i)\nold\n```\n"
    again, _ = examples.executed(text)
    assert again == "```pycon\n>>> n = 3\n>>> for i in range(n):\n...     print(i)\n0\n1\n2\n```\n"
    with pytest.raises(ZeroDivisionError):
        examples.executed("```pycon\n>>> 1 / 0\n```\n")
    assert os.environ["MPLBACKEND"] == "Agg"
