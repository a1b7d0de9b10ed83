"""An override of the network that bounds no row says so, with what bounds instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run

PLAIN = """
name: x
topology: {preset: hgx-h100-ndr400, nodes: 4}
library: {name: nccl, version: 2.26.2}
workload: [{collective: %s, sizes: [1 GiB]}]
"""


@pytest.mark.parametrize(
    ("collective", "overrides", "key", "said"),
    [
        ("all_reduce", ["topology.nic_bandwidth=800 Gb/s"], "nic_bandwidth", True),
        ("all_reduce", ["topology.nic_bandwidth=100 Gb/s"], "nic_bandwidth", False),
        ("all_reduce", ["topology.oversubscription=2", "topology.nodes_per_leaf=2"], "oversubscription", True),
        ("all_to_all", ["topology.oversubscription=4", "topology.nodes_per_leaf=2"], "oversubscription", False),
        ("all_reduce", ["topology.oversubscription=2"], "oversubscription", False),  # said to have no effect at all
    ],
)
def test_what_bounds_instead_is_said(
    tmp_path: Path, collective: str, overrides: list[str], key: str, said: bool
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(PLAIN % collective)
    result = run(load_scenarios(path, overrides)[0])
    about = [text for text in result.warnings if f"topology.{key}: does not bound" in text]
    assert len(about) == said
    assert all("at 1 GiB it is bound by thread block" in text for text in about)
