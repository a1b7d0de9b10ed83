"""`engine` and `contention` in a scenario without a library: which level answers, and where the two views differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commsim.errors import InfeasibleError, ScenarioError, ScheduleError
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run

_TEXT = """
name: Engines
topology: {{preset: hgx-h100-ndr400, nodes: 4, oversubscription: 2, nodes_per_leaf: 2}}
library: {library}
workload: [{{collective: all_reduce, algorithm: {algorithm}, sizes: 1 MiB}}]
"""


def _run(tmp_path: Path, algorithm: str, *overrides: str, library: str = "none") -> Any:
    file = tmp_path / "s.yaml"
    file.write_text(_TEXT.format(algorithm=algorithm, library=library))
    return run(load_scenarios(file, list(overrides))[0])


@pytest.mark.parametrize("contention", ["fifo", "fair"])
def test_a_ring_takes_the_same_on_every_level(tmp_path: Path, contention: str) -> None:
    times = {}
    for level in ("wavefront", "fold", "event"):
        row = _run(tmp_path, "ring", f"engine={level}", f"contention={contention}").items[0].rows[0]
        assert row.level == ("fair" if (level, contention) == ("event", "fair") else level)
        times[level] = row.time_s
    assert len({f"{t:.9g}" for t in times.values()}) == 1
    assert _run(tmp_path, "ring", f"contention={contention}").items[0].rows[0].level == "wavefront"


def test_a_tree_gives_both_views_of_contention(tmp_path: Path) -> None:
    result = _run(tmp_path, "tree", "workload.0.sizes=64 MiB")
    said = [w for w in result.warnings if "with FIFO links and" in w]
    assert len(said) == 1
    assert said[0].startswith("tree all_reduce of 64 MiB: ")


def test_a_hierarchical_all_reduce_folds_under_fair_sharing_only(tmp_path: Path) -> None:
    """Its rule sends fewer, larger messages than its rows: 2,109 us where the rows take 1,715 (256 MiB, 4 nodes)."""
    with pytest.raises(
        InfeasibleError, match="no folding for hierarchical all_reduce here: with FIFO links only a ring"
    ):
        _run(tmp_path, "hierarchical", "engine=fold")
    times = [
        _run(tmp_path, "hierarchical", "contention=fair", f"engine={e}").items[0].rows[0] for e in ("fold", "event")
    ]
    assert times[0].level == "fold"
    assert times[0].time_s == pytest.approx(times[1].time_s, rel=1e-9, abs=0)


def test_a_level_that_does_not_apply_says_why(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match="no wavefront for tree all_reduce here"):
        _run(tmp_path, "tree", "engine=wavefront")


@pytest.mark.parametrize("override", ["engine=fold", "contention=fair"])
def test_nccl_knows_neither_folding_nor_fair_sharing(tmp_path: Path, override: str) -> None:
    with pytest.raises(ScenarioError, match="with library nccl, expected it only with library none"):
        _run(tmp_path, "null", override, library="nccl")


def test_a_run_that_would_not_fit_is_refused_before_its_rows_are_built(tmp_path: Path) -> None:
    """16,384 ranks send 537 million messages round a ring; the estimate comes from 512 and 1,024 ranks."""
    change = ("topology.nodes=2048", "engine=event", "workload.0.sizes=1 GiB")
    with pytest.raises(
        InfeasibleError, match=r"53\d,\d+,\d+ chunk moves needs about .* GiB.*engine: wavefront for rings"
    ):
        _run(tmp_path, "ring", *change)
    assert _run(tmp_path, "ring", change[0], change[2]).items[0].rows[0].level == "wavefront"


def test_leaving_out_what_cannot_win_changes_neither_winner_nor_runner_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {}
    for few in (100_000, 100):
        monkeypatch.setattr("commsim.scenario.raw.FEW_MESSAGES", few)
        change = ("topology.oversubscription=1", "workload.0.sizes=1 KiB .. 64 MiB x64")
        rows[few] = _run(tmp_path, "auto", *change).items[0].rows
    assert not any(row.left_out for row in rows[100_000])
    assert all(row.left_out for row in rows[100])
    for whole, some in zip(rows[100_000], rows[100], strict=True):
        assert (whole.algorithm, whole.time_s) == (some.algorithm, some.time_s)
        assert (whole.runner_up, whole.runner_up_s) == (some.runner_up, some.runner_up_s)
        times = dict(whole.candidates)
        assert set(times) == {name for name, _ in (*some.candidates, *some.left_out)}
        for name, bound in some.left_out:
            assert whole.runner_up_s < bound <= times[name] * (1 + 1e-9)


def test_what_adds_in_switches_that_are_not_there_is_not_applicable(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match="nvls all_reduce is not applicable, because an NVSwitch reaches"):
        _run(tmp_path, "nvls")
