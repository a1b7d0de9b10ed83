"""One home for each fact: collectives' facts in semantics.py, powers of units in units.py, one class for a name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from commsim.collectives.semantics import NCCL_TESTS

PACKAGE = Path(__file__).parent.parent / "commsim"

_CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
_NAMES = re.compile(rf"[\"']({'|'.join(NCCL_TESTS)})[\"']")
_POWERS = re.compile(r"\b1e9\b|\b2(\.0)? ?\*\* ?30\b|1 << 30|1024 ?\*\* ?3")


@cache
def sources() -> dict[str, str]:
    return {p.relative_to(PACKAGE).as_posix(): p.read_text(encoding="utf-8") for p in sorted(PACKAGE.rglob("*.py"))}


def lists_of_collectives(text: str) -> Iterator[int]:
    """Lines of sets, tuples and lists with two or more literal names of collectives."""
    if len(_NAMES.findall(text)) < 2:  # most files need no parsing
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Set, ast.Tuple, ast.List)):
            continue
        if sum(isinstance(e, ast.Constant) and e.value in NCCL_TESTS for e in node.elts) >= 2:
            yield node.lineno


def borne_by_several() -> dict[str, list[str]]:
    """Names of classes that several classes bear, and their files."""
    files = defaultdict(list)
    for path, text in sources().items():
        for name in _CLASS.findall(text):
            files[name].append(path)
    return {name: where for name, where in files.items() if len(where) > 1}


def test_facts_about_collectives_are_said_once() -> None:
    """Left are orders, and a format's numbers: NCCL's and Chakra's, gloo's measured ones, names in a timeline."""
    lists = [
        f"{path}:{line}"
        for path, text in sources().items()
        if not path.startswith("collectives/")
        for line in lists_of_collectives(text)
    ]
    assert len(lists) <= 5, lists


def test_powers_of_units_are_written_in_one_file() -> None:
    files = [path for path, text in sources().items() if path != "units.py" and _POWERS.search(text)]
    assert not files, files


def test_a_name_is_that_of_one_class() -> None:
    several = borne_by_several()
    private = {name: files for name, files in several.items() if name.startswith("_")}
    public = {name: files for name, files in several.items() if name not in private}
    assert not public, public
    assert len(private) <= 5, private


@cache
def names_in_code() -> frozenset[str]:
    return frozenset(name for text in sources().values() for name in re.findall(r"\w+", text))


def words() -> Iterator[tuple[str, str, str]]:
    """Word, names in code and source of every line of the glossary."""
    text = (PACKAGE.parent / "docs" / "glossary.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "word":
            yield cells[0], cells[2], cells[3]


@pytest.mark.parametrize(("word", "names", "source"), list(words()))
def test_a_word_of_the_glossary_has_a_source_and_names_in_the_code(word: str, names: str, source: str) -> None:
    assert source, word
    for name in re.findall(r"`(\w+)`", names):
        assert name in names_in_code(), name


def test_the_checks_see_what_they_look_for() -> None:
    assert list(lists_of_collectives('x = 1\ny = {"gather", "scatter"}\nz = ("reduce", "none")')) == [2]
    assert all(map(_POWERS.search, ("x / 1e9", "2**30", "2.0**30", "1 << 30", "1024**3")))
    assert not any(map(_POWERS.search, ("50e9", "2**300", "12**30", "1e-9")))
