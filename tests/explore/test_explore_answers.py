"""What the page shows: equal to what the command line prints, and every fault in its words."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from commsim.cli import app
from commsim.collectives.registry import ALGORITHMS
from commsim.explorer.answers import answer
from commsim.explorer.options import options
from commsim.explorer.state import State
from commsim.planner.question import PlanFile
from commsim.scenario.predictors import Cache

CACHE = Cache()
PROGRESS: list[tuple[str, int, int]] = []


def _say(what: str, done: int, of: int) -> None:
    PROGRESS.append((what, done, of))


def asked(question: str, values: dict[str, str], more: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of a worker."""
    made: dict[str, Any] = json.loads(answer(question, values, Path(), CACHE, _say, more))
    return made


def printed(values: dict[str, str], folder: Path) -> str:
    """What `commsim run` prints of the state's YAML."""
    path = folder / "question.yaml"
    path.write_text(asked("forms", values)["yaml"])
    result = CliRunner().invoke(app, ["run", str(path), "--no-files"])
    assert result.exit_code in (0, 1), result.output
    return result.stdout


@pytest.mark.parametrize(
    "values",
    [
        {"sizes": "8 B .. 1 GiB x32"},
        {"sizes": "1 MiB", "nodes": "2", "rate": "800 Gb/s", "over": "2", "leaf": "1"},
        {"sizes": "64 KiB, 16 MiB", "library": "none", "algorithm": "ring", "nodes": "1", "on": "hgx-h100"},
        {"sizes": "16 MiB", "faults": "nic:0.3:0.5", "ncclalgo": "Ring", "version": "2.20.5"},
    ],
    ids=["sizes", "machine", "raw", "fault"],
)
def test_the_curve_is_what_run_prints(values: dict[str, str], tmp_path: Path) -> None:
    shown = asked("curve", values)
    text = printed(values, tmp_path)
    assert shown["text"] == text
    rows = [line.split() for line in text.splitlines() if line and line[0] == " "]
    for cells, row in zip(shown["rows"], rows, strict=True):
        assert set(cells[1:7]) - {"-"} <= set(row)


def test_the_step_is_what_run_prints(tmp_path: Path) -> None:
    values = {"tab": "step", "nodes": "4", "gb": "32"}
    shown = asked("step", values)
    assert shown["text"] == printed(values, tmp_path)
    figures, lines = dict(shown["figures"]), shown["text"].splitlines()
    for name in ("step", "MFU", "tokens/s/GPU"):
        line = next(line for line in lines if line.startswith(f"  {name} "))
        assert line.split(name)[1].strip().startswith(figures[name])
    assert shown["timeline"]["rows"] == ["stage 0", "stage 1", "stage 2", "stage 3"]


def test_the_three_forms_ask_the_same(tmp_path: Path) -> None:
    values = {"nodes": "2", "sizes": "1 MiB", "rate": "200 Gb/s"}
    forms = asked("forms", values)
    words = forms["command"].split()
    assert words[:5] == ["commsim", "run", "all_reduce", "--on", "hgx-h100-ndr400"]
    in_python = eval(forms["python"].partition("cs.run(")[2].rstrip(")\n"))
    assert in_python == yaml.safe_load(forms["yaml"])
    line = CliRunner().invoke(app, [*_split(forms["command"])[1:], "--no-files"])
    rows = [row for row in printed(values, tmp_path).splitlines() if row.startswith(" ")]
    assert rows == [row for row in line.stdout.splitlines() if row.startswith(" ")]


def _split(command: str) -> list[str]:
    import shlex

    return shlex.split(command)


@pytest.mark.parametrize(
    ("question", "values", "message"),
    [
        ("curve", {"nodes": "x"}, "topology.nodes: found 'x', expected a whole number"),
        ("curve", {"sizes": "8 B .. 4 B"}, "expected its first size not above its last"),
        ("curve", {"on": "hgx-h100-ndr"}, "unknown preset"),
        ("curve", {"protocol": "LL", "ncclalgo": "NVLS"}, "NCCL cannot run all_reduce"),
        ("curve", {"nodez": "1"}, "unknown key"),
        ("topology", {"node": "-1"}, "node: found '-1', expected one of 0..3"),
        ("topology", {"size": "big"}, "found 'big'"),
        ("step", {"pp": "7"}, "tp*pp*cp*dp = 8*7*1*1 = 56, but the cluster has 32 GPUs"),
        ("schedule", {"ranks": "65"}, "expected 1 to 64"),
        ("schedule", {"schedule": "rings"}, "did you mean 'ring'"),
        ("schedule", {"schedule": "torus_3d", "ranks": "64"}, "to look at; take fewer ranks"),
        ("plan", {"model": "llama"}, "model"),
    ],
)
def test_a_fault_has_the_words_of_the_command_line(question: str, values: dict[str, str], message: str) -> None:
    error = asked(question, values)["error"]
    assert message in error
    assert "internal error" not in error
    assert not error.startswith(":")


