"""Each kind of dump: recognised by what is in it, read into one form, refused with the place of what is wrong."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from commsim.dumps.call import dtype_of, operation_of, whole
from commsim.dumps.rank_name import rank_of
from commsim.dumps.reading import dumps_of, read_dump
from commsim.errors import LogFormatError
from study import dump_forms
from study.dump_forms import ELEMENTS, Timeline

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
GLOO = Path(__file__).resolve().parents[1] / "data" / "dumps" / "gloo-late"
JOB = Timeline(2, ["all_reduce", "all_gather", "reduce_scatter"], {(1, 1): 0.25})


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_flight_recorder(tmp_path: Path, form: str) -> None:
    _, path = dump_forms.write_flight(tmp_path, JOB, form=form)
    dump = read_dump(path)
    assert (dump.kind, dump.ranks, dump.groups[0].ranks) == ("flight recorder", (1,), (0, 1))
    call = dump.calls[1]
    assert (call.group, call.sequence, call.operation, call.nbytes, call.dtype) == (
        "0",
        2,
        "all_gather",
        4 * ELEMENTS,
        "float32",
    )
    assert call.start_ns == JOB.starts[1][1]
    assert call.duration_s == pytest.approx((JOB.ends[1][1] - JOB.starts[1][1]) / 1e9)
    assert (call.state, call.place) == ("completed", "train.py:41")


def test_pickle_and_json_say_the_same(tmp_path: Path) -> None:
    one = read_dump(dump_forms.write_flight(tmp_path, JOB)[0])
    other = read_dump(dump_forms.write_flight(tmp_path, JOB, form="json")[0])
    assert (one.calls, one.groups) == (other.calls, other.groups)


def test_kineto_by_kernel_and_external_id(tmp_path: Path) -> None:
    dump = read_dump(dump_forms.write_kineto(tmp_path, JOB, host_of=lambda rank: f"node{rank}")[1])
    assert (dump.kind, dump.ranks, dump.host, dump.groups[0].ranks) == ("Kineto trace", (1,), "node1", (0, 1))
    for number, call in enumerate(dump.calls):
        assert (call.sequence, call.operation) == (number + 1, JOB.operations[number])
        assert call.start_ns == pytest.approx(JOB.starts[number][1], abs=2)
        assert call.end_ns == pytest.approx(JOB.ends[number][1], abs=2)


def test_kineto_without_kernels_has_the_hosts_starts(tmp_path: Path) -> None:
    path = dump_forms.write_kineto(tmp_path, JOB, host_of=str, packed=False)[0]
    document = json.loads(path.read_text())
    document["traceEvents"] = [e for e in document["traceEvents"] if e.get("cat") != "kernel"]
    path.write_text(json.dumps(document))
    dump = read_dump(path)
    assert (dump.starts, len(dump.calls), {call.end_ns for call in dump.calls}) == ("enqueued", 3, {None})


def test_gloos_calls_begin_when_the_program_makes_them(tmp_path: Path) -> None:
    """By hand: the call at 10 us, taken up by a thread at 70 us; of a second one only the thread's part is there."""

    def event(name: str, category: str, ts: float, dur: float) -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": {}}

    path = tmp_path / "t0"
    made = [event("c10d::allreduce_", "cpu_op", 10, 5), event("gloo:all_reduce", "user_annotation", 70, 30)]
    path.write_text(json.dumps({"traceEvents": [*made, event("gloo:broadcast", "user_annotation", 200, 9)]}))
    calls = read_dump(path).calls
    assert [(c.operation, c.start_ns, c.end_ns) for c in calls] == [
        ("all_reduce", 10_000, 100_000),
        ("broadcast", 200_000, 209_000),
    ]


def test_a_bare_list_of_events(tmp_path: Path) -> None:
    path = dump_forms.write_kineto(tmp_path, JOB, host_of=str, packed=False)[1]
    path.write_text(json.dumps(json.loads(path.read_text())["traceEvents"]))
    assert len(read_dump(path).calls) == 3


