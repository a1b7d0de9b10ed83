"""A fit of many logs finds values that were hidden in synthetic curves; what each mode may see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commsim.accuracy.fields import space
from study.baselines import NAMES, three_lines
from study.case import Case
from study.case_planes import CasePlanes, case_planes, explored
from study.cases import case_of
from study.modes import FEW, Study, nearest, reference
from study.pooled_fit import Log, fit, stack, weights
from study.workers import Workers

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


@pytest.fixture(scope="module")
def origin() -> np.ndarray:
    return np.zeros(len(space().fields))


def _known(case: Case, seconds: np.ndarray) -> Log:
    return Log(case, SIZES, seconds, seconds)


def _unknown(case: Case) -> Log:
    return _known(case, np.ones(len(SIZES)))


def _study(x: np.ndarray, cases: list[Case]) -> tuple[list[Log], Study]:
    zero = np.zeros_like(x)
    made = [_unknown(case) for case in cases]
    truth = Workers(1).times(made, [x] * len(made))
    logs = [_known(case, seconds) for case, seconds in zip(cases, truth, strict=True)]
    found = {i: p for i, p in enumerate(Workers(1).planes(logs, [zero] * len(logs))) if isinstance(p, CasePlanes)}
    return logs, Study(logs, stack(logs, [found]), frozenset(range(len(logs))))


def test_a_fit_finds_what_made_the_curves(origin: np.ndarray) -> None:
    hidden = origin.copy()
    hidden[space().index["hopper", "base.LL"]] = 0.25
    hidden[space().index["hopper", "block_rate.Simple"]] = -0.1
    _, study = _study(hidden, [_case("a"), _case("b", "all_gather"), _case("c", nodes=2)])
    use = study.rows.of_logs([0, 1, 2])
    x = fit(study.rows, use, weights(study.rows, use, study.systems))
    predicted = np.max(study.rows.constant + study.rows.slope @ np.exp(space().sign * x), axis=0)
    assert np.mean(np.abs(predicted / study.rows.measured - 1)) < 0.03
    before = np.max(study.rows.constant + study.rows.slope.sum(axis=2), axis=0)
    assert np.mean(np.abs(predicted / study.rows.measured - 1)) < np.mean(np.abs(before / study.rows.measured - 1))


def test_zero_shot_does_not_see_the_scored_system(origin: np.ndarray) -> None:
    hidden = origin.copy()
    hidden[space().index["hopper", "base.LL"]] = 0.5
    cases = [_case("a"), _case("b", source_url="https://github.com/two/x")]
    logs, study = _study(hidden, cases)
    before = study.zero_shot(study.systems)
    other = _known(logs[0].case, logs[0].time_s * 3)
    made = {i: case_planes(entry.case, SIZES, space().values(origin)) for i, entry in enumerate(logs)}
    changed = Study([other, logs[1]], stack([other, logs[1]], [made]), study.train)
    after = changed.zero_shot(study.systems)
    assert np.array_equal(before[cases[0].system], after[cases[0].system])
    assert not np.allclose(before[cases[1].system], after[cases[1].system])


def test_modes_score_what_they_have_not_seen(origin: np.ndarray) -> None:
    cases = [_case("a"), _case("b", "all_gather"), _case("c", gpus_per_node="8")]
    _, study = _study(origin, cases)
    zero = dict.fromkeys(study.systems, origin)
    few = study.plan("few", zero)
    assert [int((~s).sum()) for s in few.scored] == [3, 3, 3]
    calibrated = study.plan("calibrated", zero)
    assert all(not s[0] and s[1] for s in calibrated.scored)
    transfer = study.plan("transfer", zero)
    assert transfer.fitted == {0}
    assert [bool(s.any()) for s in transfer.scored] == [False, True, True]
    assert transfer.reason[0] == "the log that the system was fitted on"


def test_a_fit_to_few_sizes_is_to_the_undisturbed_ones(origin: np.ndarray) -> None:
    """One of three measured sizes was disturbed: the fit does not follow it."""
    logs, study = _study(origin, [_case("a")])
    zero = dict.fromkeys(study.systems, origin)
    disturbed = logs[0].time_s * np.where(np.arange(len(SIZES)) == nearest(SIZES, FEW)[0], 4.0, 1.0)
    made = {0: case_planes(logs[0].case, SIZES, space().values(origin))}

    def fitted(log: Log) -> np.ndarray:
        at = Study([log], stack([log], [made]), study.train).plan("few", zero).at[0]
        assert at is not None
        return at

    told = fitted(Log(logs[0].case, SIZES, disturbed, logs[0].time_s))
    assert np.array_equal(told, fitted(logs[0]))
    assert not np.allclose(told, fitted(_known(logs[0].case, disturbed)))


def _log(slug: str, collective: str = "all_reduce", nodes: int = 1, **more: str) -> Log:
    return _unknown(_case(slug, collective, nodes, **more))


def test_the_reference_log_of_a_system_is_one_in_the_middle() -> None:
    logs = [_log("b"), _log("a"), _log("c", "all_gather"), _log("d", gpus_per_node="8", healthy="no")]
    assert reference(logs, range(4)) == 1
    assert reference(logs, [2, 3]) is None
    sizes = [_log("n", gpus_per_node=str(n)) for n in (1, 2, 4, 8, 8)]
    assert reference(sizes, range(5)) == 2
    assert reference([*sizes, _log("z", nodes=512), _log("y", nodes=512)], range(7)) == 2


def test_calibrated_ends_at_the_log_itself(origin: np.ndarray) -> None:
    """Two logs of one system that differ by half: one set of values cannot meet both, one from there for each can."""
    cases = [_case("a"), _case("b")]
    made = Workers(1).times([_unknown(c) for c in cases], [origin] * 2)
    logs = [_known(cases[0], made[0] * 1.25), _known(cases[1], made[1] / 1.25)]
    planes_of = {i: p for i, p in enumerate(Workers(1).planes(logs, [origin] * 2)) if isinstance(p, CasePlanes)}
    study = Study(logs, stack(logs, [planes_of]), frozenset({0, 1}))
    plan = study.plan("calibrated", dict.fromkeys(study.systems, origin))
    for i, entry in enumerate(logs):
        x = plan.at[i]
        assert x is not None
        seconds, _ = study.rows.predicted(x, space().sign, study.rows.of_logs([i]))
        assert np.mean(np.abs(seconds / entry.time_s - 1)[plan.scored[i]]) < 0.1


def test_nearest_sizes_in_ratio() -> None:
    assert nearest([8, 200, 400, 2**20, 2**28], (256, 2**20, 2**30)) == [1, 3, 4]
    assert nearest([2**20], (256, 2**20)) == [0]


def test_three_lines_leave_nothing_of_three_lines() -> None:
    n = np.array([2.0**k for k in range(6, 31)])
    curve = np.where(n < 2**14, 10e-6, np.where(n < 2**22, 20e-6 + n / 20e9, 50e-6 + n / 100e9))
    assert three_lines(n.astype(int).tolist(), curve) == pytest.approx(curve, rel=1e-9)


def test_baselines_are_there_for_every_size() -> None:
    found = explored(_case("x", nodes=2), SIZES, space().values(np.zeros(len(space().fields))))
    assert isinstance(found, CasePlanes)
    assert set(found.baselines) == set(NAMES)
    assert all(np.all(seconds > 0) and seconds.size == len(SIZES) for seconds in found.baselines.values())
    assert np.all(found.baselines["tuner_or_launch"] >= found.baselines["tuner"])


def test_a_case_that_cannot_be_predicted_says_why() -> None:
    assert "MI300X" in str(explored(_case("x", machine="MI300X"), SIZES, {}))
