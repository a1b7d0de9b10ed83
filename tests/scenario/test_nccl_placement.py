"""Placements: which ranks they take, what they refuse, and what NCCL's time makes of them, by hand."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import commsim as cs
from commsim.bounds import lower_bound_s
from commsim.cli import app
from commsim.errors import ScenarioError
from commsim.nccl.predict import Options, Predictor
from commsim.planner.explain import explain
from commsim.report.explain import bound_words, explain_lines, to_dict
from commsim.scenario.load import load_scenarios, resolved_yaml, scenario_hash
from commsim.scenario.placement import by_leaf, placed
from commsim.scenario.run import prepare
from commsim.topology.presets import load_preset

GIB = 1 << 30
MACHINE = "{preset: hgx-h100-ndr400, nodes: 16, nodes_per_leaf: 4, oversubscription: 4}"
THIN = load_preset("hgx-h100-ndr400", nodes=16, nodes_per_leaf=4, oversubscription=4)
"""The uplinks of a leaf of four nodes carry on each rail what one card does, 50 GB/s."""

RING = Options(version=(2, 26, 2), algorithm="ring", protocol="Simple", channels=16)


def _file(
    folder: Path, placement: str, *, work: str = "{collective: all_gather, sizes: 1 GiB}", more: str = ""
) -> Path:
    path = folder / "s.yaml"
    path.write_text(f"name: placed\ntopology: {MACHINE}\nplacement: {placement}\nworkload:\n  - {work}\n{more}")
    return path


def _nodes(folder: Path, placement: str) -> tuple[int, ...]:
    ready = prepare(load_scenarios(_file(folder, placement))[0])
    assert ready.placed is not None
    return ready.placed.nodes


def _order(nodes: Any, gpus: Any = range(8)) -> list[int]:
    return [8 * node + gpu for node in nodes for gpu in gpus]


def _seconds(ranks: list[int] | None, collective: str = "all_gather", options: Options = RING, t: Any = THIN) -> float:
    return Predictor(t, options, None, ranks).predict(collective, GIB).time_s


# -- which nodes ---------------------------------


@pytest.mark.parametrize(
    ("placement", "nodes"),
    [
        ("{nodes: [3, 0, 7 .. 9]}", (3, 0, 7, 8, 9)),
        ("{nodes: 0 .. 15 +5}", (0, 5, 10, 15)),
        ("{nodes: [9, 1, 2], count: 2}", (9, 1)),
        ("{count: 3}", (0, 1, 2)),
        ("{by: leaf, count: 5}", (0, 1, 2, 3, 4)),
        ("{free: free.txt}", (13, 2, 4, 5, 6)),
        ("{free: free.txt, count: 2}", (13, 2)),
        ("{free: free.txt, by: leaf}", (4, 5, 6, 2, 13)),  # three under one leaf go first
    ],
)
def test_the_nodes_of_a_placement(tmp_path: Path, placement: str, nodes: tuple[int, ...]) -> None:
    (tmp_path / "free.txt").write_text("# busy today\n13\n\n  2 # rack A\n4 .. 6\n")
    assert _nodes(tmp_path, placement) == nodes


def test_a_seed_shuffles_and_another_shuffles_otherwise(tmp_path: Path) -> None:
    one, again, other = (_nodes(tmp_path, f"{{by: random, seed: {seed}}}") for seed in (1, 1, 2))
    assert one == again != other
    assert sorted(one) == sorted(other) == list(range(16))


def test_ranks_are_those_of_the_gpus_in_their_order(tmp_path: Path) -> None:
    (scenario,) = load_scenarios(_file(tmp_path, "{nodes: [2, 0], gpus: [7, 1]}"))
    where = placed(scenario.placement, scenario.free_path(), scenario.document, THIN)
    assert where is not None
    assert where.ranks == (23, 17, 7, 1)


# -- what is refused ---------------------------------

_REFUSED = {
    "{}": "3:12 placement: found nothing placed, expected nodes, by, free, count or gpus",
    "{nodes: [1, 1]}": "3:20 placement.nodes: found node 1 twice, expected each node once",
    "{nodes: []}": "placement.nodes: found an empty list, expected nodes such as 5",
    "{nodes: [x]}": "placement.nodes: found 'x', expected nodes such as 5",
    "{nodes: 9 .. 2}": "expected its first node not above its last",
    "{nodes: [2, 16]}": "3:20 placement.nodes: found node 16, expected one of the nodes 0..15",
    "{nodes: [2], by: leaf}": "3:29 placement.by: found by beside nodes, expected one of them",
    "{nodes: [2], free: none.txt}": "placement.free: found no file 'none.txt', expected one of free nodes",
    "{by: rack}": "placement.by: found 'rack', expected",
    "{seed: 3, count: 2}": "3:19 placement.seed: found a seed without by, expected by: random",
    "{nodes: [2, 3], count: 3}": "3:35 placement.count: found 3 nodes to take, expected at most 2",
    "{gpus: [0, 8]}": "3:19 placement.gpus: found GPU 8, expected one of 0..7, which node 0 has",
    "{gpus: [1, 1]}": "placement.gpus: found GPU 1 twice, expected each GPU once",
    "{count: 0}": "placement.count: found 0",
}


@pytest.mark.parametrize(("placement", "message"), list(_REFUSED.items()))
def test_bad_input_is_refused_at_its_place(tmp_path: Path, placement: str, message: str) -> None:
    with pytest.raises(ScenarioError) as found:
        _nodes(tmp_path, placement)
    assert message in str(found.value)


def test_all_bad_lines_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "free.txt").write_text("3\nfour\n 2 .. 4\n16 # not there\n9 .. 7\n")
    with pytest.raises(ScenarioError) as found:
        _nodes(tmp_path, "{free: free.txt}")
    lines = str(found.value).splitlines()
    assert [line.partition("free.txt:")[2].partition(" ")[0] for line in lines] == ["2:1:", "3:2:", "4:1:", "5:1:"]
    assert "found 'four', expected nodes such as" in lines[0]
    assert "found node 3 again (first on line 1), expected each node once" in lines[1]
    assert "found node 16, expected one of the nodes 0..15" in lines[2]


def test_a_file_without_nodes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "free.txt").write_text("# none\n")
    with pytest.raises(ScenarioError, match=r"free\.txt: found no node, expected a node or a range a line"):
        _nodes(tmp_path, "{free: free.txt}")


@pytest.mark.parametrize(
    ("work", "more", "beside"),
    [
        ("{collective: all_gather, sizes: 1 GiB}", "library: none", "with library none"),
        ("{collective: all_reduce, sizes: 1 GiB}", "library: gloo", "with library gloo"),
        ("{training: {model: gpt2-1558m, global_batch_size: 128, mesh: {dp: 128}}}", "", "beside training"),
    ],
)
def test_elsewhere_a_placement_is_refused_at_its_key(tmp_path: Path, work: str, more: str, beside: str) -> None:
    with pytest.raises(ScenarioError, match=f"3:12 placement: found a placement {beside}, expected it only of"):
        load_scenarios(_file(tmp_path, "{by: leaf}", work=work, more=more))


@pytest.mark.parametrize("command", [["tune"], ["calibrate", "--from", "8B=20us"]])
def test_what_is_about_all_ranks_takes_no_placement(tmp_path: Path, command: list[str]) -> None:
    words = [command[0], str(_file(tmp_path, "{count: 2}")), *command[1:]]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, ScenarioError)
    assert "3:12 placement: found a placement, expected none here" in str(done.exception)


def test_measured_files_are_held_against_the_ranks_that_are_placed(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("size_bytes,oop_time_us\n1048576,100\n")
    (tmp_path / "INDEX_m.csv").write_text("slug,collective,n_ranks\nm,all_gather,128\n")
    with pytest.raises(ScenarioError, match="was measured on 128 ranks, not 16 as the placement takes"):
        prepare(load_scenarios(_file(tmp_path, "{count: 2}", more="compare: [m.csv]\n"))[0])


# -- what it costs ---------------------------------


def test_a_shuffled_ring_has_the_share_of_the_uplinks_that_can_be_counted() -> None:
    """In the order 0, 4, 8, 12, 1, ... all four nodes of a leaf send out of it: a quarter of their cards' rate each."""
    spread = [leaf * 4 + k for k in range(4) for leaf in range(4)]
    pairs = [leaf * 4 + 2 * k + i for k in range(2) for leaf in range(4) for i in range(2)]  # two of four send out
    received = GIB * 127 / 128
    least = [edges * received / (8 * 50e9) for edges in (4, 2)]
    four, two, one = (_seconds(_order(nodes)) for nodes in (spread, pairs, range(16)))
    assert least[0] < four < 1.15 * least[0]
    assert least[1] < two < 1.15 * least[1]
    assert least[0] - least[1] < four - two < 1.1 * (least[0] - least[1])
    assert one < two  # one edge leaves each leaf: the uplinks carry it as the cards do


