"""Ranks and axes: positions, groups, nodes, products that do not fit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import InfeasibleError
from commsim.training.mesh import ORDER, Mesh

sizes = st.integers(1, 4)
meshes = st.builds(
    Mesh, dp=sizes, pp=sizes, cp=sizes, tp=sizes, order=st.sampled_from(sorted(itertools.permutations(ORDER)))
)


@given(mesh=meshes, data=st.data())
def test_position_and_rank_are_inverse(mesh: Mesh, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, mesh.world_size - 1))
    assert mesh.rank(**mesh.position(rank)) == rank


@given(mesh=meshes, axes=st.sets(st.sampled_from(["tp", "cp", "dp", "pp"]), min_size=1))
def test_groups_partition_the_ranks_and_differ_on_their_axes_only(mesh: Mesh, axes: set[str]) -> None:
    groups = mesh.groups(*axes)
    assert groups.shape == (mesh.world_size // mesh.size(*axes), mesh.size(*axes))
    assert sorted(groups.ravel().tolist()) == list(range(mesh.world_size))
    for group in groups[:4]:
        rest = [{a: p for a, p in mesh.position(int(r)).items() if a not in axes} for r in group]
        assert all(r == rest[0] for r in rest)


def test_megatron_order_by_hand() -> None:
    """Megatron-LM's own example: 16 GPUs, tp 2, pp 4, dp 2 (parallel_state.py, initialize_model_parallel)."""
    mesh = Mesh(tp=2, pp=4, dp=2)
    assert mesh.groups("dp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert mesh.groups("tp")[0].tolist() == [0, 1]
    assert mesh.groups("pp").tolist() == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


def test_experts_fold_into_the_ranks_of_a_stage() -> None:
    mesh = Mesh(tp=2, dp=4, pp=2, ep=4)
    assert (mesh.expert_tp, mesh.expert_dp) == (2, 1)
    assert mesh.groups("ep")[0].tolist() == [0, 2, 4, 6]
    # DeepSeek-V3 on 1,024 GPUs with tp 2, pp 16, ep 64: more experts' ranks than dp, so an expert is not split.
    folded = Mesh(tp=2, pp=16, dp=32, ep=64)
    assert (folded.expert_tp, folded.expert_dp) == (1, 1)
    assert folded.groups("ep")[0].tolist() == list(range(64))


@given(mesh=meshes, data=st.data())
def test_expert_layout_keeps_the_stage(mesh: Mesh, data: st.DataObject) -> None:
    stage = mesh.tp * mesh.cp * mesh.dp
    ep = data.draw(st.sampled_from([d for d in range(1, stage + 1) if stage % d == 0]))
    try:
        folded = Mesh(dp=mesh.dp, pp=mesh.pp, cp=mesh.cp, tp=mesh.tp, ep=ep, etp=1, order=mesh.order)
    except InfeasibleError:
        assert mesh.order.index("pp") not in (0, 4)
        return
    stages = np.array([folded.position(int(r))["pp"] for r in folded.groups("ep").ravel()])
    assert (stages.reshape(-1, ep) == stages.reshape(-1, ep)[:, :1]).all()


def test_the_groups_of_a_stage_are_those_of_its_ranks() -> None:
    """And cut into parts, each in rank order; whoever asks again gets the same array."""
    mesh = Mesh(tp=2, dp=4, pp=2)
    assert mesh.groups_of(1, "dp").tolist() == [[8, 10, 12, 14], [9, 11, 13, 15]]
    assert mesh.groups_of(1, "dp", ranks=2).tolist() == [[8, 10], [12, 14], [9, 11], [13, 15]]
    assert mesh.groups_of(1, "dp") is mesh.groups_of(1, "dp")


@pytest.mark.parametrize(
    ("mesh", "gpus", "message"),
    [
        (Mesh(tp=8, pp=4, dp=3), 128, "8*4*1*3 = 96, but the cluster has 128 GPUs; dp=4 would fit"),
        (Mesh(tp=8, pp=3, dp=5), 128, "tp=8 pp=4 cp=1 dp=4 or tp=8 pp=2 cp=1 dp=8"),
        (Mesh(tp=3, pp=5, cp=7), 64, "no mesh near it would fit"),
    ],
)
def test_a_wrong_product_names_the_nearest_right_ones(mesh: Mesh, gpus: int, message: str) -> None:
    assert message in (mesh.misfit(gpus) or "")


def test_meshes_that_would_cut_a_head_are_not_named() -> None:
    mesh = Mesh(tp=8, pp=4, dp=16)
    assert "tp=9 pp=4 cp=1 dp=14" in (mesh.misfit(504) or "")
    said = mesh.misfit(504, heads=64) or ""
    assert said.endswith("tp=8 pp=3 cp=1 dp=21 or tp=8 pp=7 cp=1 dp=9 or tp=8 pp=9 cp=1 dp=7 would fit")
    assert "dp=4 would fit" not in (Mesh(tp=3, pp=4, dp=3).misfit(48, heads=64) or "")


def test_a_right_product_has_no_misfit() -> None:
    assert Mesh(tp=8, pp=4, dp=4).misfit(128) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dp": 0}, "found dp=0, expected at least 1"),
        ({"dp": 6, "ep": 4}, "expected a divisor of 6: 2, 3, 6"),
        ({"order": ("tp", "tp", "cp", "dp", "pp")}, "each of tp, cp, ep, dp, pp once"),
        ({"dp": 4, "pp": 2, "cp": 2, "ep": 8, "etp": 1, "order": ("dp", "pp", "tp", "cp", "ep")}, "different pipeline"),
    ],
)
def test_impossible_meshes_say_why(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InfeasibleError, match=message.replace("(", r"\(")):
        Mesh(**arguments)  # type: ignore[arg-type]
