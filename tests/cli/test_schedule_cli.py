"""`commsim schedule`: list, show, draw, check, stats, import, export."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from commsim.cli.schedule import app
from commsim.collectives import registry
from commsim.collectives.canonical import same_schedule
from commsim.collectives.json_table import json_text, load_json
from commsim.collectives.msccl import load_msccl
from commsim.collectives.ring import ring_all_reduce
from commsim.errors import CommsimError, ScheduleError, UnitError

MSCCL = Path(__file__).resolve().parents[1] / "data" / "msccl"


def schedule(*arguments: str, columns: int = 160) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})


def test_list_names_every_algorithm() -> None:
    result = schedule("list")
    assert result.exit_code == 0
    table = result.stdout.split("\n\n")[0].splitlines()[1:]
    assert [tuple(line.split()[:2]) for line in table if line[0] != " "] == registry.names()
    data = json.loads(schedule("list", "--json").stdout)
    assert [(row["collective"], row["algorithm"]) for row in data] == registry.names()


def test_list_of_one_collective_with_its_aliases() -> None:
    text = schedule("list", "-c", "broadcast").stdout
    assert "all_reduce" not in text
    assert "broadcast ring = chain" in text
    (row,) = [r for r in json.loads(schedule("list", "-c", "broadcast", "--json").stdout) if r["algorithm"] == "chain"]
    assert row["also_called"] == ["ring"]
    assert "root" in row["options"]


def test_show_is_a_table_of_steps_by_rank() -> None:
    result = schedule("show", "ring", "--collective", "all_reduce", "--ranks", "4")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "ring all_reduce, 4 ranks, 1 MiB in place: 6 steps, 24 moves of 4 chunks"
    assert lines[2].split() == ["step", "rank", "0", "rank", "1", "rank", "2", "rank", "3"]
    assert lines[3].split() == ["0", "3→1+", "0→2+", "1→3+", "2→0+"]
    assert lines[8].split() == ["5", "2→1", "3→2", "0→3", "1→0"]


def test_show_breaks_wide_tables_and_cuts_large_ones() -> None:
    text = schedule("show", "ring", "-n", "40", columns=80).stdout
    assert max(map(len, text.splitlines()[1:])) <= 80
    assert text.rstrip().endswith("... and 38 more steps and 24 more ranks")
    assert "rank 39" in schedule("show", "ring", "-n", "40", "--full").stdout


def test_show_reads_files(tmp_path: Path) -> None:
    assert "s0-1↺0-1+" in schedule("show", str(MSCCL / "exchange_2.xml")).stdout
    path = tmp_path / "mine.json"
    path.write_text(json_text(ring_all_reduce(3, 12)), encoding="utf-8")
    assert schedule("show", str(path)).stdout.startswith("ring all_reduce, 3 ranks, 12 B")


@pytest.mark.parametrize("form", ["png", "svg"])
def test_draw_writes_a_picture(form: str, tmp_path: Path) -> None:
    out = tmp_path / f"ring.{form}"
    result = schedule("draw", "ring", "-n", "4", "-o", str(out))
    assert (result.exit_code, result.stdout) == (0, "")
    assert (b"PNG" if form == "png" else b"<svg") in out.read_bytes()[:2000]
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


def test_check_proves_one() -> None:
    result = schedule("check", "ring", "-n", "5", "--channels", "2")
    assert result.exit_code == 0
    assert "proven" in result.stdout
    data = json.loads(schedule("check", "binomial", "-c", "reduce", "-n", "5", "--root", "4", "--json").stdout)
    named = {"collective": "reduce", "algorithm": "binomial", "ranks": 5, "size_bytes": 1048580}
    assert data == named | {"proven": True, "fault": None}
    assert "an MSCCL file says no size: " in schedule("check", str(MSCCL / "ring_3.xml")).stderr
    assert "says no size" not in schedule("check", str(MSCCL / "ring_3.xml"), "--nbytes", "3072").stderr


@pytest.mark.parametrize("ranks", ["8", "4,8"])
def test_nodes_that_an_algorithm_does_not_know_are_told(ranks: str) -> None:
    told = "warning: --ranks-per-node changes nothing: ring knows no nodes"
    assert told in schedule("check", "ring", "-n", ranks, "--ranks-per-node", "4").stderr
    assert told not in schedule("check", "ring", "-n", ranks).stderr
    assert "changes nothing" not in schedule("check", "tree", "-n", ranks, "--ranks-per-node", "4").stderr


def test_check_of_a_wrong_schedule_has_status_1(tmp_path: Path) -> None:
    s = ring_all_reduce(3, 12)
    path = tmp_path / "wrong.json"
    path.write_text(json_text(s.edit(src_chunk=[1, *s.src_chunk[1:].tolist()])), encoding="utf-8")
    result = schedule("check", str(path))
    assert result.exit_code == 1
    assert "fault: ring all_reduce, step 0, row 0" in result.stderr
    assert json.loads(schedule("check", str(path), "--json").stdout)["proven"] is False


def test_check_all_counts_what_is_proven() -> None:
    result = schedule("check", "--all", "--ranks", "1..3,5", "--roots", "all")
    assert result.exit_code == 0
    header, *rows = result.stdout.splitlines()
    assert header.split()[:3] == ["collective", "algorithm", "proven"]
    assert [tuple(line.split()[:2]) for line in rows[: len(registry.names())]] == registry.names()
    proven = {tuple(line.split()[:2]): int(line.split()[2]) for line in rows[: len(registry.names())]}
    assert proven["all_reduce", "ring"] == 4
    assert proven["broadcast", "chain"] == 1 + 2 + 3 + 5
    assert int(rows[len(registry.names())].split()[1]) == sum(proven.values())


def test_check_of_a_name_over_many_ranks() -> None:
    data = json.loads(schedule("check", "flat", "-c", "scatter", "-n", "2,3", "--roots", "all", "--json").stdout)
    assert [(row["algorithm"], row["proven"]) for row in data] == [("flat", 5)]


def test_check_all_with_a_fault_has_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from commsim.collectives import prove as module

    def prove(*_: object, **__: object) -> list[module.Proof]:
        return [module.Proof("all_reduce", "ring", 3, {}, [f"ring of {n} ranks: wrong" for n in range(30)])]

    monkeypatch.setattr(module, "prove", prove)
    result = schedule("check", "--all")
    assert result.exit_code == 1
    assert "fault: ring of 0 ranks: wrong" in result.stderr
    assert "... and 10 more faults" in result.stderr


def test_stats_stand_beside_the_bounds() -> None:
    data = json.loads(schedule("stats", "ring", "-n", "4", "-b", "4096 B", "--json").stdout)
    assert data["sent_bytes_most"] == data["bytes_bound"] == 6144
    assert (data["steps"], data["steps_bound"], data["longest_chain"]) == (6, 2, 6)
    assert (data["bytes_over_bound"], data["steps_over_bound"]) == (1.0, 3.0)
    text = schedule("stats", "ring", "-n", "4", "-b", "4096 B").stdout
    assert "one message at a time" in text
    assert json.loads(schedule("stats", "ring", "-n", "1", "--json").stdout)["bytes_over_bound"] is None


def test_import_proves_and_writes_a_table(tmp_path: Path) -> None:
    out = tmp_path / "ring.json"
    result = schedule("import", str(MSCCL / "ring_3.xml"), "-o", str(out), "-b", "300 B")
    assert (result.exit_code, result.stdout) == (0, "")
    assert same_schedule(load_json(out), load_msccl(MSCCL / "ring_3.xml", 300))
    assert schedule("check", str(out)).exit_code == 0


def test_import_refuses_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "wrong.xml"
    text = (MSCCL / "ring_3.xml").read_text(encoding="utf-8")
    path.write_text(text.replace('type="rrs"', 'type="rcs"', 1), encoding="utf-8")
    out = tmp_path / "out.json"
    result = schedule("import", str(path), "-o", str(out))
    assert isinstance(result.exception, ScheduleError)
    assert str(path) in str(result.exception)
    assert not out.exists()
    assert schedule("import", str(path), "-o", str(out), "--no-check").exit_code == 0


def test_export_chooses_the_form_by_the_ending(tmp_path: Path) -> None:
    for ending, start in ((".xml", "<algo "), (".goal", "num_ranks 4"), (".json", "{")):
        out = tmp_path / f"tree{ending}"
        assert schedule("export", "tree", "-n", "4", "-o", str(out)).exit_code == 0
        assert out.read_text(encoding="utf-8").startswith(start)
    assert same_schedule(load_json(tmp_path / "tree.json"), load_msccl(tmp_path / "tree.xml", 2**20))


@pytest.mark.parametrize("ranks", ["3", "5", "7"])
@pytest.mark.parametrize("name", ["ring", "torus_3d", "direct_two_shot"])
def test_the_default_size_is_whole_chunks(name: str, ranks: str) -> None:
    result = schedule("export", name, "-n", ranks, "-f", "msccl", "--protocol", "LL")
    assert result.exit_code == 0
    assert 'proto="LL"' in result.stdout


def test_export_refuses_what_the_runtime_does_not_take(tmp_path: Path) -> None:
    out = tmp_path / "ring.xml"
    result = schedule("export", "ring", "-c", "all_to_all", "-n", "17", "-o", str(out))
    assert isinstance(result.exception, ScheduleError)
    assert "has 272 steps, MSCCL's runtime takes 256" in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_import_warns_of_what_would_hang(tmp_path: Path) -> None:
    """Both ranks send three chunks before they take one: room for two is too little, for three enough."""
    gpu = (
        '<gpu id="{0}" i_chunks="3" o_chunks="3" s_chunks="3"><tb id="0" send="{1}" recv="{1}" chan="0">{2}</tb></gpu>'
    )
    step = '<step s="{}" type="{}" srcbuf="{}" srcoff="{}" dstbuf="{}" dstoff="{}" cnt="1" depid="-1" deps="-1"/>'
    kinds = [("s", "i", "s"), ("r", "s", "s"), ("re", "s", "i")]
    steps = "".join(step.format(3 * k + c, kind, a, c, b, c) for k, (kind, a, b) in enumerate(kinds) for c in range(3))
    head = 'coll="allreduce" proto="Simple" nchannels="1" nchunksperloop="3" ngpus="2" inplace="1" outofplace="0"'
    path = tmp_path / "three.xml"
    path.write_text(f"<algo {head}>{gpu.format(0, 1, steps)}{gpu.format(1, 0, steps)}</algo>", encoding="utf-8")
    result = schedule("import", str(path), "-o", str(tmp_path / "three.json"))
    assert result.exit_code == 0
    assert f"warning: {path}: on a GPU it hangs with 2 messages on a connection" in result.stderr
    assert "it needs room for 3" in result.stderr
    clean = schedule("import", str(MSCCL / "ring_3.xml"), "-o", str(tmp_path / "ring.json"))
    assert "warning" not in clean.stderr


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["show", "rign"], "did you mean 'ring'"),
        (["show", "ring", "-c", "allreduce"], "did you mean 'all_reduce'"),
        (["list", "-c", "allreduce"], "unknown collective 'allreduce'"),
        (["show", "ring", "-n", "0"], "ranks is 0"),
        (["show", "ring", "--channels", "0"], "channels is 0"),
        (["show", "ring", "--root", "1"], "has no root"),
        (["show", "absent.xml"], "cannot be read"),
        (["show", "absent.json"], "cannot be read"),
        (["show", "./ring"], "cannot be read"),
        (["show", str(MSCCL / "ring_3.xml"), "-n", "3"], "--ranks is for algorithms by name"),
        (["show", str(MSCCL / "ring_3.xml"), "-b", "7 B"], "9 bytes would be"),
        (["draw", "ring", "-o", "ring.jpg"], "expected .png or .svg"),
        (["check"], "found neither or both"),
        (["check", "ring", "--all"], "found neither or both"),
        (["check", "--all", "--nbytes", "1 MiB"], "--nbytes is for one schedule"),
        (["check", "--all", "--ranks", "8..4"], "expected a rising range from 1 on"),
        (["check", "--all", "--ranks", "0"], "from 1 on"),
        (["check", "--all", "--ranks", "many"], "found 'many'"),
        (["check", "--all", "--ranks", "1..999999"], "from 1 on"),
        (["check", "nothing", "--ranks", "1..4"], "unknown algorithm 'nothing'"),
        (["import", "absent.xml", "-o", "x.json"], "cannot be read"),
        (["import", "absent.xml", "-o", "x.xml"], "expected .json"),
        (["export", "ring"], "found no --format"),
        (["export", "ring", "-o", "x.txt"], "found the ending '.txt'"),
        (["export", "ring", "-f", "xml"], "found the format 'xml', expected one of msccl, goal, json"),
        (["export", "nvls", "-f", "msccl"], "no MSCCL file can"),
        (["export", "ring", "-f", "msccl", "--protocol", "LL256"], "unknown protocol"),
    ],
)
def test_bad_input_is_an_error_with_the_reason(arguments: list[str], match: str) -> None:
    result = schedule(*arguments)
    assert isinstance(result.exception, CommsimError)
    assert match in str(result.exception)


def test_a_size_is_read_as_by_nccl_tests() -> None:
    assert schedule("stats", "ring", "-b", "4K").stdout == schedule("stats", "ring", "-b", "4096").stdout != ""
    result = schedule("stats", "ring", "-b", "4Q")
    assert isinstance(result.exception, UnitError)
    assert "found the unit 'Q'" in str(result.exception)
