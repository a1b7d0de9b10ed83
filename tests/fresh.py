"""One command of commsim in a process of its own: its end, what it prints and loads, and its peak of memory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

_PROBE = """
import json, sys
from commsim.cli import main
sys.argv = ["commsim", *sys.argv[1:]]
try:
    status = main()
except SystemExit as exit:
    status = exit.code
peak = "0 0"
if sys.platform == "linux":  # of its own: what a fork inherits does not count
    with open("/proc/self/status") as own:
        peak = next(line for line in own if line.startswith("VmHWM"))
print(json.dumps([status or 0, sorted(sys.modules), int(peak.split()[1])]), file=sys.stderr)
"""


@dataclass(frozen=True)
class Run:
    """Exit status, standard output, standard error, modules loaded at the end, KiB at the peak (0: not known)."""

    status: int
    printed: str
    said: str
    modules: frozenset[str]
    peak_kib: int


def fresh(*arguments: str) -> Run:
    """Runs a command of the command line."""
    command = [sys.executable, "-c", _PROBE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    said, _, last = done.stderr.rstrip("\n").rpartition("\n")
    status, modules, peak = json.loads(last)
    return Run(status, done.stdout, said, frozenset(modules), peak)
