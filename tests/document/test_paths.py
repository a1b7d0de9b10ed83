"""The key paths that a model knows, and what is said where the beginning of one is left out."""

from __future__ import annotations

import pytest

from commsim.document.paths import longer, paths_of
from commsim.errors import ScenarioError
from commsim.scenario.load import find_scenario, load_scenarios
from commsim.scenario.schema import Scenario

COLLECTIVE = {"topology": {"preset": "hgx-h100"}, "library": {"name": "nccl"}, "workload": [{"collective": "reduce"}]}
STEP = {"topology": {"preset": "hgx-h100"}, "workload": [{"training": {"model": "gpt2"}}]}


def test_paths_are_those_of_the_kind_that_stands_there() -> None:
    paths = set(paths_of(Scenario, COLLECTIVE))
    assert {"topology.nodes", "library.version", "workload.0.sizes", "variation.jitter.mean"} <= paths
    assert not any(path.startswith("workload.0.training") for path in paths)
    assert "workload.0.training.mesh.tp" in set(paths_of(Scenario, STEP))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("nodes", "did you mean 'topology.nodes'?"),
        ("sizes", "did you mean 'workload.0.sizes'?"),
        ("NCCL_ALGO", "did you mean 'library.env.NCCL_ALGO'?"),
        ("oversubscripton", "did you mean 'topology.oversubscription'?"),
        ("topology.routing", "did you mean 'topology.fabric.routing'?"),
        ("topology.nonsense", ""),
        ("librery", ""),
        ("nonsense", ""),
    ],
)
def test_a_path_without_its_beginning_or_a_block_is_found(key: str, meant: str) -> None:
    assert longer(key, Scenario, COLLECTIVE) == meant


def test_an_override_says_the_path_that_was_meant() -> None:
    with pytest.raises(
        ScenarioError, match=r"'nodes=4' nodes: found the unknown key 'nodes', did you mean 'topology\.n"
    ):
        load_scenarios(find_scenario("quickstart"), ["nodes=4"])
    with pytest.raises(ScenarioError, match=r"did you mean 'workload\.0\.training\.mesh\.tp'"):
        load_scenarios(find_scenario("training/llama-3-70b-512-h100"), ["mesh.tp=4"])