@settings(max_examples=25, deadline=None)
@given(nodes=st.permutations(range(16)), count=st.integers(2, 16))
def test_no_order_is_quicker_than_leaf_by_leaf(nodes: list[int], count: int) -> None:
    some = nodes[:count]
    packed = by_leaf(THIN, np.array(some)).tolist()
    for collective in ("all_gather", "all_reduce"):
        assert _seconds(_order(some), collective) >= (1 - 1e-9) * _seconds(_order(packed), collective)


@settings(max_examples=10, deadline=None)
@given(within=st.tuples(*[st.permutations(range(4))] * 4))
def test_the_order_inside_a_leaf_changes_no_ring(within: tuple[list[int], ...]) -> None:
    nodes = [4 * leaf + k for leaf, order in enumerate(within) for k in order]
    assert _seconds(_order(nodes)) == pytest.approx(_seconds(None), rel=1e-9)


@pytest.mark.parametrize("algorithm", ["tree", "nvls_tree"])
def test_trees_of_all_ranks_are_the_same_whichever_way_they_are_looked_at(algorithm: str) -> None:
    """GPUs in the other order make the machine no plain one; by symmetry nothing else changes."""
    options = Options(version=(2, 26, 2), algorithm=algorithm, protocol="Simple")
    turned = _order(range(16), range(7, -1, -1))
    assert _seconds(turned, "all_reduce", options) == pytest.approx(_seconds(None, "all_reduce", options), rel=1e-9)


