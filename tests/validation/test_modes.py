"""What each mode may see of a system, and on which sizes it is scored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from commsim.fitting.fields import space
from study.baselines import NAMES, three_lines
from study.case import Case
from study.cases import case_of
from study.log import Log
from study.modes import FEW, MODES, nearest, outcomes, reference
from study.system import System, predictor_of

SIZES = tuple(2**k for k in range(8, 31, 2))


def _case(slug: str, collective: str = "all_reduce", nodes: int = 1, machine: str = "hgx-h100", **more: str) -> Case:
    row = {
        "slug": slug,
        "collective": collective,
        "machine": machine,
        "nodes": str(nodes),
        "gpus_per_node": "4",
        "nccl_version": "2.26.2",
        "launch": "one_process" if nodes == 1 else "process_per_gpu",
        "env": "NCCL_NVLS_ENABLE=0",
        "healthy": "yes",
        "source_url": "https://github.com/one/x",
    }
    if nodes > 1:
        row |= {"network": "infiniband", "nics_per_node": "8", "nic_gbps": "400"}
    row |= more
    return case_of({"n_ranks": str(nodes * int(row["gpus_per_node"]))} | row, Path())


def _known(case: Case, seconds: np.ndarray) -> Log:
    return Log(case, SIZES, seconds, seconds)


def _system(cases: Sequence[Case], scale: Sequence[float] | None = None, **hidden: float) -> System:
    """Logs that the model itself made, with some fields of Hopper e^x times those shipped, and each log scaled."""
    x = np.zeros(len(space().fields))
    for name, by in hidden.items():
        x[space().index["hopper", name.replace("__", ".")]] = by
    made = [predictor_of(c).times(c.collective, SIZES, space().values(x)) for c in cases]
    factors = scale or [1.0] * len(cases)
    return System([_known(c, s * f) for c, s, f in zip(cases, made, factors, strict=True)])


def _error(system: System, mode: str, i: int) -> float:
    outcome = outcomes(system, mode, set(system.known()))[i]
    return float(np.mean(np.abs(outcome.seconds / system.logs[i].time_s - 1)[outcome.scored]))


def test_modes_score_what_they_have_not_seen() -> None:
    system = _system([_case("a"), _case("b", "all_gather"), _case("c", gpus_per_node="8")])
    few = outcomes(system, "few", {0, 1, 2})
    assert [int((~o.scored).sum()) for o in few.values()] == [3, 3, 3]
    two = outcomes(system, "two", {0})
    assert two[0].scored.tolist() == [False, *[True] * 10, False]
    assert {*two} == {0}
    calibrated = outcomes(system, "calibrated", {0, 1, 2})
    assert all(not o.scored[0] and o.scored[1] for o in calibrated.values())
    transfer = outcomes(system, "transfer", {0, 1, 2})
    assert [bool(transfer[i].scored.any()) for i in range(3)] == [False, True, True]
    assert transfer[0].reason == "the log that the system was fitted on"
    shapes = outcomes(system, "shapes", {0, 1, 2})
    assert all(o.scored.all() for o in shapes.values())


@pytest.mark.parametrize("mode", ["two", "few", "transfer", "shapes", "calibrated"])
def test_what_makes_a_machine_slow_is_carried_to_what_was_not_seen(mode: str) -> None:
    """Base and hop of LL are 1.35 times those shipped: what a mode sees of one log serves sizes and shapes unseen."""
    cases = [_case(name, launch="process_per_gpu", gpus_per_node=gpus) for name, gpus in (("a", "4"), ("b", "8"))]
    system = _system(cases, base__LL=0.3, ring_hop__nvlink__LL=0.3)
    assert _error(system, mode, 1) < 0.6 * _error(system, "zero-shot", 1)


def test_zero_shot_sees_nothing() -> None:
    cases = [_case("a"), _case("b", gpus_per_node="8")]
    one, other = _system(cases), _system(cases, scale=(3.0, 0.2))
    for i in (0, 1):
        a, b = (outcomes(system, "zero-shot", {i})[i].seconds for system in (one, other))
        assert np.array_equal(a, b)


def test_shapes_do_not_see_the_shape_that_is_scored() -> None:
    cases = [_case("a"), _case("b", gpus_per_node="8"), _case("c", "all_gather", gpus_per_node="8")]
    one, other = _system(cases), _system(cases, scale=(1.0, 3.0, 3.0))
    a, b = (outcomes(system, "shapes", {1})[1].seconds for system in (one, other))
    assert np.array_equal(a, b)
    a, b = (outcomes(system, "shapes", {0})[0].seconds for system in (one, other))
    assert not np.allclose(a, b)
    lonely = _system(cases[:1])
    assert outcomes(lonely, "shapes", {0})[0].reason == "the system has logs of one shape only"


def test_a_degraded_log_is_fitted_by_none_and_scored_by_all() -> None:
    cases = [_case("a"), _case("b", gpus_per_node="8", healthy="no")]
    system = _system(cases, scale=(1.0, 3.0))
    calm = _system(cases)
    for mode in ("transfer", "shapes", "calibrated"):
        out, other = outcomes(system, mode, {0, 1}), outcomes(calm, mode, {0, 1})
        assert out[1].scored.any(), mode
        assert np.array_equal(out[0].seconds, other[0].seconds, equal_nan=True), mode


def test_forced_takes_the_choice_nearest_to_what_was_measured() -> None:
    """Times of the tree where NCCL would choose the ring: forced finds them, zero-shot does not."""
    case = _case("a")
    tree = _case("a", env="NCCL_NVLS_ENABLE=0;NCCL_ALGO=Tree;NCCL_PROTO=Simple")
    system = System([_known(case, predictor_of(tree).times("all_reduce", SIZES, {}))])
    assert _error(system, "forced", 0) < 1e-9
    assert _error(system, "zero-shot", 0) > 0.1
    assert np.array_equal(
        outcomes(system, "zero-shot", {0})[0].seconds, outcomes(system, "forced", {0})[0].beside["shipped"]
    )


def test_a_number_out_of_reach_leaves_the_shipped_parameters() -> None:
    system = _system([_case("a")], scale=(40.0,))
    two = outcomes(system, "two", {0})[0]
    assert np.array_equal(two.seconds, two.beside["shipped"])


def test_a_fit_to_few_sizes_is_to_the_undisturbed_ones() -> None:
    """One of three measured sizes was disturbed: the fit does not follow it."""
    calm = _system([_case("a")]).logs[0]
    disturbed = calm.time_s * np.where(np.arange(len(SIZES)) == nearest(SIZES, FEW)[0], 4.0, 1.0)
    logs = [Log(calm.case, SIZES, disturbed, calm.time_s), calm, _known(calm.case, disturbed)]
    told, quiet, followed = (outcomes(System([log]), "few", {0})[0].seconds for log in logs)
    assert np.array_equal(told, quiet)
    assert not np.allclose(told, followed)


def test_calibrated_ends_at_the_log_itself() -> None:
    """Two logs of one system that differ by half: one set of values cannot meet both, one from there for each can."""
    system = _system([_case("a"), _case("b")], scale=(1.25, 0.8))
    assert _error(system, "calibrated", 0) < 0.1
    assert _error(system, "calibrated", 1) < 0.1


def _log(slug: str, collective: str = "all_reduce", nodes: int = 1, **more: str) -> Log:
    return _known(_case(slug, collective, nodes, **more), np.ones(len(SIZES)))


def test_the_reference_log_of_a_system_is_one_in_the_middle() -> None:
    logs = [_log("b"), _log("a"), _log("c", "all_gather"), _log("d", gpus_per_node="8", healthy="no")]
    assert reference(logs, range(4)) == 1
    assert reference(logs, [2, 3]) is None
    sizes = [_log("n", gpus_per_node=str(n)) for n in (1, 2, 4, 8, 8)]
    assert reference(sizes, range(5)) == 2
    assert reference([*sizes, _log("z", nodes=512), _log("y", nodes=512)], range(7)) == 2


def test_nearest_sizes_in_ratio() -> None:
    assert nearest([8, 200, 400, 2**20, 2**28], (256, 2**20, 2**30)) == [1, 3, 4]
    assert nearest([2**20], (256, 2**20)) == [0]


def test_three_lines_leave_nothing_of_three_lines() -> None:
    n = np.array([2.0**k for k in range(6, 31)])
    curve = np.where(n < 2**14, 10e-6, np.where(n < 2**22, 20e-6 + n / 20e9, 50e-6 + n / 100e9))
    assert three_lines(n.astype(int).tolist(), curve) == pytest.approx(curve, rel=1e-9)


def test_baselines_are_there_for_every_size() -> None:
    facts = System([_log("x", nodes=2)]).facts(0)
    assert facts.baselines is not None
    assert set(facts.baselines) == set(NAMES)
    assert all(np.all(seconds > 0) and seconds.size == len(SIZES) for seconds in facts.baselines.values())
    assert np.all(facts.baselines["tuner_or_launch"] >= facts.baselines["tuner"])


def test_a_log_that_cannot_be_predicted_says_why_and_others_are_scored() -> None:
    system = System([_log("x", machine="MI300X"), _log("y")])
    assert "MI300X" in system.facts[0].fault
    assert system.known() == [1]
    for mode in MODES:
        assert {*outcomes(system, mode, {1})} == {1}, mode