@pytest.mark.parametrize(("kind", "algorithm"), sorted(ALGORITHMS))
def test_every_schedule_ends_where_it_must(kind: str, algorithm: str) -> None:
    shown = asked("schedule", {"collective": kind, "schedule": algorithm})
    held = {(e, d): n for e, d, n in shown["first"]}
    for step in shown["steps"]:
        held |= {(e, d): n for e, d, n in step["cells"]}
    assert all(held.get((e, d)) == n for e, d, n in shown["goal"])
    assert shown["steps"]
    assert all(0 <= src < shown["endpoints"] > dst for step in shown["steps"] for src, dst, _, _ in step["moves"])


def test_the_drawing_has_a_fault_at_its_line() -> None:
    shown = asked("topology", {"faults": "nic:0.3:0.5;switch:leaf0.rail2:failed", "size": "256 MiB"})
    states = {line["place"]: line["state"] for line in shown["fabric"]["lines"]}
    assert states["nic:0.3"] == "degraded"
    assert states["nic:1.2"] == "failed"
    assert states["nic:1.3"] == ""
    heat = {line["place"]: line["heat"] for line in shown["fabric"]["lines"]}
    assert heat["nic:1.2"] is None
    assert 0 < heat["nic:1.0"] < heat["nic:0.3"] <= 1


@pytest.mark.parametrize(
    "values",
    [
        {"on": "gh200x4-dragonfly200", "nodes": "16"},
        {"on": "torus-2d-example", "nodes": "16"},
        {"on": "dgx-1v", "nodes": "1"},
        {"on": "hgx-h100-fat-tree-3level", "nodes": "64", "node": "63"},
        {"on": "gb200-nvl72", "nodes": "1", "library": "synthesized"},
    ],
    ids=lambda values: str(values["on"]),
)
def test_a_machine_of_any_kind_is_drawn(values: dict[str, str]) -> None:
    shown = asked("topology", values | {"size": "1 MiB"})
    assert "error" not in shown, shown
    for part in filter(None, (shown["fabric"], shown["node"])):
        assert part["lines"]
        for box in part["boxes"]:
            assert box["x"] >= -12
            assert box["x"] + box["w"] <= part["width"] + 12
            assert 0 <= box["y"] <= box["y"] + box["h"] <= part["height"]
        names = {box.get("title") for box in part["boxes"]}
        assert all(line["title"].split(" - ")[0] in names for line in part["lines"])