def test_kineto_whose_sequence_is_told(tmp_path: Path) -> None:
    path = dump_forms.write_kineto(tmp_path, JOB, host_of=str, packed=False)[0]
    path.write_text(path.read_text().replace('"Group size": 2', '"Group size": 2, "Seq": 77'))
    assert {call.sequence for call in read_dump(path).calls} == {77}


@pytest.mark.parametrize("verbose", [False, True])
def test_the_inspector(tmp_path: Path, verbose: bool) -> None:
    dump = read_dump(dump_forms.write_inspector(tmp_path, JOB, verbose=verbose)[1])
    call = dump.calls[0]
    assert (dump.kind, dump.ranks, dump.groups[0].ranks) == ("NCCL inspector", (1,), (0, 1))
    assert (call.sequence, call.operation, call.nbytes) == (1, "all_reduce", 4 * ELEMENTS)
    assert call.duration_s == pytest.approx((JOB.ends[0][1] - JOB.starts[0][1]) / 1e9, abs=1e-6)
    assert (call.start_ns is not None) == verbose


def test_nsys(tmp_path: Path) -> None:
    path = dump_forms.write_nsys(tmp_path, JOB)[1]
    before = path.read_bytes()
    dump = read_dump(path)
    assert [call.operation for call in dump.calls] == list(JOB.operations)
    assert [call.dtype for call in dump.calls] == ["float32", "", "float32"]
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir() if "journal" in p.name or "wal" in p.name] == []


def test_ncclras(tmp_path: Path) -> None:
    dump = read_dump(dump_forms.write_ras_json(tmp_path, [641, 640, 641], dead=[2]))
    counts = {(c.rank, c.operation): c.launched for c in dump.counts if c.operation == "all_reduce"}
    assert counts == {(0, "all_reduce"): 641, (1, "all_reduce"): 640}
    assert [(c.rank, c.trouble) for c in dump.counts if c.trouble] == [(2, "its process is dead")]


def test_ncclras_text_of_an_issue(tmp_path: Path) -> None:
    """The report of NVIDIA/nccl issue 1911: it names those that are ahead, the others are a number."""
    path = tmp_path / "ras.txt"
    path.write_text(
        "Communicators... (0.00s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    0         1         4         8        32        32   RUNNING  MISMATCH\n\nWarnings\n========\n\n"
        "#0-0 (fa93daea854b060b) MISMATCH\n  Communicator ranks have different AllGather operation counts\n"
        "  30 ranks have launched up to operation 640\n  2 ranks have launched up to operation 641\n"
        "  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124\n"
        "  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124\n"
    )
    counts = [(c.rank, c.operation, c.launched, c.process.split(" managed")[0]) for c in read_dump(path).counts]
    assert counts == [
        (-1, "all_gather", 640, "30 ranks"),
        (-1, "all_gather", 641, "2 ranks"),
        (12, "all_gather", 641, "GPU 4"),
        (13, "all_gather", 641, "GPU 5"),
    ]


def test_real_traces_of_gloo() -> None:
    dumps = dumps_of(sorted(GLOO.glob("trace*")))
    assert [dump.ranks for dump in dumps] == [(0,), (1,), (2,), (3,)]
    assert {len(dump.calls) for dump in dumps} == {12}
    assert {call.nbytes for call in dumps[0].calls} == {1 << 18}


def test_a_real_file_of_the_inspector() -> None:
    path = SHARED / "nccl_debug" / "rtx4090_n1x4_inspector.jsonl"
    if not path.is_file():
        pytest.skip("needs the shared data")
    dump = read_dump(path)
    assert (len(dump.calls), dump.ranks, dump.groups[0].ranks) == (160, (0,), (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3), ("comm_lib_trace_rank_12", 12), ("rank3.json", 3), ("fr3.json.gz", 3),
        ("host1.rank-4.trace.json", 4), ("Rank_5.pt.trace.json", 5), ("trace", None),
        ("v2.json", 2), ("rank.json", None),
    ],
)  # fmt: skip
def test_ranks_of_names(name: str, rank: int | None) -> None:
    assert rank_of(Path(name)) == rank


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("nccl:all_reduce", "all_reduce"), ("_allgather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("gloo:barrier", "barrier"), ("all_to_allv", "all_to_all"), ("nccl:ALLGATHER_coalesced", "all_gather"),
        ("nccl:something_new", "something_new"),
    ],
)  # fmt: skip
def test_names_of_collectives(name: str, operation: str) -> None:
    assert operation_of(name) == operation


