"""A `commsim explore` that runs beside a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Explorer:
    """A running `commsim explore` and its address."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "commsim", "explore", "--no-browser", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("commsim explore: http://127.0.0.1:"), line
        self.address = line.split()[2]

    def end(self) -> None:
        """Ends it as Ctrl-C does."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()