@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "all_to_all", "send_recv"])
def test_nodes_under_one_leaf_are_a_machine_of_their_own(collective: str) -> None:
    alone, options = load_preset("hgx-h100-ndr400", nodes=3), Options(version=(2, 26, 2))
    part = _seconds(_order([5, 7, 4]), collective, options)
    assert part == pytest.approx(_seconds(None, collective, options, alone), rel=1e-9)


def test_a_scattered_all_to_all_feels_the_uplinks_only_where_its_own_nodes_fill_them() -> None:
    options = Options(version=(2, 26, 2))
    lone, packed, halves = (
        _seconds(_order(nodes), "all_to_all", options)
        for nodes in ([0, 4, 8, 12], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7])
    )
    # A node by itself under a leaf has uplinks for all of its cards.
    assert lone == pytest.approx(packed, rel=1e-9)
    # 4 x 4 pairs of nodes exchange 64 parts of GIB / 64 over uplinks as wide as the cards of one node.
    least = 4 * 4 * 64 * (GIB / 64) / (8 * 50e9)
    assert least < halves < 1.2 * least


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all", "send_recv"])
def test_the_bound_of_a_part_is_that_of_a_machine_of_its_nodes(collective: str) -> None:
    alone = load_preset("hgx-h100-ndr400", nodes=2)
    part, own = (lower_bound_s(collective, GIB, THIN, ranks=_order([6, 5])), lower_bound_s(collective, GIB, alone))
    assert part.bandwidth_s == pytest.approx(own.bandwidth_s, rel=1e-12)
    assert part.latency_s == pytest.approx(own.latency_s, rel=1e-12)
    assert part.bisection_s == 0


def test_the_bound_of_all_ranks_in_another_order_is_that_of_the_machine() -> None:
    turned = lower_bound_s("all_reduce", GIB, THIN, ranks=_order(range(15, -1, -1)))
    assert turned == lower_bound_s("all_reduce", GIB, THIN)


def test_one_gpu_of_each_node_needs_an_eighth_of_what_a_node_does() -> None:
    one, all_of = (lower_bound_s("all_to_all", GIB, THIN, ranks=_order([0, 1], range(n))) for n in (1, 8))
    # Each of 1 (8) ranks of a node sends half of GIB to the other node.
    assert all_of.bandwidth_at == "node NICs"
    assert all_of.bandwidth_s == pytest.approx(8 * one.bandwidth_s)


# -- what is shown ---------------------------------


def test_rows_and_json_are_those_of_the_part(tmp_path: Path) -> None:
    path = _file(tmp_path, "{nodes: [8, 3 .. 5]}")
    done = CliRunner().invoke(app, ["run", str(path), "--no-files", "--json"])
    assert done.exit_code == 0, done.output
    (result,) = json.loads(done.stdout)["results"]
    assert result["topology"]["placement"] == {"ranks": 32, "nodes": [8, "3 .. 5"]}
    assert result["topology"]["ranks"] == 128
    (item,) = result["items"]
    (row,) = item["rows"]
    assert item["n_ranks"] == row["n_ranks"] == 32
    assert row["count"] == GIB // 32 // 4
    assert row["busbw_GBps"] == pytest.approx(row["algbw_GBps"] * 31 / 32)
    assert row["lower_bound_us"] == pytest.approx(1e6 * lower_bound_s("all_gather", GIB, THIN, ranks=range(32)).seconds)
    assert row["lower_bound_us"] < row["time_us"]


def test_the_heading_says_which_ranks(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(_file(tmp_path, "{nodes: [8, 3 .. 5]}")), "--no-files"])
    heading = " ".join(done.stdout.replace("\n#", "").split())
    assert "16 nodes of 8 (hgx-h100-ndr400), 32 of 128 ranks on nodes 8, 3 .. 5, library nccl" in heading


