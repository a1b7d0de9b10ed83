"""Logs, tables and clusters that were damaged on purpose are refused or answered, and nothing else."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from study import log_hostile


@pytest.mark.slow
def test_a_few_mutants_and_the_floods_do_no_harm(checkout: Path, tmp_path: Path) -> None:
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # of this process, which its forks begin with
    logs = sorted((checkout / "tests" / "data" / "logs").glob("*.log"))
    rows = [
        log_hostile.of_logs(logs, 40, tmp_path / "logs"),
        log_hostile.of_tables(logs, 20, tmp_path / "tables"),
        *log_hostile.of_doctor(logs, 20, tmp_path / "doctor"),
        log_hostile.of_floods(logs[0], tmp_path / "floods"),
    ]
    assert [row for row in rows if row.failed] == []
    assert [row.files for row in rows] == [40, 20, 20, 20, 20, 17]
    assert max(row.peak_mib for row in rows) < held + 500
