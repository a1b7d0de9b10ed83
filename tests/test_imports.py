"""Starting the command line stays cheap: nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("numba", "pandas", "matplotlib", "scipy", "torch", "networkx", "simpy", "jinja2")

_PROBE = """
import json, sys
from commsim.cli import main
sys.argv = ["commsim", *sys.argv[1:]]
try:
    status = main()
except SystemExit as exit:
    status = exit.code
print(json.dumps([status or 0, sorted(sys.modules)]), file=sys.stderr)
"""


def _run(*arguments: str) -> tuple[int, set[str], str]:
    """Exit status, modules loaded at the end, and standard output of one command in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    status, modules = json.loads(done.stderr.splitlines()[-1])
    return status, set(modules), done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["compare", "--help"], ["topo", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    status, modules, printed = _run(*arguments)
    assert status == 0
    assert "Usage" in printed
    assert not modules & set(HEAVY)


def test_the_probe_sees_an_import() -> None:
    """The test above could not fail if the probe did not list what is loaded."""
    _, modules, _ = _run("--help")
    assert {"typer", "commsim.cli"} <= modules


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, json, commsim; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert not set(json.loads(done.stdout)) & {*HEAVY, "numpy", "pydantic"}


def test_a_user_s_calibration_does_not_load_the_study_of_published_logs() -> None:
    probe = "import sys, commsim.accuracy.calibration, commsim.accuracy.calibration_models; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=120)
    study = {f"commsim.accuracy.{name}" for name in ("cases", "index", "machines", "releases", "validate", "modes")}
    assert not study & set(done.stdout.split())
