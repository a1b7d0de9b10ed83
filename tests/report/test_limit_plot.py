"""The cut on the drawing of a machine."""

from __future__ import annotations

import pytest

from commsim.report.limit_plot import plot_limit
from commsim.synthesis.limit import limit_of
from commsim.synthesis.machine import machine_network
from commsim.topology.presets import load_preset


@pytest.mark.parametrize(("preset", "nodes"), [("hgx-h100-ndr400", 4), ("dgx-1v", 1)])
def test_the_cut_is_told_above_the_machine(preset: str, nodes: int) -> None:
    topology = load_preset(preset, nodes=nodes)
    network = machine_network(topology)
    figure = plot_limit(topology, network, limit_of(network, "all_gather"))
    said = " ".join(text.get_text() for text in figure.texts)
    assert "must take in" in said
