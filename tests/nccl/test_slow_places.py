"""What is slower than the rest is named whatever runs: rings, trees, registered windows, copy engines."""

from __future__ import annotations

import pytest

from commsim.nccl.predict import Options, Predictor
from commsim.nccl.version import Version
from commsim.topology.faults import degraded
from commsim.topology.presets import load_preset
from commsim.topology.spec import FaultSpec

NEW: Version = (2, 30, 7)


@pytest.mark.parametrize(
    ("options", "algorithm"),
    [
        (Options(NEW), "ring"),
        (Options(NEW, registered="window"), "symmetric"),
        (Options(NEW, registered="window", env={"NCCL_CTA_POLICY": "2"}), "copy_engine"),
    ],
)
def test_a_slow_card_is_named(options: Options, algorithm: str) -> None:
    machine = degraded(load_preset("hgx-h100-ndr400", nodes=2), [FaultSpec(nic=(1, 0), bandwidth_factor=0.25)])
    got = Predictor(machine, options).predict("all_gather", 1 << 28)
    assert (got.algorithm, got.bottleneck) == (algorithm, "NIC")
    assert "node1.nic0" in got.place
