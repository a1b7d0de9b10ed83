"""Processes that share predictions out."""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

from commsim.errors import CommsimError
from study.workers import Workers


def test_a_process_that_ends_is_told_and_not_waited_for() -> None:
    with Workers(2) as workers, pytest.raises(CommsimError, match="ended without a result"):
        list(workers._map(os._exit, [3, 3, 3]))  # type: ignore[arg-type, list-item]


def test_a_process_that_ends_while_another_starts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(self: ProcessPoolExecutor, *args: object, **more: object) -> None:
        raise OSError("handle is closed")

    monkeypatch.setattr(ProcessPoolExecutor, "submit", closed)
    with Workers(2) as workers, pytest.raises(CommsimError, match="ended without a result"):
        list(workers._map(abs, [3, 3, 3]))  # type: ignore[arg-type, list-item]


def test_leaving_early_leaves_no_process() -> None:
    """As an interrupt does: what is worked on is not waited for."""
    with Workers(2) as workers:
        found = iter(workers._map(time.sleep, [0, 600, 600]))  # type: ignore[arg-type, list-item]
        next(found)
    assert not multiprocessing.active_children()


def test_results_come_in_the_order_of_the_work() -> None:
    with Workers(2) as workers:
        assert list(workers._map(abs, [-3, 2, -1])) == [3, 2, 1]  # type: ignore[arg-type, list-item]
