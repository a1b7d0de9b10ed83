"""The recorded machines with known faults: enough of them, right results, and the errors that the page states."""

from __future__ import annotations

import csv
import json

import gloo_faults
import numpy as np
import pytest
from gloo_faults import FAULTS, PAGE, Point, by_scenario, points, summary


@pytest.fixture(scope="module")
def every() -> list[Point]:
    return points()


def test_there_are_enough_points_of_each_cause(every: list[Point]) -> None:
    causes = [point.cause for point in every]
    assert {cause: causes.count(cause) for cause in causes} == {
        "slow or failed link": 59,
        "late rank": 25,
        "two jobs": 34,
        "slow or failed link, later": 19,
        "late rank, later": 14,
        "two jobs, later": 24,
    }


@pytest.mark.parametrize("later", ["", ", later"])
@pytest.mark.parametrize("cause", ["slow or failed link", "late rank", "two jobs"])
def test_medians_are_within_the_bar(every: list[Point], cause: str, later: str) -> None:
    of = [point for point in every if point.cause == cause + later]
    assert np.median([abs(point.error) for point in of]) <= gloo_faults.BAR
    assert np.median([abs(point.slowdown_error) for point in of]) <= gloo_faults.BAR


def test_the_page_says_what_comes_out(every: list[Point]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert summary(every) in page
    assert by_scenario(every) in page


def test_every_recorded_result_was_right() -> None:
    wrong = [
        int(row[f"{place}_wrong"])
        for path in FAULTS.glob("*/*/measured.csv")
        for row in csv.DictReader(path.read_text().splitlines())
        for place in ("oop", "ip")
        if row[f"{place}_wrong"] not in ("", "N/A")
    ]
    jobs = [
        job["wrong"]
        for path in FAULTS.glob("*/*/jobs.json")
        for item in json.loads(path.read_text())["items"]
        for job in item["jobs"]
    ]
    assert (len(wrong) >= 200, len(jobs)) == (True, 116)
    assert sum(wrong) + sum(jobs) == 0
