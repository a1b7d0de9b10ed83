"""The description of the machine is that of the ranks, or there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from rehearsal.logs import graphs_xml, system_xml
from rehearsal.settings import Settings

from commsim.errors import TopologyError
from commsim.lab.machine import Site, describe
from commsim.scenario.load import load_scenarios
from commsim.scenario.setting import build_topology


def written(tmp_path: Path, gpus: int) -> tuple[Path, Path]:
    """NCCL's topology and graphs of two nodes of so many GPUs."""
    machine = Settings(folder=str(tmp_path), ranks_per_node=gpus)
    paths = tmp_path / "topology.xml", tmp_path / "graphs.xml"
    for path, text in zip(paths, (system_xml(machine), graphs_xml(machine, 2)), strict=True):
        path.write_text(text)
    return paths


SITE = Site(
    ranks=8, nodes=2, gpu="H100 80GB HBM3", sm=90, memory_bytes=80 << 30, nccl_version="2.28.9", network="infiniband"
)


def test_the_scenario_is_of_as_many_ranks_as_the_job(tmp_path: Path) -> None:
    describe(SITE, *written(tmp_path, 4), tmp_path)
    scenario = load_scenarios(tmp_path / "scenario.yaml")[0]
    assert build_topology(scenario).world_size == 8
    assert scenario.library.graph is not None


def test_a_node_with_more_gpus_than_ranks_is_refused(tmp_path: Path) -> None:
    """Else everything would be predicted for 16 ranks, of which 8 were measured."""
    with pytest.raises(TopologyError, match="found 8 GPUs, expected 8 ranks on 2 nodes alike"):
        describe(SITE, *written(tmp_path, 8), tmp_path)
    assert not (tmp_path / "scenario.yaml").exists()
