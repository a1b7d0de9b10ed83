"""The library `synthesized`: collectives at the limit, which no library beats, alone and for many groups at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.bounds import lower_bound_s, nic_seconds
from commsim.collectives.semantics import NCCL_TESTS
from commsim.nccl.predict import Options
from commsim.planner.explain import explain
from commsim.report.explain import bound_words
from commsim.scenario.load import load_scenarios
from commsim.scenario.perfect import PerfectGroups
from commsim.scenario.run import prepare, run
from commsim.topology.presets import load_preset
from commsim.training.communicators import SEND
from commsim.training.nccl_groups import NcclGroups

MACHINE = load_preset("hgx-h100-ndr400", nodes=4)
RAILS = np.arange(32).reshape(4, 8).T  # a GPU of each node: eight groups that share all NICs
NODES = np.arange(32).reshape(4, 8)


@settings(max_examples=30)
@given(st.sampled_from(sorted(NCCL_TESTS)), st.integers(1, 1 << 32), st.sampled_from([RAILS, NODES, RAILS[:1]]))
def test_no_library_is_quicker(collective: str, nbytes: int, groups: np.ndarray) -> None:
    perfect, nccl = PerfectGroups(MACHINE), NcclGroups(MACHINE, Options(mode="single"))
    assert 0 < perfect(collective, nbytes, groups) <= nccl(collective, nbytes, groups) * (1 + 1e-9)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
def test_groups_that_share_all_nics_take_what_all_of_them_send(collective: str) -> None:
    """One group may have all NICs of a node, over NVLink; eight at once have one each."""
    size, perfect = 1 << 30, PerfectGroups(MACHINE)
    alone = perfect(collective, size, RAILS[:1])
    rank_of_all = 8 * max(side.max() for side in nic_seconds(collective, size, MACHINE, RAILS[0]))
    assert perfect(collective, size, RAILS) == pytest.approx(rank_of_all)
    assert alone < rank_of_all


def test_the_nics_of_one_group_are_the_cut_of_the_bound() -> None:
    for collective in ("all_gather", "broadcast", "all_reduce", "gather", "all_to_all"):
        bound = lower_bound_s(collective, 1 << 30, MACHINE, in_network=True)
        sides = nic_seconds(collective, 1 << 30, MACHINE, np.arange(32))
        assert max(side.max() for side in sides) <= bound.bandwidth_s * (1 + 1e-12)
        if bound.bandwidth_at == "node NICs":
            assert max(side.max() for side in sides) == pytest.approx(bound.bandwidth_s)


def test_what_lies_on_the_ports_takes_the_time_of_the_nics() -> None:
    perfect = PerfectGroups(MACHINE)
    load = perfect.load("all_gather", 1 << 30, RAILS)
    assert load.busiest_s == pytest.approx(perfect("all_gather", 1 << 30, RAILS))
    assert not perfect.load("all_gather", 1 << 30, NODES).link.size
    assert perfect.load(SEND, 1 << 20, np.array([[0, 8]])).nbytes.max() == 1 << 20


def test_a_dead_nic_is_felt() -> None:
    hurt = load_preset("hgx-h100-ndr400", nodes=4, faults=[{"nic": [1, 3], "failed": True}])
    sound, broken = (PerfectGroups(m)("all_gather", 1 << 30, RAILS) for m in (MACHINE, hurt))
    assert broken == pytest.approx(sound * 8 / 7)


def _answers(path: Path, *changes: str) -> tuple[Any, ...]:
    return run(prepare(load_scenarios(path, list(changes))[0])).answers


def _scenario(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "perfect.yaml"
    path.write_text(text)
    return path


def test_rows_are_their_bound(tmp_path: Path) -> None:
    text = """
name: perfect
topology: {preset: hgx-h100-ndr400, nodes: 2}
library: synthesized
workload:
  - {collective: all_reduce, sizes: 8B .. 1GiB x1024}
  - {collective: all_to_all, sizes: 1KiB .. 1GiB x1024}
"""
    path = _scenario(tmp_path, text)
    for ours, theirs in zip(_answers(path), _answers(path, "library=nccl"), strict=True):
        for row, other in zip(ours.rows, theirs.rows, strict=True):
            assert row.time_s == row.lower_bound_s
            assert other.lower_bound_s * (1 - 1e-9) <= row.time_s <= other.time_s


def test_settings_without_effect_are_refused(tmp_path: Path) -> None:
    text = """
name: perfect
topology: {preset: hgx-h100}
library: {name: synthesized, version: 2.20.5}
engine: event
workload: [{collective: all_reduce, sizes: 1MiB, algorithm: ring}]
"""
    with pytest.raises(Exception, match=r"found version with library synthesized") as caught:
        load_scenarios(_scenario(tmp_path, text))
    assert "Traceback" not in str(caught.value)
    for wrong in ("library=synthesized", "engine=event"):
        with pytest.raises(Exception, match="synthesized"):
            load_scenarios(_scenario(tmp_path, text), ["library=synthesized", wrong])


def test_explain_says_what_a_step_would_gain(tmp_path: Path) -> None:
    text = """
name: step
topology: {preset: hgx-h100-ndr400, nodes: 2}
workload:
  - training: {model: llama-3-8b, mesh: {tp: 8, dp: 2}, global_batch_size: 4, micro_batch_size: 1, seq_len: 2048}
"""
    path = _scenario(tmp_path, text)
    (perfect,) = _answers(path, "library=synthesized")
    result = run(prepare(load_scenarios(path)[0]))
    (why,) = explain(result)
    assert why.perfect_s == pytest.approx(perfect.step_s)
    assert perfect.step_s < why.seconds
    assert any("No collectives make it quicker" in line for line in bound_words(why))


def test_explain_says_what_faults_cost_both(tmp_path: Path) -> None:
    text = """
name: hurt
topology: {preset: dgx-a100-hdr200, nodes: 2, faults: [{nic: [1, 3], failed: true}]}
workload: [{collective: all_reduce, sizes: 1GiB}]
"""
    result = run(prepare(load_scenarios(_scenario(tmp_path, text))[0]))
    (why,) = explain(result)
    assert why.sound is not None
    (sound,) = _answers(_scenario(tmp_path, text.replace("[{nic: [1, 3], failed: true}]", "[]")))
    row = sound.rows[0]
    assert why.sound[0] == row.time_s
    assert row.lower_bound_s <= why.sound[1] <= why.limit_s
    assert any("faults it takes" in line for line in bound_words(why))