@pytest.mark.slow
def test_a_click_on_a_line_is_a_fault_that_the_machine_has() -> None:
    for values in ({}, {"on": "dgx-1v-edr100", "nodes": "2"}, {"nodes": "8", "leaf": "4"}):
        shown = asked("topology", values | {"size": "1 MiB"})
        places = {line["place"] for part in (shown["fabric"], shown["node"]) for line in part["lines"]}
        some = sorted(places)[:: max(1, len(places) // 6)]
        for place in some:
            again = asked("topology", values | {"size": "1 MiB", "faults": f"{place}:0.5"})
            assert "error" not in again, (place, again)
            states = [line for part in (again["fabric"], again["node"]) for line in part["lines"] if line["state"]]
            assert place in {line["place"] for line in states}


@pytest.mark.parametrize(
    "values",
    [
        {"nodes": "8", "leaf": "2", "over": "4"},
        {"on": "gb200-nvl72-ndr", "nodes": "2"},
        {"nodes": "64", "node": "30"},
        {"on": "hgx-h100-fat-tree-3level", "nodes": "64"},
    ],
    ids=lambda values: f"{values.get('on', 'hgx')}-{values['nodes']}",
)
def test_what_is_left_out_of_the_fabric_is_marked_and_no_box_stands_apart(values: dict[str, str]) -> None:
    fabric = asked("topology", values | {"size": "1 MiB"})["fabric"]
    ends = {tuple(line[end]) for line in fabric["lines"] for end in ("from", "to")}
    rows: dict[float, list[dict[str, Any]]] = {}
    for box in fabric["boxes"]:
        middle = box["y"] + box["h"] / 2
        rows.setdefault(middle, []).append(box)
        if box.get("place"):
            edges = {(box["x"] + box["w"] / 2, middle + side * box["h"] / 2) for side in (-1, 1)}
            assert edges & ends, box["title"]
    for row in rows.values():
        row.sort(key=lambda box: box["x"])
        numbers = [box.get("node", -1) for box in row]
        for before, after in pairwise(n for n, box in zip(numbers, row, strict=True) if n >= 0 or box["text"] == "…"):
            assert after == before + 1 or -1 in (before, after)
    shown = {box["title"] for box in fabric["boxes"] if box.get("place", "").startswith("switch:")}
    if values["nodes"] == "8":
        assert shown == {f"leaf{leaf}.rail{rail}" for leaf in (0, 3) for rail in range(8)} | {"spine0"}
        assert [box["text"] for box in fabric["boxes"]].count("…") == 2


def test_a_fault_without_its_place_is_refused() -> None:
    assert asked("faults", {"faults": "nic:1.2:failed", "sizes": "no size"}) == {}
    for fault in ("nic:xx:0.5", "nic:9.9:0.5", "switch:leaf9:failed", "node:4:failed"):
        assert asked("faults", {"faults": fault})["error"]


@pytest.mark.parametrize(
    ("values", "command"),
    [
        ({"tab": "schedule", "schedule": "tree"}, "commsim schedule show tree -c all_reduce -n 8 --ranks-per-node 4"),
        ({"tab": "plan"}, "commsim plan plan.yaml"),
        ({"tab": "step"}, "commsim run llama3-70b"),
    ],
)
def test_each_tab_is_copied_as_its_own_command(values: dict[str, str], command: str) -> None:
    assert asked("forms", values)["command"].startswith(command)


def test_the_plan_is_copied_as_its_file(tmp_path: Path) -> None:
    forms = asked("forms", {"tab": "plan", "model": "llama3-8b", "nodes": "1"})
    assert yaml.safe_load(forms["yaml"])["plan"]["model"] == "llama3-8b"
    (tmp_path / "plan.yaml").write_text(forms["yaml"])
    assert PlanFile.model_validate(yaml.safe_load(forms["yaml"])).plan.best == 6


def test_a_model_has_its_own_length_and_the_batch_of_one_line() -> None:
    state = State.of({"model": "llama-33b", "on": "dgx-a100-hdr200", "nodes": "8", "tp": "4", "pp": "2"})
    training = state.document("training")["workload"][0]["training"]
    assert "seq_len" not in training
    assert training["global_batch_size"] == 64


def test_a_plan_says_that_a_fault_makes_a_node_differ() -> None:
    assert "a fault that makes one node differ" in asked("plan", {"tab": "plan", "faults": "nic:0.3:failed"})["error"]


def test_sizes_are_said_as_people_say_them_and_warnings_have_no_place() -> None:
    shown = asked("curve", {"sizes": "1 GiB", "over": "2"})
    assert shown["rows"][0][0] == "1 GiB"
    assert shown["warnings"]
    assert not any(warning.startswith(":") for warning in shown["warnings"])


def test_what_is_one_is_said_as_one() -> None:
    assert "; a rank sends 1.75 times the array" in asked("schedule", {"schedule": "ring"})["facts"]
    assert "1 step, " in asked("schedule", {"collective": "all_gather", "schedule": "direct", "ranks": "2"})["facts"]


def test_what_each_control_would_give() -> None:
    shown = asked("around", {"tab": "step", "nodes": "1", "model": "llama3-8b", "pp": "2", "tp": "4", "gb": "8"})
    by_words = {row["words"]: row for row in shown["rows"]}
    assert by_words["stages 1"]["change"] == {"pp": "1"}
    alone = asked("step", {"tab": "step", "nodes": "1", "model": "llama3-8b", "pp": "1", "tp": "4", "gb": "8"})
    assert by_words["stages 1"]["step"] == f"{alone['step_s']:.3f} s"
    assert by_words["NICs of 800 Gb/s"]["same"]
    assert "tensor parallel 8" in by_words


@pytest.mark.slow
def test_a_point_of_the_plan_shows_its_step() -> None:
    PROGRESS.clear()
    shown = asked("plan", {"tab": "plan", "nodes": "1", "model": "llama3-8b", "gb": "64"})
    assert {what for what, _, _ in PROGRESS} == {"ranking", "simulating"}
    assert " on 1 x hgx-h100-ndr400" in shown["sentences"][0]  # the machine that was asked, though twice of it is best
    assert len(shown["columns"]) == len(shown["rows"][0])
    assert "v" in shown["columns"] or "v 1" in shown["alike"]
    point = shown["points"][0]
    step = asked("step", point["state"] | {"tab": "step"})
    assert f"{step['step_s']:.3f}" == shown["rows"][0][2]


@pytest.mark.slow
def test_a_log_is_judged_and_laid_over_the_curve() -> None:
    path = Path(__file__).parents[1] / "data/logs/all_reduce_one_process.log"
    on_page = asked("log", {"on": "hgx-h100", "nodes": "1"}, {"path": str(path), "against": "page"})
    assert "error" in on_page or on_page["verdicts"]
    shown = asked("log", {}, {"path": str(path), "against": "hgx-h100"})
    verdict = shown["verdicts"][0]
    line = CliRunner().invoke(app, ["compare", str(path), "--on", "hgx-h100"])
    assert verdict["answer"] in line.stdout
    assert verdict["text"] in line.stdout
    assert [s["look"] for s in shown["curves"][0]["series"]] == ["points", "points"]


def test_a_log_that_does_not_say_its_machine_asks() -> None:
    path = Path(__file__).parents[2] / "validation/measured/a100_80g_cw_x2_all_reduce.csv"
    shown = asked("log", {}, {"path": str(path), "against": ""})
    assert shown["ask"].startswith("Which machine is this?")
    assert shown["choices"]


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"\x00\xff" * 100)
    error = asked("log", {}, {"path": str(path), "against": ""})["error"]
    assert "internal" not in error
    assert str(tmp_path) not in error


def test_every_choice_of_the_controls_is_known() -> None:
    known = options()
    assert known["version"] in known["versions"]
    assert known["defaults"]["model"] in known["models"]
    assert known["defaults"]["on"] in {preset["name"] for preset in known["presets"]}
