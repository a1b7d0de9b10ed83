"""Files of parameters whose names have changed since they were written."""

from __future__ import annotations

from contextlib import nullcontext
from functools import reduce
from pathlib import Path

import pytest

from commsim.errors import ScenarioError
from commsim.nccl.parameters import load_parameters
from commsim.scenario.load import load_scenarios
from commsim.scenario.params import RENAMED, nccl_parameters, read_params, with_values
from commsim.scenario.run import run
from commsim.scenario.setting import build_topology


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_a_name_of_before_is_answered_by_that_of_now(old: str, tmp_path: Path) -> None:
    path, shipped = tmp_path / "params.yaml", load_parameters("hopper")
    path.write_text(f"library: nccl\nprovenance: before\nvalues: {{{old}: {{value: 1 us}}}}\n")
    with pytest.raises(ScenarioError, match=f"params.yaml:3:.*it is '{RENAMED[old]}' now"):
        with_values(shipped, read_params(path), path)
    assert isinstance(reduce(getattr, RENAMED[old].split("."), shipped), float)


def test_unknown_names_and_wrong_units_are_told_together_each_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(
        "library: nccl\nprovenance: by hand\nvalues:\n  base.LL: {value: 7 us}\n  base.LX: {value: 7 us}\n"
        "  block_rate.LL: {value: 3 us}\n  copy_rate: {value: -1 GB/s}\n"
    )
    with pytest.raises(ScenarioError) as told:
        with_values(load_parameters("hopper"), read_params(path), path)
    assert [(f.line, f.path) for f in told.value.faults] == [
        (5, "values.'base.LX'"),
        (6, "values.'block_rate.LL'.value"),
        (7, "values.copy_rate.value"),
    ]
    assert "the parameter 'base.LX', which this version of commsim does not have; did you mean 'base.LL'?" in str(
        told.value
    )
    assert "3 us" in str(told.value)


@pytest.mark.parametrize("gone", ["switch_hop", "launch.channel", "nothing.like.it"])
def test_a_name_that_is_gone_is_refused_in_a_line_of_its_own(gone: str, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(f"library: nccl\nprovenance: before\nvalues:\n  {gone}: {{value: 1 us}}\n")
    (tmp_path / "s.yaml").write_text(
        "name: x\ntopology: {preset: hgx-h100}\nparams: params.yaml\n"
        "workload: [{collective: all_reduce, sizes: 1 KiB}]\n"
    )
    with pytest.raises(ScenarioError) as told:
        run(load_scenarios(tmp_path / "s.yaml")[0])
    (line,) = str(told.value).splitlines()
    assert line.startswith(f"{path}:4:3 values.")
    assert line.endswith(f"found the parameter {gone!r}, which this version of commsim does not have")


@pytest.mark.parametrize(
    ("preset", "nodes", "refused"),
    [("polaris", 4, False), ("polaris", 1, False), ("polaris", 16, True), ("dgx-a100-hdr200", 2, True)],
)
def test_a_fit_over_one_network_is_not_for_another(preset: str, nodes: int, refused: bool, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "library: nccl\nprovenance: a test\nconditions: {nodes: 2, network: slingshot}\n"
        "values: {network.spread: {value: 1 us, low: 1 us, high: 1 us}}\n"
    )
    (tmp_path / "s.yaml").write_text(
        f"name: x\ntopology: {{preset: {preset}, nodes: {nodes}}}\nparams: p.yaml\n"
        "workload: [{collective: all_reduce, sizes: 1 KiB}]\n"
    )
    scenario = load_scenarios(tmp_path / "s.yaml")[0]
    told = pytest.raises(ScenarioError, match=r"s.yaml:3:.* fitted to calls over slingshot, but")
    with told if refused else nullcontext():
        assert nccl_parameters(scenario, build_topology(scenario))[0] is not None
