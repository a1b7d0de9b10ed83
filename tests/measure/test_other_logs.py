"""JSON of nccl-tests and the inspector, text of OSU and PARAM: rows as printed, everything else counted or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import LogFormatError
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve


def _group(time: float, bw: float, factor: float) -> dict[str, Any]:
    return {"time": time, "alg_bw": bw, "bus_bw": bw * factor, "nwrong": 0}


def _result(size: int, time: float) -> dict[str, Any]:
    bw = size / time / 1e3
    groups = {"out_of_place": _group(time, bw, 1.75), "in_place": _group(time * 0.9, bw / 0.9, 1.75)}
    return {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": -1} | groups


DOCUMENT = {
    "version": "2.19.6",
    "args": ["./build/all_reduce_perf", "-b", "1M", "-J", "x.json"],
    "env": ["NCCL_ALGO=Ring", "HOME=somewhere"],
    "nccl_version": 22703,
    "devices": [{"rank": r, "device": r} for r in range(8)],
    "results": [_result(1 << 20, 40.0), _result(1 << 21, 60.0)],
    "average_bus_bandwidth": {"bandwidth": 50.0, "okay": "unchecked"},
}


def _one(path: Path, text: str) -> Curve:
    path.write_text(text)
    (curve,) = read_measured(path)
    return curve


def test_json_of_nccl_tests(tmp_path: Path) -> None:
    curve = _one(tmp_path / "x.json", json.dumps(DOCUMENT, indent=1))
    assert (curve.collective, curve.n_ranks, curve.dtype) == ("all_reduce", 8, "float")
    assert curve.time_s.tolist() == pytest.approx([40e-6, 60e-6])
    assert curve.in_place_time_s is not None
    assert curve.conditions["nccl_version"] == "2.27.3"
    assert curve.conditions["env"] == "NCCL_ALGO=Ring"


def test_results_that_disagree_with_themselves_are_counted(tmp_path: Path) -> None:
    wrong = _result(1 << 22, 80.0)
    for name in ("out_of_place", "in_place"):
        wrong[name] = {**wrong[name], "time": 8.0}
    text = json.dumps(DOCUMENT | {"results": [*DOCUMENT["results"], wrong, 5]})  # type: ignore[misc]
    curve = _one(tmp_path / "x.json", text)
    assert curve.skipped_lines == 2
    assert len(curve) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "JSON without a list of results"),
        ('{"results": []}', "a table without rows"),
        ('{"results": [', "no JSON"),
        ('[{"results": 1}]', "JSON without a list of results"),
        ("{" * 5000, "no JSON"),
    ],
)
def test_other_json_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(LogFormatError, match=message):
        read_measured(tmp_path / "x.json")


def _call(size: int, time: float, coll: str = "AllReduce", algbw: float | None = None, rank: int = 0) -> str:
    bw = size / time / 1e3 if algbw is None else algbw
    perf = {"coll": coll, "coll_sn": 1, "coll_msg_size_bytes": size, "coll_exec_time_us": time}
    perf |= {"coll_algobw_gbs": bw, "coll_busbw_gbs": bw * (1.5 if coll == "AllReduce" else 0.75)}
    return json.dumps({"header": {"rank": rank, "n_ranks": 4}, "coll_perf": perf}) + "\n"


def test_lines_of_the_inspector_are_folded_by_size(tmp_path: Path) -> None:
    text = _call(1 << 20, 100) + _call(1 << 20, 120, rank=1) + _call(1 << 20, 110) + _call(1 << 10, 9) + "{broken\n"
    curve = _one(tmp_path / "x.jsonl", text)
    assert (curve.n_ranks, curve.size_bytes.tolist()) == (4, [1024, 1 << 20])
    assert curve.time_s.tolist() == pytest.approx([9e-6, 110e-6])
    assert curve.high_s is not None
    assert curve.high_s[1] == pytest.approx(120e-6)
    assert curve.skipped_lines == 1


def test_the_inspector_counts_a_rank_s_part_of_an_all_gather(tmp_path: Path) -> None:
    curve = _one(tmp_path / "x.jsonl", _call(1 << 20, 100, "AllGather", algbw=4 * (1 << 20) / 100e3))
    assert (curve.collective, curve.size_bytes.tolist()) == ("all_gather", [4 << 20])


def test_a_published_inspector_file_is_read_whole(checkout: Path) -> None:
    path = checkout.parent / "shared" / "data" / "nccl_debug" / "rtx4090_n1x4_inspector.jsonl"
    if not path.is_file():
        pytest.skip("the published files are not beside the checkout")
    (curve,) = read_measured(path)
    assert (curve.collective, curve.n_ranks, curve.skipped_lines) == ("all_reduce", 4, 0)
    assert len(curve) >= 11


OSU = """mpirun -np 4 osu_allreduce
# OSU MPI Allreduce Latency Test v7.4
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
4                       8.93
1024                   10.50
1048576              1465.73
"""


def test_osu_latency(tmp_path: Path) -> None:
    curve = _one(tmp_path / "x.txt", OSU)
    assert (curve.collective, curve.n_ranks) == ("all_reduce", 4)
    assert curve.time_s.tolist() == pytest.approx([8.93e-6, 10.5e-6, 1465.73e-6])


def test_osu_all_gather_counts_a_rank_s_part(tmp_path: Path) -> None:
    curve = _one(tmp_path / "x.txt", OSU.replace("Allreduce", "Allgather"))
    assert curve.size_bytes.tolist() == [16, 4096, 4 << 20]


PARAM = (
    "\t MPI environment - World size: 8\n"
    "\tCOMMS-RES-all_reduce-float32\t      size (B)\t   num-elements\t Latency(us):p50\tp75\tp95\tMin\tMax"
    "\tAlgBW(GB/s)\tBusBW(GB/s)\n"
    "\tCOMMS-RES-all_reduce-float32\t1048576\t262144\t50.0\t51.0\t60.0\t45.0\t70.0\t20.97\t36.70\n"
    "\tCOMMS-RES-all_reduce-float32\t2097152\t524288\t80.0\t81.0\t90.0\t75.0\t99.0\t26.21\t45.88\n"
)


def test_param(tmp_path: Path) -> None:
    curve = _one(tmp_path / "x.txt", PARAM)
    assert (curve.collective, curve.n_ranks) == ("all_reduce", 8)
    assert curve.time_s.tolist() == pytest.approx([50e-6, 80e-6])


_FORMS = {
    "osu.txt": OSU,
    "param.txt": PARAM,
    "nt.json": json.dumps(DOCUMENT),
    "ins.jsonl": _call(1 << 20, 100) + _call(1 << 10, 9) + _call(1 << 21, 190),
}


def _pairs(path: Path) -> set[tuple[int, float]]:
    return {(int(s), float(t)) for c in read_measured(path) for s, t in zip(c.size_bytes, c.time_s, strict=True)}


@given(name=st.sampled_from(sorted(_FORMS)), at=st.floats(0, 1))
def test_a_cut_file_gives_rows_that_were_there_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, name: str, at: float
) -> None:
    whole = _FORMS[name].encode()
    folder = tmp_path_factory.getbasetemp()
    (folder / f"whole-{name}").write_bytes(whole)
    (folder / name).write_bytes(whole[: int(at * len(whole))])
    try:
        found = _pairs(folder / name)
    except LogFormatError:
        return
    assert found <= _pairs(folder / f"whole-{name}")


def test_a_param_header_without_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "param.log"
    path.write_text("COMMS-RES-BW\n")
    with pytest.raises(LogFormatError, match="a table without rows"):
        read_measured(path)
