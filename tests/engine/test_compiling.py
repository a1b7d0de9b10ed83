"""The first compilation of an event loop is said; what others compile is not."""

from __future__ import annotations

import logging
import subprocess
import sys

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


def test_what_an_earlier_run_compiled_loads_nothing_of_the_compiler() -> None:
    code = (
        "import sys\n"
        "from commsim.collectives.ring import ring_all_reduce\n"
        "from commsim.engine.evaluate import evaluate\n"
        "from commsim.topology.presets import load_preset\n"
        "evaluate(ring_all_reduce(8, 1 << 20), load_preset('hgx-h100-ndr400', nodes=1), 'event')\n"
        "print(sorted({'numba', 'numba.np.linalg', 'scipy.linalg'} & set(sys.modules)))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(2)]
    assert runs[1].stdout == "['numba']\n"
