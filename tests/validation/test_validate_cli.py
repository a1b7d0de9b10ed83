"""`commsim validate collectives` on folders of logs, the project's and others."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import study.validate as validation
from commsim.cli import app, main
from commsim.document import read_documents, validate
from commsim.errors import CommsimError
from commsim.nccl.uncertainty import Residuals

HEAD = "slug,collective,n_ranks,machine,nodes,gpus_per_node,nccl_version,launch,env,healthy,date"


@pytest.fixture
def folder(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Logs that no case names: as published, too short, of a GPU that NCCL does not know, and without its file."""
    monkeypatch.setattr(validation, "training_folder", lambda: tmp_path / "none")
    source = checkout / "validation" / "measured" / "a100_80g_cw_x8_all_reduce.csv"
    text = source.read_text()
    (tmp_path / "new_a.csv").write_text(text)
    (tmp_path / "new_b.csv").write_text("\n".join(text.splitlines()[:4]) + "\n")
    (tmp_path / "new_c.csv").write_text(text)
    common = "all_reduce,8,{},1,8,2.18.1,one_process,,yes,2023-06-21"
    rows = [HEAD]
    rows += [f"{s},{common.format(g)}" for s, g in (("new_a", "dgx-a100"), ("new_b", "dgx-a100"), ("new_c", "MI300X"))]
    rows.append(f"new_d,{common.format('hgx-h200')}")
    (tmp_path / "INDEX_new.csv").write_text("\n".join(rows) + "\n")
    assert len(list(csv.DictReader(rows))) == 4
    return tmp_path


