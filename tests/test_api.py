"""The Python API, and the schema that editors read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import commsim as cs
from commsim.errors import ScenarioError
from commsim.scenario.json_schema import scenario_schema, sweep_schema
from commsim.scenario.schema import Scenario

SCENARIO = {
    "name": "four sizes",
    "topology": {"preset": "hgx-h100-ndr400", "nodes": 2},
    "workload": [{"collective": "all_reduce", "sizes": "1 MiB .. 8 MiB x2"}],
}


def test_a_mapping_runs_as_its_file_does(tmp_path: Path) -> None:
    import yaml

    path = tmp_path / "same.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    from_mapping, from_file = cs.run(SCENARIO, "topology.nodes=1"), cs.run(path, "topology.nodes=1")
    assert from_mapping.to_frame().equals(from_file.to_frame())
    assert list(from_mapping.to_frame()["size_bytes"]) == [2**20, 2**21, 2**22, 2**23]
    assert "<table" in from_mapping._repr_html_()


def test_plot_draws_the_predicted_curve() -> None:
    figure = cs.plot(cs.run(SCENARIO))
    assert any(np.size(line.get_xdata()) == 4 for axes in figure.axes for line in axes.lines)


def test_faults_of_a_mapping_name_its_path() -> None:
    with pytest.raises(ScenarioError, match=r"topology\.nodes: found 'two'"):
        cs.run({**SCENARIO, "topology": {"preset": "hgx-h100-ndr400", "nodes": "two"}})


def test_several_scenarios_are_for_run_all(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("\n---\n".join(json.dumps({**SCENARIO, "name": name}) for name in ("one", "two")))
    assert [r.name for r in cs.run_all(path)] == ["one", "two"]
    with pytest.raises(ScenarioError, match="found 2 scenarios"):
        cs.run(path)


def test_names_are_those_of_the_api() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        cs.nothing  # type: ignore[attr-defined]  # noqa: B018
    stub = (Path(cs.__file__).parent / "__init__.pyi").read_text()
    from commsim import api

    assert all(f"import {name} as {name}" in stub for name in api.__all__)


def test_importing_commsim_is_light() -> None:
    code = "import commsim, sys; print([m for m in ('numpy', 'pydantic', 'typer') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_schema_knows_every_key_and_the_short_forms() -> None:
    schema = scenario_schema()
    assert set(schema["properties"]) == set(Scenario.model_fields)
    assert "nccl" in schema["$defs"]["Library"]["anyOf"][0]["enum"]
    assert "prefixItems" not in json.dumps(schema)
    assert set(sweep_schema()["properties"]) > set(schema["properties"])
