"""The mutants of a small file by hand, and that what is called equivalent is still there."""

from __future__ import annotations

import ast

import pytest
from mutants import CHECKOUT, at, equivalent, mutants_of, mutated, sample

SOURCE = '''"""Seven days."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from days import Week

DAYS: int | None = 7


@cache(size=3)
def left(day: int = 1, *, late: bool = False) -> "Week | None":
    """Days until 7."""
    if not late and day >= DAYS:
        raise ValueError(f"found {day + 1}")
    days = []
    for other in range(-day):
        days.append(other)
        if other is None:
            continue
    assert day > 0
    return days
'''

LEFT = 'def left(day: int = 1, *, late: bool = False) -> "Week | None":'

CHANGES = [
    (7, "module", "7 -> 8 in DAYS: int | None = 7"),
    (11, "left", f"False -> True in {LEFT}"),
    (11, "left", f"1 -> 2 in {LEFT}"),
    (13, "left", "not late and day >= DAYS -> not late or day >= DAYS"),
    (13, "left", "not late -> not not late"),
    (13, "left", "day >= DAYS -> day > DAYS"),
    (14, "left", "raise ValueError(f'found {day + 1}') -> pass"),
    (16, "left", "-day -> +day"),
    (17, "left", "days.append(other) -> pass"),
    (18, "left", "other is None -> other is not None"),
    (19, "left", "continue -> pass"),
]


def test_the_mutants_of_a_file_by_hand() -> None:
    """Types, decorators, messages, assertions and docstrings stay as they are."""
    found = mutants_of("days.py", SOURCE)
    assert [(m.line, m.function, m.change) for m in found] == CHANGES


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_mutant_is_another_program_that_differs_in_one_line(number: int) -> None:
    before, after = ast.unparse(ast.parse(SOURCE)).splitlines(), mutated(SOURCE, number).splitlines()
    assert sum(one != two for one, two in zip(before, after, strict=True)) == 1


def test_a_short_run_is_the_beginning_of_a_long_one() -> None:
    long = sample("planner", 4, 28)
    assert long[:2] == sample("planner", 2, 28)
    assert long[:2] != sample("planner", 2, 29)


def test_the_mutants_of_a_line() -> None:
    line = (CHECKOUT / "commsim/units.py").read_text().splitlines().index("_MOST_TIME = 1e4 * 86400.0") + 1
    changes = ["10000.0 * 86400.0 -> 10000.0 / 86400.0", "10000.0 -> 12500.0", "86400.0 -> 108000.0"]
    assert [m.change.partition(" in ")[0] for m in at(f"commsim/units.py:{line}")] == changes


@pytest.mark.slow
def test_what_is_called_equivalent_is_a_mutant_of_today() -> None:
    names = list(equivalent())
    for file in {name[0] for name in names}:
        every = {m.name for m in mutants_of(file, (CHECKOUT / file).read_text())}
        assert every.issuperset(name for name in names if name[0] == file)
