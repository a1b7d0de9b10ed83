"""Files of parameters whose names have changed since they were written."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import pytest

from commsim.errors import ScenarioError
from commsim.nccl.parameters import load_parameters
from commsim.scenario.params import RENAMED, read_params, with_values


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_a_name_of_before_is_answered_by_that_of_now(old: str, tmp_path: Path) -> None:
    path, shipped = tmp_path / "params.yaml", load_parameters("hopper")
    path.write_text(f"library: nccl\nprovenance: before\nvalues: {{{old}: {{value: 1 us}}}}\n")
    with pytest.raises(ScenarioError, match=f"params.yaml:3:.*it is '{RENAMED[old]}' now"):
        with_values(shipped, read_params(path), path)
    assert isinstance(reduce(getattr, RENAMED[old].split("."), shipped), float)
