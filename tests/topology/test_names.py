"""The names of vertices, one by one and all of them, of nodes of several kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec

MIXED = TopologySpec.model_validate(
    {"groups": [{"preset": "hgx-h100-ndr400", "nodes": 2}, {"preset": "hgx-a100-4-hdr200", "nodes": 3}]}
)
T = load_topology(MIXED, Path())
NAMES = tuple(T.vertex_name)


def test_names_say_the_node_and_its_device_and_switches_have_their_own() -> None:
    assert len(NAMES) == len(set(NAMES)) == len(T.vertex_name) == len(T.vertex_kind)
    assert {name.split(".")[0] for name, node in zip(NAMES, T.vertex_node, strict=True) if node == 3} == {"node3"}
    assert [T.vertex_name[int(v)] for v in T.rank_vertex[[0, 15, 16]]] == ["node0.gpu0", "node1.gpu7", "node2.gpu0"]
    assert all("node" not in name for name, node in zip(NAMES, T.vertex_node, strict=True) if node < 0)


@given(st.integers(0, len(NAMES) - 1))
def test_a_name_and_its_place_lead_to_each_other(vertex: int) -> None:
    name = T.vertex_name[vertex]
    assert name == NAMES[vertex] == T.vertex_name[vertex - len(NAMES)]
    assert name in T.vertex_name
    assert T.vertex_name.index(name) == vertex


@pytest.mark.parametrize("name", ["node9.gpu0", "node0.gpu8", "node2.gpu4", "node00.gpu0", "gpu0", "", "node0."])
def test_what_is_no_name_has_no_place(name: str) -> None:
    assert name not in T.vertex_name
    with pytest.raises(ValueError, match="no vertex"):
        T.vertex_name.index(name)


def test_slices_and_ends() -> None:
    assert T.vertex_name[3:9:2] == NAMES[3:9:2]
    assert T.vertex_name[-2:] == NAMES[-2:]
    with pytest.raises(IndexError):
        T.vertex_name[len(NAMES)]
