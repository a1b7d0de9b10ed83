"""Different nodes in one cluster, and faults, from a scenario file to its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commsim.bounds import lower_bound_s
from commsim.cli import app
from commsim.collectives.registry import build
from commsim.engine.evaluate import evaluate
from commsim.errors import TopologyError
from commsim.scenario.load import load_scenarios
from commsim.scenario.raw import even_node
from commsim.scenario.run import run
from commsim.scenario.setting import build_topology

_MIXED = """
name: Mixed
topology:
  groups:
    - {preset: hgx-h100-ndr400, nodes: 2}
    - {preset: hgx-a100-4-hdr200, nodes: 3}
  fabric: {kind: fat_tree, nodes_per_leaf: 2}
library: none
workload: [{collective: all_reduce, algorithm: ring, sizes: 64 MiB}]
"""
_FAULTY = """
name: Faulty
topology:
  preset: hgx-h100-ndr400
  nodes: 4
  nodes_per_leaf: 2
  fabric: {spines: 4}
  faults: FAULTS
library: none
workload: [{collective: all_reduce, algorithm: hierarchical, sizes: 64 MiB}]
"""
_NONE, _SLOW, _DEAD, _CUT = (
    "[]",
    "[{nic: [0, 3], bandwidth_factor: 0.25}]",
    "[{link: [leaf0.rail0, spine1], failed: true}, {nic: [1, 2], failed: true}]",
    "[{switch: spine0, failed: true}, {switch: spine1, failed: true}, {switch: spine2, failed: true}, "
    "{switch: spine3, failed: true}]",
)


def _load(tmp_path: Path, text: str, *overrides: str) -> Any:
    (tmp_path / "s.yaml").write_text(text)
    return load_scenarios(tmp_path / "s.yaml", list(overrides))[0]


def _row(tmp_path: Path, text: str, *overrides: str) -> Any:
    return run(_load(tmp_path, text, *overrides)).items[0].rows[0]


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "recursive_doubling", "tree"])
def test_raw_schedules_run_on_different_nodes(tmp_path: Path, algorithm: str) -> None:
    row = _row(tmp_path, _MIXED, f"workload.0.algorithm={algorithm}")
    assert row.time_s > row.lower_bound_s > 0


def test_nodes_of_8_and_4_count_as_nodes_of_4(tmp_path: Path) -> None:
    topology = build_topology(_load(tmp_path, _MIXED))
    assert even_node(topology) == 4
    same = build_topology(_load(tmp_path, _MIXED, "topology={preset: hgx-h100-ndr400, nodes: 3}"))
    assert even_node(same) == 8


def test_the_heading_names_both_kinds(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(_MIXED)
    shown = CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "--no-files"])
    assert shown.exit_code == 0, shown.output
    assert "on 28 ranks: 2 nodes of 8 x H100 SXM5, 3 nodes of 4 x A100 SXM4" in shown.output


def test_nccl_goes_at_the_pace_of_the_weaker_nodes(tmp_path: Path) -> None:
    mixed = run(_load(tmp_path, _MIXED.replace("algorithm: ring, ", ""), "library=nccl")).items[0].rows
    alone = _MIXED.replace("algorithm: ring, ", "")
    for few, many in (("{preset: hgx-a100-4-hdr200, nodes: 5}", "{preset: hgx-h100-ndr400, nodes: 5}"),):
        weak, strong = (run(_load(tmp_path, alone, "library=nccl", f"topology={t}")).items[0].rows for t in (few, many))
        for slow, both, quick in zip(weak, mixed, strong, strict=True):
            assert both.lower_bound_s is not None
            assert both.time_s > max(both.lower_bound_s, quick.time_s)
            assert both.time_s == pytest.approx(slow.time_s, rel=1)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all", "gather", "scatter", "broadcast"])
@pytest.mark.parametrize("text", [_MIXED, _FAULTY.replace("FAULTS", _SLOW), _FAULTY.replace("FAULTS", _DEAD)])
def test_no_schedule_beats_the_bound_of_a_mixed_or_faulty_machine(tmp_path: Path, text: str, collective: str) -> None:
    topology = build_topology(_load(tmp_path, text))
    algorithm = {"all_to_all": "pairwise", "gather": "flat", "scatter": "flat", "broadcast": "binomial"}
    n = topology.world_size
    schedule = build(collective, algorithm.get(collective, "ring"), n, n << 16)
    bound = lower_bound_s(collective, n << 16, topology)
    assert evaluate(schedule, topology, "event").makespan_s >= bound.seconds * (1 - 1e-12)
    assert bound.bandwidth_s > 0


def test_the_bound_of_a_mixed_machine_by_hand(tmp_path: Path) -> None:
    """All-to-all of S per rank: a node of g ranks sends g (28 - g) / 28 S through its NICs; 8 x 50 and 4 x 25 GB/s."""
    topology = build_topology(_load(tmp_path, _MIXED))
    nics = [8 * 48e9, 4 * 24e9]  # a NIC gives no more than its PCIe
    bound = lower_bound_s("all_to_all", 1 << 26, topology)
    capacity = topology.nics_of_nodes
    assert capacity.tolist() == [8, 8, 4, 4, 4]
    need = [8 * 20 / 28 * 2**26, 4 * 24 / 28 * 2**26]
    assert bound.bandwidth_s == pytest.approx(max(n / c for n, c in zip(need, nics, strict=True)), rel=0.05)


def test_a_slow_card_slows_and_a_dead_one_is_gone_round(tmp_path: Path) -> None:
    plain, slow, dead = (_row(tmp_path, _FAULTY.replace("FAULTS", f)) for f in (_NONE, _SLOW, _DEAD))
    assert slow.time_s > 1.5 * plain.time_s
    assert dead.time_s > plain.time_s
    assert dead.lower_bound_s > plain.lower_bound_s


def test_where_no_way_is_left_the_cut_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"from node0 to node2; the cut is made of failed links: leaf0\.rail0"):
        run(_load(tmp_path, _FAULTY.replace("FAULTS", _CUT)))


def test_nccl_names_the_slow_card(tmp_path: Path) -> None:
    text = _FAULTY.replace("FAULTS", _SLOW).replace("algorithm: hierarchical, ", "").replace("none", "nccl")
    healthy, slow = (run(_load(tmp_path, text.replace(_SLOW, faults))).items[0].rows[-1] for faults in (_NONE, _SLOW))
    assert slow.time_s > 1.5 * healthy.time_s
    assert (slow.busiest_link, slow.slow_place) == ("NIC", "node0.nic3 -> leaf0.rail3")
