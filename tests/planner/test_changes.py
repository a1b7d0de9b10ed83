"""The single changes that an explanation tries on a step: by hand, and laws of the cuts of a model."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import step

from commsim.planner.changes import Change, collective_changes, machine_changes, step_changes
from commsim.scenario.load import load_scenarios
from commsim.scenario.schema import Scenario
from commsim.scenario.setting import build_topology
from commsim.topology.presets import load_preset
from commsim.training.precision import precision

BARE = {"overlap_dp": False, "overlap_tp": False, "overlap_pp": False, "flash_attention": False}


def _tried(**changes: Any) -> list[str]:
    return [change.what for change in step_changes(step(**changes))]


@pytest.mark.parametrize(("nodes", "some"), [(1, False), (2, True), (4, True)])
def test_nics_are_changed_where_there_are_several_nodes(nodes: int, some: bool) -> None:
    offered = [change.what for change in machine_changes(load_preset("hgx-h100-ndr400", nodes=nodes))]
    assert ("NICs of twice the rate (800 Gb/s)" in offered) is some
    assert ("one more NIC per node (9 instead of 8)" in offered) is some
    assert "NVLinks of twice the rate" in offered


def test_the_rate_that_is_doubled_is_that_of_the_first_gpus_own_link() -> None:
    """Its PCIe moves 24 GB/s, every other link of the machine twice that already."""
    one = load_preset("a100-pcie")
    own = one.link_src == one.rank_vertex[0]
    assert set(one.link_bandwidth[own]) == {24e9}
    uneven = replace(one, link_bandwidth=np.where(own, 24e9, 48e9))
    offered = [change.what for change in machine_changes(uneven)]
    assert "PCIe of twice the rate (48 GB/s)" in offered


@pytest.mark.parametrize("own", [None, "LL"])
def test_a_protocol_that_the_item_names_is_changed_with_nccls(own: str | None) -> None:
    work = {"collective": "all_reduce", "sizes": ["1 MiB"]} | ({"protocol": own} if own else {})
    scenario = Scenario.model_validate({"name": "x", "topology": {"preset": "hgx-h100"}, "workload": [work]})
    offered = list(collective_changes(scenario, load_preset("hgx-h100"), scenario.collectives[0]))
    asked = [c.values for c in offered if "library.env.NCCL_PROTO" in c.values]
    assert len(asked) == 2 * 3 + 2  # NVLS has one protocol
    for values in asked:
        assert values.get("workload.0.protocol") == (values["library.env.NCCL_PROTO"] if own else None)


def test_a_step_on_one_gpu_has_little_to_change() -> None:
    assert _tried() == [
        "micro-batches of 2 instead of 1",
        "recompute selective",
        "recompute full",
        "CUDA graphs",
        "fp8 products",
    ]
    assert _tried(micro_batch_size=4, cuda_graphs=True, recompute="full", precision=precision("fp8")) == [
        "micro-batches of 8 instead of 4",
        "micro-batches of 2 instead of 4",
        "recompute none",
        "recompute selective",
    ]


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ({}, {"fused attention"}),
        ({"tp": 2}, {"tensor-parallel sends move during the products", "sequence parallelism"}),
        ({"pp": 2}, {"stages send while they compute", "schedule gpipe", "schedule interleaved_1f1b"}),
        ({"dp": 2}, {"ZeRO 1", "ZeRO 2", "ZeRO 3", "gradients move during the backward pass"}),
        ({"dp": 2, "zero_stage": 1}, {"ZeRO 0", "ZeRO 2", "ZeRO 3"}),
    ],
)
def test_what_a_mesh_offers_beyond_one_gpu(mesh: dict[str, int], words: set[str]) -> None:
    alone = set(_tried(**BARE))
    more = {what for what in _tried(**BARE, **mesh) if what not in alone or not mesh}
    assert words <= more
    others = {"tp": "tensor-parallel", "pp": "stages send", "dp": "ZeRO"}
    for axis, word in others.items():
        assert any(what.startswith(word) for what in more) == (mesh.get(axis, 1) > 1)


def test_chunks_of_stages_are_doubled_and_halved() -> None:
    base = {"pp": 4, "schedule": "interleaved_1f1b"}
    chunks = [what for what in _tried(**base, virtual_stages=4) if "chunks" in what]
    assert chunks == ["8 chunks per stage instead of 4", "2 chunks per stage instead of 4"]
    assert [what for what in _tried(**base, virtual_stages=2) if "chunks" in what] == [
        "4 chunks per stage instead of 2"
    ]
    assert not any("interleaved" in what for what in _tried(**base, virtual_stages=2))
    to_chunks = [c for c in step_changes(step(pp=4)) if c.what == "schedule interleaved_1f1b"]
    assert [c.values["workload.0.training.virtual_stages"] for c in to_chunks] == [2]


@given(
    sizes=st.fixed_dictionaries({"tp": st.sampled_from([1, 2, 4, 8]), "pp": st.integers(1, 4), "dp": st.integers(1, 4)})
)
def test_a_cut_moves_two_ranks_and_keeps_all_gpus(sizes: dict[str, int]) -> None:
    one = step(**sizes, global_batch_size=96)
    axes = ("tp", "pp", "cp", "dp")
    now = {axis: getattr(one, axis) for axis in axes}
    cuts = []
    for change in step_changes(one):
        if not any(".mesh." in name for name in change.values):
            continue
        mesh = {axis: int(change.values[f"workload.0.training.mesh.{axis}"]) for axis in axes}
        assert prod(mesh.values()) == one.world_size
        assert mesh["tp"] <= one.gpus_per_node
        moved = {axis: (now[axis], size) for axis, size in mesh.items() if size != now[axis]}
        assert sorted(new / old for old, new in moved.values()) == [0.5, 2.0]
        assert change.what == ", ".join(
            f"{axis} {new}" for axis, (_, new) in sorted(moved.items(), key=lambda m: m[1][1] / m[1][0])
        )
        cuts.append(mesh)
    even = [axis for axis in axes if now[axis] % 2 == 0]
    expected = sum(target != source and (target != "tp" or now["tp"] < 8) for source in even for target in axes)
    assert len(cuts) == expected


def _changes_of(folder: Path, library: dict[str, str], work: dict[str, Any]) -> list[Change]:
    words = {
        "name": "x",
        "topology": {"preset": "hgx-h100"},
        "library": {"name": "nccl", "version": "2.27.3", **library},
    }
    (folder / "s.yaml").write_text(json.dumps(words | {"workload": [{"collective": "all_reduce", **work}]}))
    (scenario,) = load_scenarios(folder / "s.yaml")
    (item,) = scenario.collectives
    return list(collective_changes(scenario, build_topology(scenario), item))


@pytest.mark.parametrize(("mode", "offered"), [("one_process", True), ("process_per_gpu", False)])
def test_a_process_for_each_gpu_is_tried_where_one_drives_all(tmp_path: Path, mode: str, offered: bool) -> None:
    tried = [c.what for c in _changes_of(tmp_path, {"launch_mode": mode}, {"sizes": ["1 KiB"]})]
    assert ("a process or a thread for each GPU" in tried) is offered
