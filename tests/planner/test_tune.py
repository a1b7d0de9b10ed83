"""Tuner rules: complete, as the plugin reads them, gains that hold on a second road, refused where in doubt."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import InfeasibleError, ScenarioError
from commsim.nccl.environment import FUNCTIONS
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.uncertainty import Spread
from commsim.nccl.version import parse_version
from commsim.planner.tune import SIZES, Tuning, tune
from commsim.report.tuner_config import tuner_config, tuning_table
from commsim.scenario.load import load_scenarios
from commsim.scenario.schema import Scenario
from commsim.scenario.setting import build_topology

SCENARIO = """
name: One node
topology: {{preset: {preset}}}
library: {{name: nccl, version: {version}, env: {env}}}
workload: [{{collective: all_reduce, sizes: 1 MiB}}]
"""


SOME = [1 << k for k in range(14, 24)]


def scenario(folder: Path, preset: str = "hgx-h100", version: str = "2.26.2", env: str = "{}") -> Scenario:
    path = folder / "s.yaml"
    path.write_text(SCENARIO.format(preset=preset, version=version, env=env))
    return load_scenarios(path)[0]


def surely(*_: object) -> Spread:
    """A narrow band, whatever the residuals of today are."""
    return Spread(0.9, 1.15)


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    one = scenario(tmp_path_factory.mktemp("tune"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("commsim.planner.tune.spread", surely)
        return tune(one, build_topology(one), unmeasured=True)


def plugin(text: str, collective: str, nbytes: int, nodes: int, ranks: int) -> tuple[str, str, int]:
    """What NCCL's example plugin does with a file: the first line that matches, else one channel."""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        assert len(line) <= 255
        kind, low, high, algorithm, protocol, channels, of_nodes, of_ranks, _, _ = line.split(",")
        fits = kind == collective.replace("_", "") and int(low) <= nbytes <= int(high)
        if fits and int(of_nodes) in (-1, nodes) and int(of_ranks) in (-1, ranks):
            return algorithm, protocol, int(channels)
    return "", "", 1


def test_a_rule_is_for_its_ranks_and_nodes_alone(tuning: Tuning) -> None:
    """On 16 nodes a last rule of Ring and Simple made eight bytes 19 times as slow."""
    text = tuner_config(tuning)
    assert tuning.rules
    for rule in tuning.rules:
        assert plugin(text, rule.collective, rule.gain_at, 1, 8) == (
            rule.algorithm,
            rule.protocol.lower(),
            rule.channels,
        )
    for collective in FUNCTIONS:
        for nbytes in (0, 1, 8, 1 << 20, (1 << 40) - 1):
            for shape in ((4, 32), (16, 128), (2, 8)):
                assert plugin(text, collective, nbytes, *shape)[0] == ""
    assert "*nChannels = 0;" in text
    assert "*nChannels = 0;" in tuning_table(tuning)


def test_rules_end_at_the_largest_size(tuning: Tuning) -> None:
    assert min(rule.low for rule in tuning.rules) >= min(SIZES)
    assert max(rule.high for rule in tuning.rules) <= max(SIZES)


def test_gains_hold_on_a_second_road(tuning: Tuning, tmp_path: Path) -> None:
    names = {"ring": "Ring", "tree": "Tree", "nvls": "NVLS"}
    topology = build_topology(scenario(tmp_path))
    assert tuning.rules
    for rule in tuning.rules:
        env = {"NCCL_ALGO": names[rule.algorithm], "NCCL_PROTO": rule.protocol}
        version = parse_version("2.26.2")
        forced = Predictor(topology, Options(version=version, env=env)).predict(rule.collective, rule.gain_at)
        own = Predictor(topology, Options(version=version)).predict(rule.collective, rule.gain_at)
        assert forced.time_s == pytest.approx(rule.time_s, rel=1e-9)
        assert own.time_s / forced.time_s == pytest.approx(rule.gain, rel=1e-9)
        assert rule.gain > 1.0


