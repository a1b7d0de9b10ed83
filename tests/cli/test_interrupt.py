"""Ctrl-C where a library swallows it: still an interrupt, not a fault of ours."""

from __future__ import annotations

import subprocess
import sys

_SWALLOWED = """
import os, signal, time
import commsim.cli as cli

class Callback:
    def __del__(self):  # what is raised here Python can only report
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

def app(**how):
    callback = Callback()
    del callback
    raise RuntimeError("no compiled object yet")

cli.app = app
cli.main()
"""


def test_an_interrupt_that_a_callback_swallows_is_still_one() -> None:
    done = subprocess.run([sys.executable, "-c", _SWALLOWED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 130
    assert done.stderr == "commsim: error: interrupted; files written so far are whole\n"
