"""The first compilation of an event loop is said; what others compile is not."""

from __future__ import annotations

import logging

import numba
import pytest
from numba.core import event

from commsim.engine.loops.compiled import Notice


def _one(x: float) -> float:
    return x + 1.0


def _two(x: float) -> float:
    return x + 2.0


@pytest.mark.parametrize(("module", "lines"), [("commsim.engine.loops.heap", 1), ("somebody.else", 0)])
def test_only_our_own_loops_are_announced_and_once(
    module: str, lines: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for function in (_one, _two):
        monkeypatch.setattr(function, "__module__", module)
    log = logging.getLogger("test_compiling")
    with caplog.at_level(logging.WARNING, log.name), event.install_listener("numba:compile", Notice(log)):
        assert (numba.njit(_one)(1.0), numba.njit(_two)(1.0)) == (2.0, 3.0)
    notices = [record.message for record in caplog.records if record.name == log.name]
    assert len(notices) == lines
