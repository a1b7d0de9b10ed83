from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commsim.errors import ScenarioError
from commsim.generation.requests import Lengths, drawn, read_requests


def test_lengths_of_a_range_are_drawn_evenly_and_the_same_again() -> None:
    one, again = (drawn(Lengths(1000, range_ratio=0.8), 128, 5000, seed=3) for _ in range(2))
    assert one.prompt.min() == 800
    assert one.prompt.max() == 1000
    assert one.prompt.mean() == pytest.approx(900, rel=0.01)
    assert (one.answer == 128).all()
    assert (one.prompt == again.prompt).all()
    assert (one.prompt != drawn(Lengths(1000, range_ratio=0.8), 128, 5000, seed=4).prompt).any()


def test_a_long_tail_has_its_mean_and_is_cut() -> None:
    tail = drawn(1, Lengths(1000, cv=1.0), 100_000).answer
    assert tail.mean() == pytest.approx(1000, rel=0.02)
    assert tail.std() / tail.mean() == pytest.approx(1.0, rel=0.05)
    assert drawn(1, Lengths(1000, cv=1.0, most=2000), 1000).answer.max() == 2000


def test_independent_arrivals_have_their_rate() -> None:
    arrival = drawn(1, 1, 20_000).poisson(50.0).arrival_s
    assert arrival is not None
    assert arrival[0] == 0.0
    assert (np.diff(arrival) >= 0).all()
    assert 20_000 / arrival[-1] == pytest.approx(50.0, rel=0.03)


def test_a_file_of_requests_is_read_by_its_arrivals(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    file.write_text("arrival_s, prompt,answer\n2.5,10,20\n\n0.5,30,40\n")
    requests = read_requests(file)
    assert requests.prompt.tolist() == [30, 10]
    assert requests.answer.tolist() == [40, 20]
    assert requests.arrival_s is not None
    assert requests.arrival_s.tolist() == [0.5, 2.5]
    file.write_text("prompt,answer\n10,20\n")
    assert read_requests(file).arrival_s is None


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("", 1, "prompt, answer"),
        ("prompt\n1\n", 1, "prompt, answer"),
        ("prompt,answer,colour\n1,2,3\n", 1, "colour"),
        ("prompt,answer\n", 1, "no requests"),
        ("prompt,answer\n1,2\n3\n", 3, "1 values"),
        ("prompt,answer\n1,2\n3,many\n", 3, "answer 'many'"),
        ("prompt,answer\n1.5,2\n", 2, "prompt '1.5'"),
        ("prompt,answer\n0,2\n", 2, "prompt '0'"),
        ("prompt,answer,arrival_s\n1,2,-1\n", 2, "arrival_s '-1'"),
        ("prompt,answer,arrival_s\n1,2,nan\n", 2, "arrival_s 'nan'"),
    ],
)
def test_a_broken_file_says_where_and_what(tmp_path: Path, text: str, line: int, expected: str) -> None:
    file = tmp_path / "requests.csv"
    file.write_text(text)
    with pytest.raises(ScenarioError) as error:
        read_requests(file)
    assert f"requests.csv:{line}:1: found" in str(error.value)
    assert expected in str(error.value)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="cannot be read as CSV"):
        read_requests(file)
