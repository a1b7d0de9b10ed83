"""What is said of published raw logs: nothing wrong in silence. Needs the shared data."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "validation" / "raw_logs.py"


def load_script() -> ModuleType:
    """The script as a module; it is no part of a package."""
    spec = importlib.util.spec_from_file_location("raw_logs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["raw_logs"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_of_published_raw_logs_nothing_wrong_is_said_in_silence() -> None:
    script = load_script()
    if not (script.SHARED / "nccl" / "raw").is_dir():
        pytest.skip("no shared data")
    rows = [script.said_of(path, truth) for path, truth in script.raw_logs()]
    assert [row.log for row in rows if row.wrong] == []
    assert sum(row.word == "settled" for row in rows) >= 13
    asked = [row for row in rows if row.word == "asked"]
    assert sum(row.place is not None for row in asked) >= 0.85 * len(asked)
