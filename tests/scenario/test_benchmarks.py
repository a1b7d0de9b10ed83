"""The shipped benchmark scenarios give their closed forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run

_STEP = {
    ("w1-ring", 8): (50e9, 2e-6),
    ("w1-ring", 64): (50e9, 2e-6),
    ("w1-ring", 256): (50e9, 2e-6),
    ("w1-ring", 1024): (50e9, 2e-6),
    ("w2-two-level", 8): (450e9, 1e-6),
    ("w2-two-level", 64): (50e9, 3e-6),
    ("w2-two-level", 256): (50e9, 5e-6),
    ("w2-two-level", 1024): (50e9, 5e-6),
}


@pytest.mark.parametrize(("name", "n"), list(_STEP))
def test_the_event_engine_gives_the_closed_form(checkout: Path, name: str, n: int) -> None:
    """2(N-1)(c/B + alpha) with the slowest hop's B and alpha, for 1 GiB: all digits."""
    result = run(load_scenarios(checkout / "scenarios" / "benchmarks" / f"{name}-{n}.yaml")[0])
    bandwidth, alpha = _STEP[name, n]
    row = result.items[0].rows[0]
    assert row.level == "event"
    assert row.time_s == pytest.approx(2 * (n - 1) * (2**30 / n / bandwidth + alpha), rel=1e-9)


def test_the_wavefront_gives_w1_too(checkout: Path) -> None:
    file = checkout / "scenarios" / "benchmarks" / "w1-ring-1024.yaml"
    row = run(load_scenarios(file, ["engine=wavefront"])[0]).items[0].rows[0]
    assert row.level == "wavefront"
    assert row.time_s == pytest.approx(2046 * (2**20 / 50e9 + 2e-6), rel=1e-9)
