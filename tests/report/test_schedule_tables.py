"""Schedules as text: cells of the table, figures and bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.collectives import registry
from commsim.collectives.prove import Proof
from commsim.report.schedule_tables import proof_table, schedule_stats, stats_table, step_table


@pytest.mark.parametrize(
    ("collective", "algorithm", "n", "found"),
    [
        ("broadcast", "flat", 4, "0→1-3"),
        ("all_reduce", "rabenseifner", 4, "2-3→2+"),
        ("all_reduce", "nvls", 4, "0-3→4+"),
        ("all_to_all", "pairwise", 3, "0↺"),
        ("all_to_all", "bruck", 4, "1,3→1"),
        ("all_to_all", "direct", 12, "12 sets to 12 ranks"),
    ],
)
def test_cells(collective: str, algorithm: str, n: int, found: str) -> None:
    text = step_table(registry.build(collective, algorithm, n, 64 * n), width=1000)
    assert found in text.replace("·", "").replace("  ", " ")


def test_a_schedule_without_moves() -> None:
    text = step_table(registry.build("all_reduce", "ring", 1, 64))
    assert text.splitlines()[0] == "ring all_reduce, 1 rank, 64 B in place: 0 steps, 0 moves of 1 chunks"


@given(st.sampled_from(registry.names()), st.integers(2, 9))
def test_no_schedule_beats_the_bounds(key: tuple[str, str], n: int) -> None:
    stats = schedule_stats(registry.build(*key, n, 24 * n * n))
    assert stats["bytes_over_bound"] is None or stats["bytes_over_bound"] >= 1 - 1e-9
    assert stats["steps_over_bound"] is None or stats["steps_over_bound"] >= 1
    assert stats["longest_chain"] <= stats["steps"]
    assert stats_table(stats)


def test_switches_are_named_with_the_bound() -> None:
    stats = schedule_stats(registry.build("all_reduce", "nvls", 4, 64))
    assert (stats["switches"], stats["bytes_bound"]) == (1, 64)
    assert "with switches that reduce" in stats_table(stats)


def test_proofs_add_up_and_name_reasons() -> None:
    proofs = [Proof("reduce", "flat", 3), Proof("reduce", "chain", 4, {"no nodes": 2}, ["x"])]
    lines = proof_table(proofs).splitlines()
    assert lines[3].split() == ["all", "7", "2", "1", "0.0"]
    assert lines[4] == "not applicable: 2 x no nodes"
