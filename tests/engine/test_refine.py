"""Folding by colours: every op as in the full run, and nothing folded that is not proven alike."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from programs import all_to_all, on_switch, program, random_programs

from commsim.collectives.direct import two_shot_all_reduce
from commsim.collectives.recursive import recursive_doubling_all_reduce
from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.schedule import Schedule
from commsim.engine.fair import connections, simulate_fair
from commsim.engine.program import Program, build_program
from commsim.engine.refine import Quotient, refine, simulate_folded
from commsim.engine.simulate import Outcome
from commsim.topology.presets import load_preset


@pytest.mark.parametrize(("n", "classes"), [(8, 7), (64, 63)])
def test_all_to_all_is_one_message_per_distance(n: int, classes: int) -> None:
    p = all_to_all(n, 1 << 20)
    found, full = simulate_folded(p), simulate_fair(p)
    assert isinstance(found, Outcome)
    assert found.end_s == pytest.approx(full.end_s, rel=1e-12)
    assert np.array_equal(found.link_bytes, full.link_bytes)
    quotient = refine(p)
    assert isinstance(quotient, Quotient)
    assert quotient.program.rows <= classes


@pytest.mark.parametrize(
    "schedule",
    [
        ring_all_reduce(16, 16 << 16, 2, pipeline=2),
        recursive_doubling_all_reduce(16, 1 << 20),
        two_shot_all_reduce(16, 1 << 20),
    ],
)
@pytest.mark.parametrize("oversubscription", [1.0, 4.0])
def test_folded_is_full_for_every_op(schedule: Schedule, oversubscription: float) -> None:
    topology = load_preset(
        "hgx-h100-ndr400", nodes=4, gpus_per_node=4, nodes_per_leaf=2, oversubscription=oversubscription
    )
    for p in (on_switch(schedule), build_program(schedule, topology)):
        conn = connections(schedule)
        found = simulate_folded(p, conn, least_gain=0.0)
        assert isinstance(found, Outcome)
        full = simulate_fair(p, conn)
        assert found.end_s == pytest.approx(full.end_s, rel=1e-11)
        assert found.ready_s == pytest.approx(full.ready_s, rel=1e-11)


@given(random_programs(15))
def test_whatever_is_folded_is_right(p: Program) -> None:
    """Bytes in few sizes on links of one speed, so that some messages are alike and most only look it."""
    alike = dataclasses.replace(
        p,
        nbytes=p.nbytes % 2 * 1000 + 1000,
        delay_s=np.zeros(p.rows),
        link_bandwidth=np.full(p.links, 1e9),
        link_latency=np.full(p.links, 1e-6),
    )
    found = simulate_folded(alike, least_gain=0.0)
    if isinstance(found, Outcome):
        assert found.end_s == pytest.approx(simulate_fair(alike).end_s, rel=1e-9)
    else:
        assert "without a link" in found


def test_a_single_odd_message_breaks_the_symmetry() -> None:
    p = all_to_all(8, 1 << 20)
    odd = p.nbytes.copy()
    odd[0] += 1
    p = dataclasses.replace(p, nbytes=odd)
    found = refine(p)
    assert isinstance(found, Quotient)
    assert (found.op_class == found.op_class[0]).sum() == 1
    folded = simulate_folded(p)
    assert isinstance(folded, Outcome)
    assert folded.end_s == pytest.approx(simulate_fair(p).end_s, rel=1e-12)
    assert "gains nothing" in str(simulate_folded(all_to_all(8, np.arange(1, 57))))


def test_colours_that_lie_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were all hashes equal, counting would refuse the partition."""
    monkeypatch.setattr("commsim.engine.refine._MOST_ROUNDS", 0)
    p = program([5, 5], [[0], [0, 1]], bandwidth=[1e9, 1e9], latency=[0, 0])
    assert "do not prove symmetry" in str(refine(p))
