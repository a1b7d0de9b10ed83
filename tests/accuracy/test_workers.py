"""Processes that share predictions out."""

from __future__ import annotations

import os

import pytest

from commsim.accuracy.workers import Workers
from commsim.errors import CommsimError


def test_a_process_that_ends_is_told_and_not_waited_for() -> None:
    with Workers(2) as workers, pytest.raises(CommsimError, match="ended without a result"):
        list(workers._map(os._exit, [3, 3, 3]))  # type: ignore[arg-type, list-item]


def test_results_come_in_the_order_of_the_work() -> None:
    with Workers(2) as workers:
        assert list(workers._map(abs, [-3, 2, -1])) == [3, 2, 1]  # type: ignore[arg-type, list-item]