def test_types_and_numbers() -> None:
    assert dtype_of("BFloat16") == ("bfloat16", 2)
    assert dtype_of("Complex") == ("Complex", 0)
    assert [whole(v) for v in (3, "12", 4.0, -1, True, None, 1.5, float("nan"), 1 << 70)] == [3, 12, 4, *[None] * 6]


def _flight(**changed: Any) -> dict[str, Any]:
    entry = {**dump_forms.flight_entries(JOB, 0)[0], **changed}
    return {"version": "2.10", "entries": [entry]}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a", b"", "found an empty file"),
        ("a", b"hello", "begins with 'hello'"),
        ("a", b"PK\x03\x04zip", "a zip archive"),
        ("fr0", b"\x80\x02cos\nsystem\n.", "byte 2: found the opcode GLOBAL 'os system'"),
        ("fr0", pickle.dumps([1], 2), "without a list of entries"),
        ("fr", json.dumps(_flight()).encode(), "no rank in the file's name"),
        ("fr0", json.dumps(_flight(collective_seq_id=-1)).encode(), "1 entries without group, sequence or name"),
        ("fr0", b'{"entries": [{"a": 1},\n{"b": }]}', r"fr0:2:1: found no JSON value in the list 'entries'"),
        ("fr0", b'{"entries": [{"a": 1}', "the file ends within the list 'entries'"),
        ("t0", b'{"traceEvents": []}', "found no collective"),
        ("t", b'{"traceEvents": [], "distributedInfo": {}}', "found no rank in distributedInfo"),
        ("t0", b'{"traceEvents": [] "x"}', "no JSON around its list"),
        ("t0", b"\x1f\x8b\x08\x00garbage", "broken gzip"),
        ("t0", gzip.compress(b"SQLite format 3\0", mtime=0), "gzipped SQLite"),
        ("t0", b"SQLite format 3\0" + bytes(200), "cannot be read as an export of nsys"),
        ("i", b'{"coll_perf": 1}\n', "no call that can be read"),
        ("r", b'{"nccl_version": "2.28", "communicators": 3}', "no list of communicators"),
        ("r", b'{"nccl_version": "2.28",\n "communicators": [}', r"r:2:1: found no JSON"),
    ],
)
def test_what_cannot_be_read_says_where(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(LogFormatError, match=says):
        read_dump(path)


def test_every_broken_file_is_named(tmp_path: Path) -> None:
    for name in ("a0", "b1"):
        (tmp_path / name).write_bytes(b'{"entries": [}')
    with pytest.raises(LogFormatError, match=r"a0.*\n.*b1"):
        dumps_of([tmp_path])


def test_other_files_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("hello")
    with pytest.raises(LogFormatError, match="found 1 files in folders"):
        dumps_of([tmp_path])
    dump_forms.write_flight(tmp_path, JOB)
    dumps = dumps_of([tmp_path])
    assert [dump.ranks for dump in dumps] == [(0,), (1,)]
    assert dumps[0].notes == ("no dumps among the files: 1, README",)
    with pytest.raises(LogFormatError, match="begins with 'hello'"):
        dumps_of([tmp_path / "README", tmp_path])


def test_a_table_that_is_a_view_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p_rank0.sqlite"
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE VIEW StringIds AS SELECT 1 AS id, 'ncclDevKernel_x' AS value")
        base.commit()
    with pytest.raises(LogFormatError, match="expected tables as nsys writes them"):
        read_dump(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/nowhere/at/all", "a\0b"])
def test_what_is_no_file(path: str) -> None:
    with pytest.raises(LogFormatError, match=r"is no file|cannot be read"):
        read_dump(Path(path))


def test_a_pipe_is_read(tmp_path: Path) -> None:
    data = dump_forms.write_flight(tmp_path, JOB)[0].read_bytes()
    pipe = tmp_path / "pipe_rank_0"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    assert len(read_dump(pipe).calls) == 3
    writer.join()


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(LogFormatError, match="no file in the folder"):
        dumps_of([tmp_path])
