"""The Python API, and the schema that editors read."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import commsim as cs
from commsim.errors import CommsimError, CommsimWarning, ScenarioError
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


def test_a_result_prints_as_a_table() -> None:
    result = cs.run(SCENARIO)
    name, *lines = str(result).splitlines()
    warnings, (head, *rows) = lines[: len(result.warnings)], lines[len(result.warnings) :]
    assert (name, tuple(warnings), len(rows)) == (result.name, tuple(result.warnings), 4)
    assert warnings
    assert max(map(len, (head, *rows))) < 120
    assert [row.split()[2] for row in rows] == [str(2**k) for k in range(20, 24)]
    training = {"model": "llama-2-7b", "global_batch_size": 16}
    step = cs.run(SCENARIO | {"workload": [{"training": training}]})
    assert {"model", "step_s", "mfu", "fits"} <= set(str(step).splitlines()[-2].split())


def test_what_has_no_rows_prints_how_much_there_is() -> None:
    assert str(cs.run_all("seeds/zero")[0]).splitlines()[1] == "8 claims: to_dict() has them"


def test_plot_draws_the_predicted_curve() -> None:
    figure = cs.plot(cs.run(SCENARIO))
    assert any(np.size(line.get_xdata()) == 4 for axes in figure.axes for line in axes.lines)


def test_a_log_is_judged_as_on_the_command_line(checkout: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from commsim.cli import app

    log = checkout / "tests" / "data" / "logs" / "all_reduce_one_process.log"
    scenario = checkout / "scenarios" / "allreduce-8-h100.yaml"
    printed = CliRunner().invoke(app, ["compare", str(scenario), str(log), "--no-plot", "--no-what-if"]).stdout
    of_file = cs.compare(scenario, log, what_if=False)
    of_result = cs.compare(cs.run(scenario, "workload.0.sizes=1 MiB"), log, what_if=False)
    verdict = next(line for line in printed.splitlines() if not line.startswith("#"))
    assert of_file.answer == of_result.answer == (verdict,)
    assert of_file.said
    assert all(line in printed for line in of_file.said)
    assert of_file.to_frame().equals(of_result.to_frame())
    assert of_file.answer[0] in of_file._repr_html_()
    assert str(of_file) == of_file.answer[0]
    assert cs.plot(of_file).axes
    page = cs.write_report(of_file, tmp_path / "c.html").read_text()
    assert of_file.answer[0] in page


def test_a_sweep_has_the_rows_of_the_command_line(tmp_path: Path) -> None:
    import yaml
    from typer.testing import CliRunner

    from commsim.cli import app

    path = tmp_path / "s.yaml"
    sweep = {"topology.nodes": [1, 2, 4]}
    path.write_text(yaml.safe_dump({**SCENARIO, "sweep": sweep}))
    swept = cs.sweep(path)
    CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path), "-j", "1"], catch_exceptions=False)
    assert swept.to_frame().to_csv(index=False) == (tmp_path / "rows.csv").read_text()
    assert all("topology.nodes" in line for line in swept.answer)
    assert cs.plot(swept).axes
    assert "<svg" in cs.write_report(swept, tmp_path / "s.html").read_text()


def test_a_plan_answers_in_sentences_rows_and_a_scenario(tmp_path: Path) -> None:
    import yaml

    axes = ("tp=[8]", "pp=[8]", "virtual_stages=[1]", "micro_batch_size=[1]", "recompute=[none]", "schedule=[1f1b]")
    words = [f"plan.search.{a}" for a in axes]
    planned = cs.plan("plan/gpt3-175b-1024-a100", *words, "plan.best=2", simulate=False)
    frame = planned.to_frame()
    assert list(frame["rank"]) == list(range(1, len(frame) + 1))
    assert frame["step_s"][0] == planned.best.seconds
    assert f"{planned.best.seconds:.3g} s a step" in planned.answer[0]
    assert planned.reasons
    mesh = yaml.safe_load(planned.scenario)["workload"][0]["training"]["mesh"]
    assert (mesh["tp"], mesh["pp"]) == (8, 8)
    assert cs.plot(planned).axes
    assert "Which configuration trains" in cs.write_report(planned, tmp_path / "p.html").read_text()


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


def test_a_question_in_one_line_is_answered_as_on_the_command_line() -> None:
    from typer.testing import CliRunner

    from commsim.cli import app

    words = "run all_reduce --on hgx-h100-ndr400 -n 2 -b 1M -e 4M topology.oversubscription=2 --no-files --json"
    (printed,) = json.loads(CliRunner().invoke(app, words.split()).stdout)["results"]
    with pytest.warns(CommsimWarning, match="oversubscription"):
        called = cs.run(
            "all_reduce", "topology.oversubscription=2", on="hgx-h100-ndr400", nodes=2, minbytes="1M", maxbytes=2**22
        )
    assert json.loads(json.dumps(called.to_dict()))["items"] == printed["items"]
    assert (called.name, called.scenario_hash) == (printed["name"], printed["scenario_hash"])


def test_what_is_filled_in_of_a_question_stands_in_its_warnings() -> None:
    step = cs.run("llama-3-8b", on="hgx-h100-ndr400", tp=8)
    assert "taken where nothing is said: a batch of 4 sequences" in step.warnings[0]


def test_an_explanation_has_sentences_and_a_row_for_every_change() -> None:
    asked = {"on": "hgx-h100-ndr400", "nodes": 2, "minbytes": "1G", "maxbytes": "1G"}
    reasons = cs.explain("all_reduce", **asked)  # type: ignore[arg-type]
    best = reasons.to_frame().iloc[0]
    assert any("bound by" in line for line in reasons.answer)
    assert reasons.answer[-1].endswith(
        f"commsim run all_reduce --on hgx-h100-ndr400 -n 2 -b 1G -e 1G {shlex.join(best.overrides)}"
    )
    again = cs.run("all_reduce", *best.overrides, **asked)  # type: ignore[arg-type]
    assert again.to_frame().time_us.item() == pytest.approx(best.time_us)
    assert cs.explain(again, what_if=False).to_frame().empty


def test_a_plan_and_a_sweep_are_asked_in_one_line_too() -> None:
    planned = cs.plan("llama-3-8b", on="hgx-h100-ndr400", nodes=1, simulate=False)
    assert "hgx-h100-ndr400 (8 GPUs)" in planned.answer[0]
    swept = cs.sweep("all_reduce", "topology.nodes=1..4 x2", on="hgx-h100-ndr400", minbytes="1M", maxbytes="1M")
    assert list(swept.to_frame()["topology.nodes"]) == [1, 2, 4]
    assert "sweep:" in swept.base


@pytest.mark.parametrize(
    ("function", "subject", "given", "text"),
    [
        ("run", "all_reduce", {}, r"such as cs.run\('all_reduce', on='hgx-h100-ndr400', nodes=4\)"),
        ("sweep", "all_reduce", {}, r"such as cs.sweep\('all_reduce', 'topology.nodes=4..16 x2', on="),
        ("run", "all_reduce", {"nodes": 4}, "found nodes=4 without on, expected a machine for 'all_reduce'"),
        ("run", "a.yaml", {"nodes": 4}, "of a scenario it is a change, such as 'topology.nodes=4'"),
        ("run", "all_reduce", {"on": "hgx-h10"}, "^on: found 'hgx-h10', which is no file; of presets, did you mean"),
        ("run", "all_reduce", {"on": "hgx-h100-ndr400", "node": 4}, "found the keyword 'node', did you mean 'nodes'"),
        ("run", "all_reduce", {"on": "hgx-h100-ndr400", "b": 8}, "found the keyword 'b', did you mean 'minbytes'"),
        ("run", "all_reduce", {"on": "hgx-h100-ndr400", "nodes": 1.5}, "nodes: found 1.5, expected a whole number"),
        ("run", "all_reduce", {"on": "hgx-h100-ndr400", "minbytes": "8Q"}, "minbytes: found the unit 'Q'"),
        ("run", "llama-3-8b", {"on": "hgx-h100-ndr400", "tp": 3}, "^tp=3 workload.0.training.mesh: tp"),
        ("run", "llama-3-8b", {"on": "hgx-h100-ndr400", "generate": "7"}, "^generate: found '7', expected tokens in"),
        ("plan", "llama-3-8b", {"on": "hgx-h100-ndr400", "tp": 8}, "found the keyword 'tp', expected one of on, nodes"),
        ("run", SCENARIO, {"on": "hgx-h100-ndr400"}, "found a scenario beside on='hgx-h100-ndr400'"),
    ],
)
def test_what_is_wrong_of_a_call_is_said_at_its_keyword(
    function: str, subject: object, given: dict[str, object], text: str
) -> None:
    with pytest.raises(CommsimError, match=text):
        getattr(cs, function)(subject, **given)


def test_a_sweep_whose_points_all_fail_says_the_first_reason(tmp_path: Path) -> None:
    asked = {"on": "hgx-h100-ndr400", "minbytes": "1M", "maxbytes": "1M"}
    swept = cs.sweep("all_reduce", "topology.nodes=[2,4]", "library.env.NCCL_ALGO=[NVLS]", **asked)  # type: ignore[arg-type]
    assert str(swept).startswith("2 of 2 points failed: NCCL cannot run all_reduce with algorithm nvls")
    assert "2 of 2 points failed" in swept._repr_html_()
    assert "2 of 2 points failed" in cs.write_report(swept, tmp_path / "failed.html").read_text()


def test_a_sweep_says_how_many_curves_it_leaves_out() -> None:
    swept = cs.sweep("all_reduce", "topology.nodes=[1,2]", on="hgx-h100-ndr400", minbytes="1K", maxbytes="16K")
    assert len(swept.answer) == 4
    assert swept.answer[-1].startswith("And 2 more such answers along topology.nodes")


def test_sizes_of_python_are_numbers_or_texts_of_nccl_tests() -> None:
    asked = cs.run("all_reduce", on="hgx-h100-ndr400", minbytes=np.float64(1024), maxbytes=float(2**11))
    assert list(asked.to_frame()["size_bytes"]) == [1024, 2048]
    for given, sizes in ((1024, ["1 KiB"]), ("1G", ["1 GiB"]), (None, ["1 KiB", "2 KiB"]), (np.array([8]), ["8 B"])):
        told = cs.explain(asked, sizes=given, what_if=False).answer
        assert all(any(f"all_reduce of {size} on" in line for line in told) for size in sizes)
    costs = {cs.cost("all_reduce", size, 8, "hgx-h100-ndr400") for size in ("1G", "1 GiB", 2**30, np.float64(2**30))}
    assert len(costs) == 1


ONE = {"on": "hgx-h100-ndr400", "minbytes": "1K", "maxbytes": "1K"}
TEXT = "expected a text key.path=value"


@pytest.mark.parametrize(
    ("function", "given", "keywords", "text"),
    [
        ("run", ("all_reduce", {"library.version": "2.28.9"}), ONE, f"found a mapping with library.version, {TEXT}"),
        ("run_all", ("allreduce-8-h100", b"a=b"), {}, f"^override: found b'a=b', {TEXT}"),
        ("sweep", ("all_reduce", 3), ONE, f"^override: found 3, {TEXT}"),
        *(((name, (3,), {}, "^found 3, expected a scenario: a file,")) for name in ("run", "explain", "plan", "sweep")),
        ("plan", ("llama-3-8b", None), {"on": "hgx-h100-ndr400"}, f"^override: found nothing, {TEXT}"),
        ("serve", ("llama-3-8b", 3), {}, f"^override: found 3, {TEXT}"),
        ("explore", ("allreduce-8-h100", 3), {}, f"^override: found 3, {TEXT}"),
        *(
            (
                "sweep",
                ("all_reduce", "topology.nodes=[1,2]"),
                {**ONE, "workers": workers},
                f"^workers: found {shown}, ex",
            )
            for workers, shown in ((-1, "-1"), (0, "0"), ("a", "'a'"), (None, "nothing"), (1.5, "1.5"))
        ),
        ("explain", ("all_reduce",), {**ONE, "sizes": [None]}, "^sizes: found nothing, expected bytes"),
        ("explain", ("all_reduce",), {**ONE, "sizes": 1.5}, "^sizes: found '1.5 B', which is 1.5 bytes"),
        ("run", ("all_reduce",), {**ONE, "maxbytes": True}, "^maxbytes: found true, expected bytes"),
        ("plot", (3,), {}, "^answer: found 3, expected what run, explain"),
        ("write_report", (None, "x.html"), {}, "^answer: found nothing, expected what run"),
        ("write_report", (cs.topologies(), "x.html"), {}, "^answer: found Machines, which has no page"),
        ("compare", (3,), {}, "^prediction: found 3, expected the path of a file"),
        ("compare", ("allreduce-8-h100", 3), {}, "^measured: found 3, expected the path of a file"),
    ],
)
def test_arguments_of_the_wrong_type_are_named(
    function: str, given: tuple[object, ...], keywords: dict[str, object], text: str
) -> None:
    with pytest.raises(CommsimError, match=text):
        getattr(cs, function)(*given, **keywords)
