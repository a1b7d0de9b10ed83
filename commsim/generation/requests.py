"""Requests of a run: how long their prompts and answers are, and when they come."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commsim.document.types import show
from commsim.errors import ScenarioError

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

MOST_REQUESTS, MOST_SECONDS = 1_000_000, 1e8
MOST_TOKENS = 2**24
"""Of one prompt or answer."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of prompts or answers: always the same, evenly drawn below a length, or with a long tail.

    ``range_ratio``: drawn evenly from that part of ``tokens`` to ``tokens``, as the random data of serving benchmarks.
    ``cv``: drawn from a log-normal distribution with the mean ``tokens`` and that deviation over the mean.
    ``most``: what is drawn longer is cut there.
    """

    tokens: int
    range_ratio: float = 1.0
    cv: float = 0.0
    most: int | None = None

    @property
    def fixed(self) -> bool:
        """Whether all are of one length."""
        return self.range_ratio == 1.0 and self.cv == 0.0

    def draw(self, count: int, generator: np.random.Generator) -> Int64:
        """So many lengths, (count,), one token at least."""
        if self.cv > 0:
            spread = math.log1p(self.cv**2)  # of the logarithm: its variance
            drawn = np.rint(generator.lognormal(math.log(self.tokens) - spread / 2, math.sqrt(spread), count))
        elif self.range_ratio < 1.0:
            low = max(1, math.ceil(self.range_ratio * self.tokens))
            drawn = generator.integers(low, self.tokens, count, endpoint=True).astype(np.float64)
        else:
            drawn = np.full(count, float(self.tokens))
        return np.clip(drawn, 1, self.most or MOST_TOKENS).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in the order in which they are sent; arrays are (requests,).

    With ``arrival_s`` they come at those times, which do not fall. Without, ``concurrency`` clients send them in a
    closed loop: all first requests at once at time 0, each next one when an answer is whole.
    """

    prompt: Int64
    answer: Int64
    arrival_s: Float64 | None = None
    concurrency: int = 1

    @property
    def count(self) -> int:
        """Number of requests."""
        return int(self.prompt.size)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return int((self.prompt + self.answer).max(initial=0))

    def at_once(self) -> Requests:
        """The same, all of them sent at time 0, as a rollout does."""
        return replace(self, arrival_s=np.zeros(self.count))

    def closed(self, concurrency: int) -> Requests:
        """The same in a closed loop of so many clients."""
        return replace(self, arrival_s=None, concurrency=concurrency)

    def poisson(self, rate_per_s: float, seed: int = 0) -> Requests:
        """The same, coming independently of each other at a mean rate."""
        gaps = np.random.default_rng([seed, 2]).exponential(1.0 / rate_per_s, self.count)
        return replace(self, arrival_s=np.cumsum(gaps) - gaps[:1])


def drawn(prompt: Lengths | int, answer: Lengths | int, count: int, seed: int = 0) -> Requests:
    """Requests of drawn lengths, one client; the same seed gives the same."""
    prompts, answers = (one if isinstance(one, Lengths) else Lengths(one) for one in (prompt, answer))
    generators = (np.random.default_rng([seed, which]) for which in (0, 1))
    return Requests(prompts.draw(count, next(generators)), answers.draw(count, next(generators)))


COLUMNS = ("prompt", "answer")
"""Of a file of requests; a third, ``arrival_s``, says when each comes."""


def read_requests(path: Path) -> Requests:
    """The requests of a CSV file with the columns ``prompt``, ``answer`` (tokens) and, optional, ``arrival_s``.

    ScenarioError says what stands in which line and what is expected.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = csv.reader(stream)
            header = [name.strip() for name in next(rows, [])]
            if unknown := set(header) - {*COLUMNS, "arrival_s"} or set(COLUMNS) - set(header):
                raise _error(
                    path,
                    1,
                    f"the columns {show(','.join(header))}",
                    f"prompt, answer and, optional, arrival_s, which differs in {', '.join(sorted(unknown))}",
                )
            values: list[list[float]] = []
            for row in rows:
                if row:
                    values.append(_numbers(path, rows.line_num, header, row))
                if len(values) > MOST_REQUESTS:
                    raise _error(path, rows.line_num, "more requests", f"at most {MOST_REQUESTS:,}")
    except (OSError, UnicodeDecodeError, csv.Error) as fault:
        raise ScenarioError(f"{path}: cannot be read as CSV: {fault}") from None
    if not values:
        raise _error(path, 1, "no requests", "one a line")
    columns = dict(zip(header, np.array(values).T, strict=True))
    arrival = columns.get("arrival_s")
    if arrival is not None:
        order = np.argsort(arrival, kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        arrival = columns["arrival_s"]
    return Requests(columns["prompt"].astype(np.int64), columns["answer"].astype(np.int64), arrival)


def _numbers(path: Path, line: int, header: Sequence[str], row: Sequence[str]) -> list[float]:
    if len(row) != len(header):
        raise _error(path, line, f"{len(row)} values", f"{len(header)}, one for each column")
    numbers = []
    for name, text in zip(header, row, strict=True):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if name == "arrival_s":
            if not 0 <= value < MOST_SECONDS:
                raise _error(path, line, f"arrival_s {show(text)}", "seconds from 0 on")
        elif not (1 <= value <= MOST_TOKENS and value == int(value)):
            raise _error(path, line, f"{name} {show(text)}", f"whole tokens, 1 to {MOST_TOKENS:,}")
        numbers.append(value)
    return numbers


def _error(path: Path, line: int, what: str, expected: str) -> ScenarioError:
    return ScenarioError(f"{path}:{line}:1: found {what}, expected {expected}")
