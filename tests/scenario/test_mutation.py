"""Mutants of the shipped scenarios: each one loads and builds, or is refused with a CommsimError, nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from commsim.errors import CommsimError
from commsim.scenario.load import load_scenarios, resolved_yaml, scenario_warnings
from commsim.scenario.setting import build_topology

TESTS = Path(__file__).parent.parent
SEEDS = sorted([*(TESTS / "data" / "ok").glob("*.yaml"), *(TESTS.parent / "scenarios").glob("*.yaml")])
MOST_RANKS = 4096  # a mutant may ask for a million ranks: valid, and too slow to build a thousand times

Edit = Callable[[st.DrawFn, str], str]
WORD = re.compile(r"[A-Za-z_][\w-]*|[0-9.]+|[^\w\s]")
ODD = [
    "",
    "0",
    "-1",
    "1e9",
    "no",
    "null",
    "true",
    "[]",
    "{}",
    "[[]]",
    "'",
    '"',
    "&a",
    "*a",
    "!!set",
    "<<",
    "1:30",
    "---",
]
ODD += [
    "0 B",
    "1 GB .. 1 B",
    "1 B .. 4 EiB +1 B",
    "9" * 40,
    ".nan",
    "\t",
    "\0",
    "\x1b",
    "é",
    "\ufeff",
    "\u2028",
    "../..",
    "%",
]
NUMBERS = ["0", "-1", "1", "7", "9", "1.5", "64", "65536", "99999999999999999999", "0.0", "-0", "1e3", "1.0e+30"]


def place(draw: st.DrawFn, size: int) -> int:
    return draw(st.integers(0, max(size - 1, 0)))


def flip(draw: st.DrawFn, text: str) -> str:
    i = place(draw, len(text))
    return text[:i] + chr(ord(text[i]) ^ (1 << draw(st.integers(0, 7)))) + text[i + 1 :]


def delete(draw: st.DrawFn, text: str) -> str:
    i = place(draw, len(text))
    return text[:i] + text[i + draw(st.integers(1, 20)) :]


def insert(draw: st.DrawFn, text: str) -> str:
    i = place(draw, len(text))
    return text[:i] + draw(st.sampled_from(ODD) | st.text(max_size=4)) + text[i:]


def lines(draw: st.DrawFn, text: str) -> str:
    """Duplicate, drop, move or shift one line."""
    parts = text.splitlines(keepends=True)
    i, j = place(draw, len(parts)), place(draw, len(parts))
    line = parts[i]
    kind = draw(st.sampled_from(["twice", "drop", "move", "deeper", "flatter", "tab"]))
    if kind == "twice":
        parts.insert(j, line)
    elif kind == "drop":
        del parts[i]
    elif kind == "move":
        parts.insert(j, parts.pop(i))
    else:
        parts[i] = {"deeper": "  " + line, "flatter": line.removeprefix("  "), "tab": "\t" + line.lstrip()}[kind]
    return "".join(parts)


def words(draw: st.DrawFn, text: str) -> str:
    """Swap two words, or put an odd one in the place of one."""
    found = list(WORD.finditer(text))
    a, b = sorted((found[place(draw, len(found))], found[place(draw, len(found))]), key=lambda m: m.start())
    if a is b or draw(st.booleans()):
        return text[: a.start()] + draw(st.sampled_from(ODD)) + text[a.end() :]
    return text[: a.start()] + b[0] + text[a.end() : b.start()] + a[0] + text[b.end() :]


def numbers(draw: st.DrawFn, text: str) -> str:
    found = list(re.finditer(r"\d+", text))
    m = found[place(draw, len(found))]
    return text[: m.start()] + draw(st.sampled_from(NUMBERS)) + text[m.end() :]


def keys(draw: st.DrawFn, text: str) -> str:
    """Rename a key: to another key of the file, or by one letter."""
    found = list(re.finditer(r"([\w-]+)(?=:)", text))
    m = found[place(draw, len(found))]
    other = found[place(draw, len(found))][0]
    return text[: m.start()] + draw(st.sampled_from([other, m[0][1:], m[0] + "s", m[0].upper()])) + text[m.end() :]


@st.composite
def mutants(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(SEEDS)).read_text(encoding="utf-8")
    text = text.replace("../validation", str(TESTS.parent / "validation"))  # the mutant lies elsewhere
    edits: list[Edit] = draw(
        st.lists(st.sampled_from([flip, delete, insert, lines, words, numbers, keys]), min_size=1, max_size=4)
    )
    for edit in edits:
        try:
            text = edit(draw, text)
        except IndexError:  # nothing of that kind is left
            break
    return text


def survive(text: str, folder: Path) -> None:
    """Load and build the text; any exception but CommsimError fails the test."""
    path = folder / "mutant.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        for scenario in load_scenarios(path):
            resolved_yaml(scenario, folder)
            scenario_warnings(scenario)
            if scenario.topology.nodes * (scenario.topology.gpus_per_node or 8) <= MOST_RANKS:
                build_topology(scenario)
    except CommsimError as exc:
        message = str(exc)
        assert message
        assert len(message.splitlines()) <= 24


RULES = settings(
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    database=None,
    suppress_health_check=list(HealthCheck),
)


@settings(RULES, max_examples=200)
@given(text=mutants())
def test_mutants(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    survive(text, tmp_path_factory.getbasetemp())


@pytest.mark.slow
@settings(RULES, max_examples=2000)
@given(text=mutants())
def test_many_mutants(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    survive(text, tmp_path_factory.getbasetemp())


@settings(RULES, max_examples=200)
@given(raw=st.binary(max_size=300))
def test_bytes(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(raw)
    with pytest.raises(CommsimError):
        load_scenarios(path)
