"""What aws-ofi-nccl's tuner asks for, at the borders of its regions and where it has no say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.nccl.predict import Options, Predictor
from commsim.nccl.tuner import Candidate
from commsim.nccl.tuner_ofi import _beyond, holds, own_choice, plugin_choice, regions
from commsim.topology.presets import load_preset

LOADED = {"NCCL_TUNER_PLUGIN": "/opt/amazon/ofi-nccl/lib/libnccl-ofi-tuner.so"}
ALL = {(algorithm, protocol) for algorithm in ("tree", "ring", "nvls_tree") for protocol in ("LL", "LL128", "Simple")}
BARE = {"fabric": {"plugin": "none"}}
P5, P5EN, P6 = "hgx-h100-efa3200", "aws-p5en", "aws-p6-b200"


@pytest.mark.parametrize(
    ("preset", "nodes", "collective", "nbytes", "choice"),
    [
        (P5, 2, "all_reduce", 8, None),  # two nodes are left to NCCL
        (P5, 4, "all_reduce", 8, ("tree", "LL128")),
        (P5, 4, "all_reduce", 37748736, ("tree", "LL128")),
        (P5, 4, "all_reduce", 64 << 20, ("ring", "LL128")),
        (P5, 4, "all_reduce", 2 << 30, ("ring", "Simple")),
        (P5, 16, "all_reduce", 256 << 20, ("tree", "LL128")),
        (P5, 16, "all_reduce", 1 << 30, ("ring", "LL128")),
        (P5, 16, "all_reduce", 4 << 30, ("nvls_tree", "Simple")),
        (P5, 16, "all_reduce", 8 << 30, ("ring", "Simple")),
        (P5, 4, "all_gather", 1 << 20, None),  # it has regions of all_reduce alone
        (P5EN, 4, "all_reduce", 196608, ("tree", "LL")),
        (P5EN, 4, "all_reduce", 196609, ("tree", "LL128")),
        (P5EN, 4, "all_reduce", 256 << 20, ("ring", "LL128")),
        (P5EN, 4, "all_reduce", 293601281, ("nvls_tree", "Simple")),
        (P5EN, 4, "all_reduce", 509607937, ("ring", "Simple")),
        (P5EN, 32, "all_reduce", 7 << 30, ("nvls_tree", "Simple")),
        (P5EN, 256, "reduce_scatter", 64 << 20, ("ring", "LL")),
        (P5EN, 32, "reduce_scatter", 7340032, ("ring", "LL")),
        (P5EN, 32, "reduce_scatter", 7340033, ("ring", "LL128")),
        (P5EN, 16, "all_gather", 4 << 20, ("ring", "LL")),
        (P5EN, 16, "all_gather", 1 << 30, ("ring", "LL128")),
        (P5EN, 16, "reduce_scatter", 4 << 30, ("ring", "Simple")),
        (P6, 4, "all_reduce", 393216, ("tree", "LL")),
        (P6, 4, "all_reduce", 18350080, ("tree", "LL128")),
        (P6, 4, "all_reduce", 133693440, ("ring", "LL128")),
        (P6, 4, "all_reduce", 256 << 20, ("nvls_tree", "Simple")),
        (P6, 4, "all_reduce", 435159041, ("ring", "Simple")),
        (P6, 4, "all_gather", 456130561, ("ring", "Simple")),
        (P6, 4, "reduce_scatter", 508559360, ("ring", "LL128")),
    ],
)
def test_borders(preset: str, nodes: int, collective: str, nbytes: int, choice: tuple[str, str] | None) -> None:
    assert plugin_choice(load_preset(preset, nodes=nodes), LOADED, collective, nbytes, ALL) == choice


@pytest.mark.parametrize(
    ("preset", "knobs", "env"),
    [
        (P5, {"nodes": 4}, {}),
        (P5, {"nodes": 4}, {"NCCL_TUNER_PLUGIN": "libnccl-tuner.so"}),  # Google's
        (P5, {"nodes": 2}, LOADED),
        (P5, {"nodes": 4, "gpus_per_node": 4}, LOADED),
        ("hgx-h100-ndr400", {"nodes": 4}, LOADED),
    ],
)
def test_where_it_has_no_say(preset: str, knobs: dict[str, int], env: dict[str, str]) -> None:
    topology = load_preset(preset, **knobs, **BARE)
    assert plugin_choice(topology, env, "all_reduce", 1 << 20, ALL) is None
    warned = [
        w for w in Predictor(topology, Options((2, 28, 7), env)).warnings if "NCCL_TUNER_PLUGIN has no effect" in w
    ]
    assert bool(warned) == bool(env)


@pytest.mark.parametrize(
    "name",
    ["ofi", "libnccl-ofi-tuner.so", "libnccl-tuner-ofi.so", "/opt/x/libnccl-ofi-tuner.so.1", "libnccl-net-ofi.so"],
)
def test_names_of_the_plugin(name: str) -> None:
    topology = load_preset(P5, nodes=4)
    env = {"NCCL_TUNER_PLUGIN": name}
    assert plugin_choice(topology, env, "all_reduce", 8, ALL) == ("tree", "LL128")
    assert not any("TUNER" in w for w in Predictor(topology, Options((2, 28, 7), env)).warnings)


def test_a_prediction_takes_its_choice_but_not_against_the_environment() -> None:
    topology = load_preset(P5, nodes=16, **BARE)
    size = 256 << 20

    def chosen(**env: str) -> tuple[str, str]:
        return Predictor(topology, Options((2, 28, 7), env, "process_per_gpu")).choose("all_reduce", size)

    assert chosen() == ("nvls_tree", "Simple")  # NCCL's own
    assert chosen(**LOADED) == ("tree", "LL128")
    assert chosen(**LOADED, NCCL_PROTO="Simple") == ("nvls_tree", "Simple")
    assert chosen(**LOADED, NCCL_ALGO="Ring")[0] == "ring"


def test_a_region_that_nccl_cannot_run_makes_way_for_the_next() -> None:
    topology, size = load_preset(P5, nodes=4), 37748736  # a corner of tree/LL128 and of ring/LL128
    table = [Candidate("ring", "LL128", 0, 0, 9.0), Candidate("ring", "Simple", 0, 0, 1.0)]
    assert plugin_choice(topology, LOADED, "all_reduce", size, ALL) == ("tree", "LL128")
    system = Predictor(topology, Options(version=(2, 26, 2))).system
    assert own_choice(system, topology, LOADED, "all_reduce", size, table) is table[0]
    assert own_choice(system, topology, LOADED, "all_reduce", size, table[1:]) is table[1]  # no region left: NCCL's
    assert own_choice(system, topology, LOADED, "all_reduce", size, []) is None
    # One GPU of each node has no region: NCCL's choice holds.
    group = Predictor(topology, Options(version=(2, 26, 2)), ranks=list(range(0, 32, 8))).system
    other = [Candidate("ring", "LL128", 0, 0, 9.0), Candidate("ring", "Simple", 0, 0, 1.0)]
    assert own_choice(group, topology, LOADED, "all_reduce", size, other) is other[1]


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=3, max_size=3), st.floats(-9, 9), st.floats(-9, 9)
)
def test_a_triangle_holds_what_lies_on_one_side_of_all_edges(
    corners: list[tuple[float, float]], x: float, y: float
) -> None:
    sides = [
        (bx - ax) * (y - ay) - (by - ay) * (x - ax)
        for (ax, ay), (bx, by) in zip(corners, corners[1:] + corners[:1], strict=True)
    ]
    if min(map(abs, sides)) < 1e-6:
        return  # on an edge, or a triangle without an inside
    assert holds(tuple(corners), (x, y)) == (min(sides) > 0 or max(sides) < 0)


def test_an_edge_belongs_to_the_region() -> None:
    square = ((0.0, 0.0), (4.0, 0.0), (4.0, 4.0), (0.0, 4.0))
    assert all(holds(square, point) for point in [(0.0, 0.0), (2.0, 0.0), (4.0, 3.0), (2.0, 4.0)])
    assert not holds(square, (4.1, 2.0))
    assert holds(((1.0, 4.0), (9.0, 4.0), (1.0, 4.0)), (5.0, 4.0))  # a line, as P5's NVLSTree of 16 ranks


def test_regions_go_on_straight_beyond_their_last_points() -> None:
    assert _beyond((8.0, 64), (8.0, 128)) == (8.0, 2**20)
    assert _beyond((8.0, 64), (16.0, 64)) == (100 * 2**30, 64)
    assert _beyond((2.0**10, 2.0**5), (2.0**20, 2.0**10)) == pytest.approx(
        (100 * 2**30, 2 ** (np.log2(100 * 2**30) / 2))
    )
    assert _beyond((2.0**10, 2.0**5), (2.0**11, 2.0**10)) == pytest.approx((2.0**13, 2.0**20))


@pytest.mark.parametrize("platform", ["p5", "p5en", "p6"])
def test_all_reduce_is_decided_at_all_usual_sizes(platform: str) -> None:
    of_all_reduce = regions(platform)["all_reduce"]
    for ranks in (16, 32, 64, 128, 256, 512, 1024):
        for power in range(3, 34):
            assert any(holds(v, (power, np.log2(ranks))) for _, _, v in of_all_reduce), (platform, ranks, power)