def test_gains_inside_the_band_are_left_to_nccl(tuning: Tuning) -> None:
    assert tuning.refused
    assert min(r.gain for r in tuning.rules) > 1.05
    assert "inside the error band" in tuning_table(tuning)


def test_nothing_to_gain_is_refused_and_nothing_written(tmp_path: Path) -> None:
    one = scenario(tmp_path, env="{NCCL_ALGO: Ring, NCCL_PROTO: Simple}")
    with pytest.raises(InfeasibleError, match="no choice gains more on hgx-h100 than predictions of the kind err"):
        tune(one, build_topology(one), unmeasured=True)
    result = CliRunner().invoke(app, ["tune", str(tmp_path / "s.yaml"), "-o", str(tmp_path / "t.conf"), "--unmeasured"])
    assert isinstance(result.exception, InfeasibleError)
    assert not (tmp_path / "t.conf").exists()


def test_other_libraries_and_old_versions_are_refused(tmp_path: Path) -> None:
    old = scenario(tmp_path, version="2.19.3")
    with pytest.raises(ScenarioError, match=r"NCCL 2\.19\.3 has no tuner plugin with a cost table"):
        tune(old, build_topology(old))


@pytest.mark.parametrize(("version", "known"), [("2.20.5", False), ("2.21.5", True)])
def test_plugins_have_a_cost_table_since_2_21(
    version: str, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commsim.planner.tune.spread", lambda *_: Spread(0.99, 1.01))
    monkeypatch.setattr("commsim.planner.tune.choice_margin", lambda: 1.0)
    one = scenario(tmp_path, version=version)
    with nullcontext() if known else pytest.raises(ScenarioError, match=r"expected 2\.21(\.0)? or later"):
        assert tune(one, build_topology(one), unmeasured=True, sizes=SOME).rules


def test_a_collective_that_nccl_cannot_run_has_no_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an all-reduce goes by trees of both directions."""
    monkeypatch.setattr("commsim.planner.tune.spread", lambda *_: Spread(0.99, 1.01))
    monkeypatch.setattr("commsim.planner.tune.choice_margin", lambda: 1.0)
    one = scenario(tmp_path, version="2.26.2", env="{NCCL_ALGO: Tree}")
    assert {r.collective for r in tune(one, build_topology(one), unmeasured=True, sizes=SOME).rules} == {"all_reduce"}


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commsim.planner.tune.spread", surely)
    scenario(tmp_path)
    out = tmp_path / "t.conf"
    result = CliRunner().invoke(app, ["tune", str(tmp_path / "s.yaml"), "-o", str(out), "--unmeasured"])
    assert result.exit_code == 0, result.output
    assert "rules differ from what NCCL 2.26.2 chooses" in result.stdout
    assert out.read_text().startswith("# commsim")


def test_rules_are_for_the_types_and_reductions_of_the_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuning: Tuning
) -> None:
    monkeypatch.setattr("commsim.planner.tune.spread", lambda *_: Spread(0.99, 1.01))
    monkeypatch.setattr("commsim.planner.tune.choice_margin", lambda: 1.0)
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.format(preset="hgx-h100", version="2.26.2", env="{}").replace(
        "sizes: 1 MiB", "sizes: 1 MiB, dtype: bfloat16, redop: avg"
    ))  # fmt: skip
    one = load_scenarios(path)[0]
    averages = tune(one, build_topology(one), unmeasured=True, sizes=[1 << k for k in range(18, 30)])
    of_sums, of_averages = (
        {name for r in some.rules if r.collective == "all_reduce" for name in (r.algorithm, r.nccl.split("/")[0])}
        for some in (tuning, averages)
    )
    assert "nvls" in of_sums
    assert "nvls" not in of_averages
    for text in (tuner_config(averages), tuning_table(averages)):
        assert "# all_reduce: avg of bfloat16\n" in text
        assert "# reduce, reduce_scatter: sum of float32\n" in text
        assert "# all_reduce not by NVLS: no NVSwitch does an avg of bfloat16 (PreMulSum)\n" in text
    assert "# reduce, reduce_scatter, all_reduce: sum of float32\n" in tuner_config(tuning)
