"""One request as a scheduler holds it, what a scheduler tells of it, and the log of what was done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from commsim.generation.step_table import Float64


@dataclass(slots=True, eq=False)
class Request:
    """A request in an engine: tokens to read before the next one is made, tokens to make, and what has been done."""

    number: int
    prompt: int
    answer: int
    done: int = 0  # tokens of the prompt that chunks have read
    rank: int = 0
    held: float = 0.0  # bytes of the cache
    joined_at: int = 0  # in decode steps of its engine
    ends_at: int = 0
    home: tuple[Any, Request] | None = None  # the scheduler that read its prompt, if another one decodes


@dataclass(frozen=True)
class Hooks:
    """What a scheduler tells: a request's first token, its end, and with ``prefilled`` that others should decode it.

    ``fetch``: the event of the end of a cache's way to this engine, for requests that were read elsewhere.
    """

    first: Callable[[Request], None]
    end: Callable[[Request], None]
    prefilled: Callable[[Any, Request], None] | None = None
    fetch: Callable[[Any, Request], Any] | None = None


LogRow = tuple[float, float, int, int, int, int, float, float]
"""A run of equal steps: start, end, steps, sequences, tokens of prompts, requests that wait for a place, and bytes in
the cache at its start and its end."""


@dataclass
class Log:
    """What an engine did: a row for each run of equal steps, seconds by part, tokens made, and preemptions."""

    rows: list[LogRow] = field(default_factory=list)
    parts: Float64 | None = None
    tokens: int = 0
    preemptions: int = 0

    def add(self, row: LogRow, seconds: Float64) -> None:
        """A run of steps and its seconds by part."""
        self.rows.append(row)
        self.parts = seconds if self.parts is None else self.parts + seconds
