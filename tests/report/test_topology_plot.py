"""Pictures of topologies: every preset draws, and boxes of one picture do not overlap."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from machines import machine
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from commsim.report.plots import figure_bytes
from commsim.report.topology_plot import plot_topology
from commsim.report.topology_shapes import heat_of
from commsim.report.topology_tables import topology_sheet
from commsim.topology.presets import list_presets, load_preset

PRESETS = list_presets()
ROUTE = {"ends": ["leaf0.rail0", "leaf1.rail0"], "via": ["spine0"]}


def boxes(figure: Figure) -> list[list[tuple[float, float, float, float]]]:
    """(left, bottom, right, top) of every box, one list per panel."""
    return [[p.get_bbox().extents for p in panel.patches if isinstance(p, FancyBboxPatch)] for panel in figure.axes]


def overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return min(a[2], b[2]) - max(a[0], b[0]) > 1e-9 and min(a[3], b[3]) - max(a[1], b[1]) > 1e-9


@pytest.mark.parametrize("name", [p.name for p in PRESETS])
def test_no_two_boxes_overlap(name: str) -> None:
    for panel in boxes(plot_topology(load_preset(name))):
        assert not [(a, b) for a, b in combinations(panel, 2) if overlap(a, b)]


def behind(figure: Figure) -> list[tuple[float, ...]]:
    """Boxes that a line runs behind which does not end at them."""
    hidden: list[tuple[float, ...]] = []
    for panel in figure.axes:
        patches = [p for p in panel.patches if isinstance(p, FancyBboxPatch)]
        places = [(p.get_x(), p.get_y(), p.get_x() + p.get_width(), p.get_y() + p.get_height()) for p in patches]
        for line in panel.lines:
            xs, ys = (np.asarray(v, float) for v in (line.get_xdata(), line.get_ydata()))
            along = np.linspace(0, len(xs) - 1, 60 * len(xs))
            x, y = (np.interp(along, np.arange(len(xs)), values) for values in (xs, ys))
            for left, low, right, high in places:
                inside = (x > left + 0.01) & (x < right - 0.01) & (y > low + 0.01) & (y < high - 0.01)
                near = (x >= left - 0.02) & (x <= right + 0.02) & (y >= low - 0.02) & (y <= high + 0.02)
                if inside.any() and not near[[0, -1]].any():
                    hidden.append((left, low, right, high))
    return hidden


@pytest.mark.parametrize("name", [p.name for p in PRESETS])
def test_no_line_runs_behind_a_box(name: str) -> None:
    assert behind(plot_topology(load_preset(name))) == []


def test_many_nics_pass_beside_the_cpus() -> None:
    assert behind(plot_topology(load_preset("oci-a100", nodes=4))) == []


FAULTS = [
    {"node": 37, "bandwidth_factor": 0.1},
    {"nic": [1, 3], "failed": True},
    {"link": ["node37.gpu1", "node37.nvswitch"], "bandwidth_factor": 0.5},
]


def test_faults_are_drawn_and_in_the_key_however_many_nodes_there_are() -> None:
    figure = plot_topology(machine(preset="hgx-h100-ndr400", nodes=64, faults=FAULTS))
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert {"failed", "slower: 10 % of its rate", "slower: 50 % of its rate"} <= set(labels)
    fabric, node = ([text.get_text() for text in panel.texts] for panel in figure.axes)
    assert {"node 1\n8 x H100 SXM5", "node 37\n8 x H100 SXM5"} <= set(fabric)
    assert "node 37" in node  # the one that stands for all


def test_the_busiest_link_is_drawn_and_marked() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=64)
    figure = plot_topology(topology, heat_of(topology, {"node40.gpu3 -> node40.nvswitch": 0.9}), "hot")
    assert "node 40" in [text.get_text() for text in figure.axes[1].texts]
    (star,) = [line for line in figure.axes[1].lines if line.get_label() == "the busiest link"]
    assert star.get_xdata() == [3.0]


def test_links_say_their_names_in_svg() -> None:
    text = figure_bytes(plot_topology(load_preset("hgx-h100-ndr400", nodes=2)), "svg").decode()
    assert "<title>node0.gpu0 -&gt; node0.nvswitch: 450 GB/s</title>" in text
    assert "title:" not in text


@pytest.mark.parametrize("name", [p.name for p in PRESETS if p.nics_per_node])
@pytest.mark.parametrize("nodes", [2, 4, 100])
def test_fabrics_draw(name: str, nodes: int) -> None:
    figure = plot_topology(load_preset(name, nodes=nodes))
    assert len(figure.axes) == 2
    for panel in boxes(figure):
        assert not [(a, b) for a, b in combinations(panel, 2) if overlap(a, b)]


@pytest.mark.parametrize("nics", [1, 2, 3, 5, 8])
def test_any_number_of_nics(nics: int) -> None:
    topology = load_preset("dgx-1v", nics_per_node=nics, nic_bandwidth="100 Gb/s")
    (panel,) = boxes(plot_topology(topology))
    assert len(panel) == 8 + 4 + 2 + nics
    assert not [(a, b) for a, b in combinations(panel, 2) if overlap(a, b)]


def test_title_and_legend_carry_the_figures() -> None:
    figure = plot_topology(load_preset("hgx-h100-ndr400", nodes=64, oversubscription=2.0))
    assert figure.get_suptitle() == "hgx-h100-ndr400: 64 nodes of 8 x H100 SXM5, 8 x 400 Gb/s InfiniBand"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "NVLink 450 GB/s (18 x 25)" in labels
    assert "leaf to spine 800 GB/s" in labels
    assert "oversubscription 2:1" in figure.texts[1].get_text()


@pytest.mark.parametrize(("name", "network"), [("gcp-a3-high", "GPUDirect-TCPX"), ("gcp-a3-mega", "GPUDirect-TCPXO")])
def test_one_network_has_the_names_of_its_plugins(name: str, network: str) -> None:
    assert plot_topology(load_preset(name)).get_suptitle().endswith(f" x 200 Gb/s {network}")
    assert f"200 Gb/s {network} =" in topology_sheet(load_preset(name))


def test_cube_mesh_shows_single_and_double_links() -> None:
    figure = plot_topology(load_preset("dgx-1v"))
    counts = [t.get_text() for t in figure.axes[0].texts if t.get_text() in {"1", "2"}]
    assert sorted(counts) == ["1"] * 8 + ["2"] * 8


@pytest.mark.parametrize(
    ("nodes", "fabric"),
    [
        (6, {"kind": "dragonfly", "nodes_per_leaf": 1, "leaves_per_group": 3}),
        (200, {"kind": "dragonfly", "nodes_per_leaf": 4, "leaves_per_group": 8}),
        (12, {"kind": "fat_tree", "levels": 3, "nodes_per_leaf": 1, "leaves_per_pod": 2, "spines": 2, "cores": 2}),
        (64, {"kind": "fat_tree", "levels": 3, "nodes_per_leaf": 2, "leaves_per_pod": 4, "planes": 2, "cores": 2}),
        (4, {"kind": "torus", "dimensions": [4]}),
        (1000, {"kind": "torus", "dimensions": [10, 10, 10]}),
        (4, {"kind": "rail_fat_tree", "nodes_per_leaf": 2, "routing": "static", "routes": [ROUTE]}),
    ],
)
def test_other_fabrics_draw(nodes: int, fabric: dict[str, object]) -> None:
    figure = plot_topology(machine(preset="hgx-h100-ndr400", nodes=nodes, fabric=fabric))
    for panel in boxes(figure):
        assert not [(a, b) for a, b in combinations(panel, 2) if overlap(a, b)]


@pytest.mark.parametrize(("busy", "said"), [({}, "one node"), ({"node0.gpu0 -> node0.nvswitch": 1.0}, "node 0")])
def test_a_drawing_with_traffic_says_whose_it_is(busy: dict[str, float], said: str) -> None:
    t = load_preset("hgx-h100-ndr400", nodes=2)
    figure = plot_topology(t, heat_of(t, busy) if busy else None)
    assert said in {text.get_text() for panel in figure.axes for text in panel.texts}
