"""The page on dumps is what its record says, and the record meets its bars."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dumps_script", ROOT / "validation" / "dumps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ROOT / "validation" / "dumps.json").read_text(encoding="utf-8"))
    return loaded


def test_the_page_is_what_the_record_says(script: ModuleType, record: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "accuracy-dumps.md").read_text(encoding="utf-8") == script.page(record)


def test_rank_call_and_cause_are_named_and_waiting_is_right(record: dict[str, Any]) -> None:
    """The bars: all named, waiting within 5 % of the truth, on dumps of real ranks and in NCCL's forms.

    But for late ranks that cost less than `--late` of a recording that a slow start made long.
    """
    scores = record["scores"]
    assert {score["source"] for score in scores} == {"gloo, 4 ranks", "NCCL's forms"}
    unnamed = [score for score in scores if not score["named"]]
    assert {score["wrong"] for score in unnamed} <= {"late"}
    assert len(unnamed) <= 0.005 * len(scores)
    assert max(abs(error) for score in scores for error in score["errors"]) < 0.05


def test_hostile_files_do_no_harm(record: dict[str, Any]) -> None:
    """The bars: no other exception, at most ten seconds and 500 MiB, nothing executed."""
    rows = record["hostile"]
    assert sum(row["files"] for row in rows) > 16_000
    assert sum(row["failed"] for row in rows) == 0
    assert max(row["longest_s"] for row in rows) <= 10
    assert max(row["peak_mib"] for row in rows) <= 500
    assert record["executed"] is False