def test_a_late_rank_counts_where_it_takes_part(tmp_path: Path) -> None:
    late = "variation: {stragglers: [{ranks: 8, delay: 1 s}]}\n"
    times = [
        cs.run(_file(tmp_path, placement, more=late)).items[0].rows[0].time_s
        for placement in ("{nodes: [1, 2]}", "{nodes: [2, 3]}")
    ]
    assert times[0] - times[1] == pytest.approx(1, rel=1e-9)


def test_a_resolved_placement_is_the_same_scenario_and_its_file_counts(tmp_path: Path) -> None:
    (tmp_path / "free.txt").write_text("4\n5\n")
    (one,) = load_scenarios(_file(tmp_path, "{free: free.txt, gpus: 0 .. 3}"))
    saved = tmp_path / "resolved.yaml"
    saved.write_text(resolved_yaml(one, tmp_path))
    (again,) = load_scenarios(saved)
    before = scenario_hash(one)
    assert again == one
    assert scenario_hash(again) == before
    (tmp_path / "free.txt").write_text("4\n6\n")
    assert scenario_hash(one) != before


def test_explain_says_what_a_placement_costs_and_what_to_change(tmp_path: Path) -> None:
    path = _file(tmp_path, "{nodes: [0, 4, 8, 12, 1, 5, 9, 13], gpus: [1, 0, 2 .. 7]}")
    result = cs.run(path)
    (found,) = explain(result)
    cost = found.placement
    assert cost is not None
    words = bound_words(found)
    assert words[0].startswith("all_gather of 1 GiB on 64 of 128 ranks: ")
    assert f"limited by {result.items[0].rows[0].slow_place}: " in words[-2]
    assert "leaf0.rail" in words[-2]
    assert words[-1].startswith("To change: list these nodes leaf by leaf, such as 'placement={nodes: [0, 1, 4, 5, ")
    same, others = cost.rivals
    for rival in (same, others):
        override = rival.overrides.strip("'")
        assert cs.run(path, override).items[0].rows[0].time_s == pytest.approx(rival.seconds, rel=1e-12)
        assert f"{cost.seconds / rival.seconds:.2f} times what {rival.what} take" in words[-2]
    assert others.overrides == "'placement={nodes: [0 .. 7], gpus: [0 .. 7]}'"
    told = to_dict(found)["placement"]
    assert (told["ranks"], told["of_ranks"], told["others"][0]["ratio"]) == (64, 128, cost.seconds / same.seconds)
    assert set(words) <= set(explain_lines(found))


def test_explain_of_a_packed_placement_knows_no_better(tmp_path: Path) -> None:
    (found,) = explain(cs.run(_file(tmp_path, "{by: leaf}")))
    assert bound_words(found)[-1] == "No better placement is known."
    assert found.placement is not None
    assert len(found.placement.rivals) == 1  # all nodes take part: there are no others


# -- distributions ---------------------------------


def test_a_sweep_over_orders_and_seeds(tmp_path: Path) -> None:
    sweep = "sweep: {placement.by: [leaf, random], placement.seed: [0, 1, 2]}\n"
    frame = cs.sweep(_file(tmp_path, "{count: 8}", more=sweep)).to_frame()
    assert frame["error"].isna().all() or (frame["error"] == "").all()
    leaf, shuffled = (frame[frame["placement.by"] == by].time_us for by in ("leaf", "random"))
    assert leaf.nunique() == 1
    assert shuffled.nunique() > 1
    assert shuffled.min() >= leaf.max()


def test_a_seed_of_the_hash_shows_its_collisions() -> None:
    """A ring in order leaves a leaf by eight cards over 32 equal uplinks: as slow as the fullest of them is shared."""
    frame = cs.sweep("sweep/ecmp-collisions").to_frame()
    free = frame.time_us.iloc[-1]
    assert frame["topology.fabric.routing"].iloc[-1] == "spray"
    shared = []
    for seed, time_us in zip(frame["topology.fabric.hash_seed"][:8].astype(int), frame.time_us[:8], strict=True):
        fabric = {"kind": "fat_tree", "nodes_per_leaf": 4, "oversubscription": 1, "spines": 32, "routing": "ecmp"}
        t = load_preset("hgx-h100-ndr400", nodes=16, fabric={**fabric, "hash_seed": seed})
        nic = np.arange(8)
        hops = [(a, b) for a, b in pairwise([*range(16), 0]) if a // 4 != b // 4]
        # Channels of a pair change rails from node to node, so that each card has one stream to the next node's.
        used = np.concatenate([t.fabric.between(np.full(8, a), nic, np.full(8, b), nic).ravel() for a, b in hops])
        shared.append(int(np.bincount(used[used >= 0]).max()))
        assert (time_us > 1.5 * free) == (shared[-1] > 1)
    assert {1, 2} <= set(shared)
