"""Planes touch the predictions; what a prediction reads of its parameters; fits on planes."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.fitting.curve_fit import Rows, fit
from commsim.fitting.fields import FieldSpace, parameters_at, replaced, scope_of, space, walk
from commsim.fitting.planes import FieldPredictor, noting, planes
from commsim.nccl.parameters import GENERATIONS, load_parameters
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset

SIZES = tuple(2**k for k in range(8, 31, 2))


def _job(nodes: int) -> FieldPredictor:
    topology = load_preset("hgx-h100-ndr400" if nodes > 1 else "hgx-h100", nodes=nodes, gpus_per_node=4)
    launch = "one_process" if nodes == 1 else "process_per_gpu"
    return FieldPredictor(topology, Options((2, 26, 2), {"NCCL_NVLS_ENABLE": "0"}, launch, exact=True))


def test_shipped_parameters_hold_every_listed_field() -> None:
    fitted = space()
    values = fitted.values(np.zeros(len(fitted.fields)))
    for path, value, _ in walk(parameters_at("hopper", "efa", values)):
        field = scope_of(path, "hopper", "efa"), path
        if field in values:
            assert values[field] == pytest.approx(value)


def test_the_launch_is_the_hosts_whatever_gpus_it_has() -> None:
    assert len({load_parameters(generation).launch for generation in GENERATIONS}) == 1


def test_times_and_rates_are_told_apart() -> None:
    fitted = space()
    kind = dict(zip(fitted.fields, fitted.is_time, strict=True))
    assert kind["hopper", "base.LL"]
    assert not kind["hopper", "block_rate.LL"]
    assert not kind["infiniband", "network.efficiency"]


def test_replaced_changes_only_what_is_named() -> None:
    p = load_parameters("hopper")
    q = replaced(p, {"base.LL": 1.0, "channel_cost": 2.0})
    assert (q.base.LL, q.channel_cost, q.base.Simple) == (1.0, 2.0, p.base.Simple)
    assert p.base.LL != 1.0


def test_noted_parameters_are_the_same_and_know_what_was_read() -> None:
    p, seen = load_parameters("hopper"), dict[str, float]()
    noted = noting(p, seen)
    assert isinstance(noted, type(p))
    assert noted.base.of("LL128") == p.base.LL128
    assert noted.channel_cost_of((2, 26, 2)) == p.channel_cost
    assert noted.network.name == p.network.name
    assert seen == {"base.LL128": p.base.LL128, "channel_cost": p.channel_cost}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_to_all"])
def test_a_number_that_is_not_read_changes_nothing(collective: str, nodes: int) -> None:
    predictor, seen = _job(nodes), dict[str, float]()
    start = load_parameters("hopper", predictor.network)
    here = predictor.seconds(collective, 1 << 20, noting(start, seen))
    assert here == predictor.seconds(collective, 1 << 20, start)
    others = {path: 2 * value for path, value, _ in walk(start) if path not in seen}
    assert seen
    assert others
    assert predictor.seconds(collective, 1 << 20, replaced(start, others)) == here


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all", "send_recv"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_planes_touch_where_they_are_made_and_lie_below_elsewhere(collective: str, nodes: int) -> None:
    predictor, fitted = _job(nodes), space()
    made = planes(predictor, collective, SIZES, np.zeros(len(fitted.fields)))
    assert made.constant + made.slope.sum(axis=1) == pytest.approx(made.seconds)
    x = np.where(fitted.is_time, 0.3, -0.2)
    away = made.constant + made.slope @ np.exp(fitted.sign * x)
    there = predictor.times(collective, SIZES, fitted.values(x))
    assert np.all(away <= there * 1.02)
    assert np.median(away / there) > 0.9


def test_times_are_those_of_a_plain_predictor() -> None:
    fast, start = _job(2), load_parameters("hopper", "infiniband")
    other = replaced(start, {"network.message_cost.LL": 2e-6, "base.LL": 9e-6})
    for p in (start, other, start):
        plain = Predictor(fast.topology, Options((2, 26, 2), {"NCCL_NVLS_ENABLE": "0"}), p)
        assert [fast.seconds("all_reduce", n, p) for n in SIZES] == [
            plain.predict("all_reduce", n).time_s for n in SIZES
        ]


ONE = FieldSpace(
    fields=(("gloo", "call"),),
    shipped=np.ones(1),
    is_time=np.ones(1, bool),
    covariance=np.array([[100.0]]),
    index={("gloo", "call"): 0},
)


def test_a_fit_begins_where_its_plane_says_something() -> None:
    """The plane of a far point: nothing takes any time at the start, 14 times the start fits."""
    none, four = np.zeros(3, np.int64), np.full(3, 4.0)
    rows = Rows(none, four, np.full((1, 3), -10.0), np.ones((1, 3, 1)))
    use, weight, center = np.arange(3), np.ones(3), np.zeros(1)
    assert np.exp(fit(rows, use, weight, ONE, center)) == pytest.approx(1.0)  # no step leads away
    assert np.exp(fit(rows, use, weight, ONE, center, begin=np.log([12.0]))) == pytest.approx(14.0, rel=1e-3)


def test_a_fit_follows_most_rows_and_not_the_one_that_was_disturbed() -> None:
    """Four sizes of 2 us per message and one that took ten times as long; the prior pulls a little towards 1."""
    messages = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    measured = 2 * messages * np.array([1, 1, 10, 1, 1])
    none = np.zeros(5, np.int64)
    rows = Rows(none, measured, np.zeros((1, 5)), messages[None, :, None])
    x = fit(rows, np.arange(5), np.full(5, 0.2), ONE, np.zeros(1))
    assert np.exp(x[0]) == pytest.approx(2.0, rel=0.05)
    assert np.exp(fit(rows, np.array([2]), np.ones(1), ONE, np.zeros(1))[0]) == pytest.approx(20.0, rel=0.05)


def test_rows_that_no_field_touches_leave_the_center() -> None:
    none = np.zeros(2, np.int64)
    rows = Rows(none, np.ones(2), np.ones((1, 2)), np.zeros((1, 2, 1)))
    assert fit(rows, np.arange(2), np.ones(2), ONE, np.array([0.3])) == pytest.approx(0.3)


def test_sends_byte_by_byte_note_the_rate_as_it_is() -> None:
    # Four peers' parts of 1 MiB and 4 B go at a sixteenth of the rate, which is what the parameter says all the same.
    predictor = _job(1)
    predictor.parameters = p = load_parameters("hopper")
    whole = predictor.predict("all_to_all", 4 << 20)
    seen: dict[str, float] = {}
    predictor.parameters = noting(p, seen)
    assert predictor.predict("all_to_all", (4 << 20) + 16).kernel_s > 5 * whole.kernel_s
    assert seen["point_to_point.channel_rate"] == p.point_to_point.channel_rate
    assert seen["copy_rate"] == p.copy_rate
