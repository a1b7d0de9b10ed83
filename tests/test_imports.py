"""Starting the command line stays cheap: nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from fresh import fresh

from commsim.cli import app
from commsim.cli.commands import COMMANDS
from commsim.scenario.workload.registry import WORK, work_of

HEAVY = ("numba", "pandas", "matplotlib", "scipy", "torch", "networkx", "simpy", "jinja2", "rich")


def _run(*arguments: str) -> tuple[int, set[str], str]:
    """Exit status, modules loaded at the end, and standard output of one command in a new process."""
    done = fresh(*arguments)
    return done.status, set(done.modules), done.printed


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["compare", "--help"], ["topo", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    status, modules, printed = _run(*arguments)
    assert status == 0
    assert "Usage" in printed
    assert not modules & set(HEAVY)


def test_a_run_of_one_collective_loads_only_what_it_needs(tmp_path: Path) -> None:
    """Bars: 101 modules of commsim for NCCL's closed form and its bound, of which none brings a heavy package."""
    status, modules, printed = _run("run", "allreduce-8-h100", "--json", "--out", str(tmp_path))
    assert status == 0
    assert json.loads(printed)["results"][0]["items"][0]["rows"]
    assert not modules & set(HEAVY)
    own = {name for name in modules if name.split(".")[0] == "commsim"}
    assert len(own) <= 101, sorted(own)
    parts = {name.split(".")[1] for name in own if "." in name}
    assert not parts & {"training", "chakra", "planner", "gloo", "engine", "lab", "accuracy"}


def test_every_command_has_its_line_in_the_help() -> None:
    """The names and lines of ``--help`` stand in a table, so that no command is imported for them."""
    _, modules, printed = _run("--help")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert list(commands) == list(COMMANDS)
    assert all(commands[name].help and f"  {name} " in printed for name in COMMANDS)
    assert not {f"commsim.cli.{module.partition(':')[0]}" for module, _ in COMMANDS.values()} & modules


def test_the_table_of_workloads_says_what_the_classes_say() -> None:
    assert [(work_of(key).key(), work_of(key).kind) for key in WORK] == [(key, kind) for key, (kind, _) in WORK.items()]


def test_the_probe_sees_an_import() -> None:
    """The test above could not fail if the probe did not list what is loaded."""
    _, modules, _ = _run("--help")
    assert {"typer", "commsim.cli"} <= modules


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, json, commsim; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert not set(json.loads(done.stdout)) & {*HEAVY, "numpy", "pydantic"}


def test_only_validate_loads_the_study_of_published_logs() -> None:
    """It lies outside the package: the command finds it in a checkout."""
    package = Path(__file__).parent.parent / "commsim"
    named = [p.name for p in package.rglob("*.py") if re.search(r"\bstudy\.command\b", p.read_text(encoding="utf-8"))]
    assert named == ["validate.py"]
    _, modules, _ = _run("validate", "--help")
    assert not any(name.split(".")[0] == "study" for name in modules)
    _, modules, _ = _run("validate", "training", "--mode", "none")
    assert "study.command" in modules