def test_a_folder_never_seen(folder: Path) -> None:
    target = folder / "out.json"
    arguments = ["validate", "collectives", "--data", str(folder), "--json", str(target), "--workers", "1"]
    arguments += ["--html", str(folder / "v.html")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    found = json.loads(target.read_text())
    rows = {r["slug"]: r for r in found["per_log"]}
    assert rows["new_a"]["mape"] < 60
    assert rows["new_a"]["fabric"] == "one_node"
    assert rows["new_b"]["mape"] is None
    assert "fewer than 4" in rows["new_b"]["reason"]
    assert "MI300X" in rows["new_c"]["reason"]
    assert "cannot be read" in rows["new_d"]["reason"]
    assert [r["mape_large"] for r in rows.values() if r["slug"] != "new_a"] == [None] * 3
    assert [w["slug"] for w in found["worst"]] == ["new_a"]
    keys = "slug collective system fabric healthy n_ranks n_nodes mape mape_small mape_mid mape_large worst_pct"
    assert {*keys.split(), "warnings", "reason"} <= set(rows["new_a"])
    assert {"all", "by_class", "by_collective", "by_system"} <= set(found["medians"])
    assert set(found["baselines"]) == {"alpha_beta", "tuner", "tuner_or_launch", "three_lines"}
    assert "one node" in result.stdout
    page = (folder / "v.html").read_text()
    answer = page[: page.index("<h2")]
    assert f"{rows['new_a']['mape']:.1f} % median error over 1 logs" in answer
    assert "Not scored" in page
    assert "MI300X" in page[page.index('">Not scored</h2>') :]


def test_few_sizes_of_a_curve_leave_the_others(folder: Path) -> None:
    """And a case file replaces what the rule says."""
    cases = folder / "cases.yaml"
    cases.write_text("systems:\n  - {slugs: [new_*], system: mine, launch: process_per_gpu, version: 2.19.3}\n")
    arguments = ["validate", "collectives", "--data", str(folder), "--mode", "few", "--json", "-", "--workers", "1"]
    arguments += ["--cases", str(cases), "--mode", "zero-shot"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    found = json.loads(result.stdout)
    assert (found["mode"], set(found["modes"])) == ("few", {"few", "zero-shot"})
    row = next(r for r in found["per_log"] if r["slug"] == "new_a")
    assert row["rows"] == 20
    assert (row["system"], row["launch"], row["version"]) == ("mine", "process_per_gpu", "2.19.3")
    assert row["mape"] < 20


def test_folders_may_follow_one_another(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "INDEX_b.csv").write_text(f"{HEAD}\nother_a,all_reduce,8,dgx-a100,1,8,2.18.1,one_process,,yes,\n")
    (other / "other_a.csv").write_text((folder / "new_a.csv").read_text())
    for arguments in (["--data", str(folder), str(other)], [str(folder), str(other), str(folder)]):
        whole = ["validate", "collectives", *arguments, "--only", "new_a,other_a", "--json", "-", "--workers", "1"]
        result = CliRunner().invoke(app, whole, catch_exceptions=False)
        rows = json.loads(result.stdout)["per_log"]
        assert {r["slug"] for r in rows} == {"new_a", "other_a"}
        assert not any("more than once" in w for r in rows for w in r["warnings"])


def test_the_report_is_written_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import study.collectives_report as page
    from study import record

    root = folder / "root"
    (root / "docs").mkdir(parents=True)
    (root / "validation").mkdir()
    monkeypatch.setattr(page, "DOCS", root / "docs")
    monkeypatch.setattr(record, "VALIDATION", root / "validation")
    monkeypatch.setattr(page, "RESIDUALS", root / "residuals.yaml")
    arguments = ["validate", "collectives", "--data", str(folder), "--workers", "1"]
    assert CliRunner().invoke(app, [*arguments, "--report"], catch_exceptions=False).exit_code == 0
    text = (root / "docs" / "accuracy.md").read_text()
    assert "## zero-shot" in text
    assert "MI300X" in text
    pictures = list((root / "docs" / "images" / "accuracy").glob("*.svg"))
    assert len(pictures) == 1
    assert f"images/accuracy/{pictures[0].name}" in text
    kinds = validate(Residuals, read_documents(root / "residuals.yaml")[0]).kinds
    inside = [("ampere", "nvlink_switch"), ("any", "nvlink_switch"), ("any", "inside a node")]
    assert [(k.generation, k.link) for k in kinds] == inside
    assert "## Bands of predictions" in text
    assert "instead of" in text or "factor" in text or "no single cause" in text  # a reason, not only a figure
    arguments += ["--mode", "all"]
    assert CliRunner().invoke(app, [*arguments, "--check"], catch_exceptions=False).exit_code == 0
    recorded = root / "validation" / "accuracy.json"
    better = json.loads(recorded.read_text())
    better["modes"]["few"][0]["mape"] = 0.1
    recorded.write_text(json.dumps(better))
    worse = CliRunner().invoke(app, [*arguments, "--check"], catch_exceptions=False)
    assert worse.exit_code == 1
    assert "few, all, logs, mape" in worse.output


def test_what_cannot_be_done_is_said_before_the_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "validate", lambda *a: pytest.fail("the work was begun"))
    (folder / "file").touch()
    for words, message in (
        (["--json", str(folder / "file" / "x.json")], "x.json: cannot be written: "),
        (["--html", str(folder)], "cannot be written: it is a folder"),
        (["--only", ""], "--only: found '', expected patterns"),
    ):
        result = CliRunner().invoke(app, ["validate", "collectives", "--data", str(folder), *words])
        assert isinstance(result.exception, CommsimError)
        assert message in str(result.exception)


def test_unknown_mode_is_named(folder: Path) -> None:
    with pytest.raises(CommsimError, match="found 'best'"):
        CliRunner().invoke(
            app, ["validate", "collectives", "--data", str(folder), "--mode", "best"], catch_exceptions=False
        )


@pytest.mark.parametrize("command", [["collectives"], ["training", "--json", "-"]])
def test_without_a_checkout_one_line_says_so(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("commsim.files.data_root", lambda: tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["commsim", "validate", *command])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "validate needs a checkout of commsim" in printed.err


def test_the_current_folder_may_be_the_checkout(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """As with an installed wheel, whose data hold no study."""
    monkeypatch.setattr("commsim.files.data_root", lambda: tmp_path / "data")
    monkeypatch.chdir(checkout / "validation")
    words = ["validate", "collectives", str(folder), "--only", "new_[ab]", "--json", "-", "--check", "--workers", "1"]
    found = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert [row["slug"] for row in found["per_log"]] == ["new_a", "new_b"]


@pytest.mark.slow
def test_no_median_is_worse_than_recorded() -> None:
    """A spread over collectives, systems and networks; the fits still see every curve of these."""
    spread = (
        "a100_80g_cw_x4_*,h100x8_*,dgx2_*,gh200x4_*,polaris_a100_n2x4_*,gj_*_n2x8_*,sophia_*_env6,abci_*_n2x*,aws_p5_*"
    )
    arguments = ["validate", "collectives", "--check", "--mode", "all", "--only", spread]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
