"""`commsim doctor --testbed` on real gloo ranks: one of eight cables shaped to a half or to a tenth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commsim.errors import MeasurementError
from commsim.measure.testbed import obstacle, standing_testbed
from commsim.measure.wiring import wiring
from commsim.topology.presets import load_preset

MACHINE = """
name: A slow cable
topology: {{preset: testbed-star, nodes: 8, faults: [{{nic: [{node}, 0], bandwidth_factor: {share}}}]}}
library: {{name: gloo, one_host: true}}
workload: [{{collective: all_reduce, sizes: 4 MiB}}]
"""


@pytest.fixture(scope="module")
def can_stand() -> None:
    """Skips where no testbed can stand, or another one does."""
    reason = obstacle()
    if reason is None:
        try:
            with standing_testbed(wiring(load_preset("testbed-star", nodes=2))):
                return
        except MeasurementError as error:
            reason = str(error)
    pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.usefixtures("can_stand")
@pytest.mark.parametrize(("node", "share"), [(5, 0.5), (2, 0.1)])
def test_the_slow_cable_is_found(tmp_path: Path, node: int, share: float) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(MACHINE.format(node=node, share=share))
    done = subprocess.run(
        [sys.executable, "-m", "commsim", "doctor", "--testbed", str(path), "--noise", "0.1", "--json"],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["answer"]["slow"] == [f"node{node}: its network card, cable or port"]
    assert document["suspects"][0]["rate_left"] == pytest.approx(share, rel=0.2)
    assert document["tests"] <= 20
