"""Files: what is written is read back, and no bytes, however hostile, do worse than a message with their offset."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from chakra_files import call, message, work, write_traces
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.chakra.groups import read_groups
from commsim.chakra.messages import COLLECTIVES, NODE_TYPES, messages
from commsim.chakra.reading import MOST_MESSAGE_BYTES, read_trace, trace_files
from commsim.chakra.trace import Node
from commsim.chakra.writing import trace_bytes
from commsim.errors import CommsimError, ScenarioError

NODES = [
    work(7, 1e-3),
    Node(8, "host", "cpu", (7,), seconds=2.5e-7),
    Node(9, "load", "memory", (), nbytes=1 << 20),
    Node(10, "product", "compute", (9,), flops=2e12, nbytes=4096),
    call(1, "all_gather", 4096, 7, 8, group="tp 0"),
    message(2, "send", 3, 5, 1, tag=77),
    message(3, "recv", 3, 5),
    Node(4, "flags", "collective", (3,), nbytes=64, collective="all_reduce", dims=(True, False)),
    Node(5, "start", "none"),
]


def _read(tmp_path: Path, data: bytes) -> list[Node]:
    file = tmp_path / "x.0.et"
    file.write_bytes(data)
    return list(read_trace(file).nodes)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    found = [replace(node, offset=0) for node in _read(tmp_path, trace_bytes(NODES, about="a test"))]
    wanted = [replace(n, collective="send_recv") if n.kind in ("send", "recv") else n for n in NODES]
    assert found == wanted


def test_the_wire_is_that_of_the_schema(tmp_path: Path) -> None:
    """Bytes put together by hand from the field numbers, with an int32 attribute (7) and an int64 one (9)."""
    size = b"\x0a\x09comm_size\x48\x80\x08"  # attribute 1: name, 9: varint 1024
    peer = b"\x0a\x08comm_dst\x38\x02"
    node = b"\x08\x05\x12\x01s\x18\x05\x22\x01\x04" + b"".join(bytes([0x52, len(a)]) + a for a in (size, peer))
    first = b"\x08\x04\x18\x04\x38\x0a"  # id 4, compute, 10 microseconds
    head = b"\x0a\x050.0.4"
    data = b"".join(bytes([len(m)]) + m for m in (head, first, node))
    compute, send = _read(tmp_path, data)
    assert (compute.id, compute.kind, compute.seconds, compute.offset) == (4, "compute", 1e-5, 8)
    assert (send.id, send.kind, send.nbytes, send.peer, send.deps) == (5, "send", 1024, 2, (4,))


def test_durations_of_other_tools(tmp_path: Path) -> None:
    """Whole microseconds, else the attribute runtime; a double attribute is fixed64."""
    made = messages().Node(id=1, type=4, duration_micros=250)
    other = messages().Node(id=2, type=4)
    other.attr.add(name="runtime", int64_val=40)
    exact = messages().Node(id=3, type=4, duration_micros=1)
    exact.attr.add(name="duration_seconds", double_val=1.25e-6)
    assert struct.pack("<d", 1.25e-6) in exact.SerializeToString()
    data = b"".join(bytes([len(m)]) + m for m in (b"", *(n.SerializeToString() for n in (made, other, exact))))
    assert [node.seconds for node in _read(tmp_path, data)] == [250e-6, 40e-6, 1.25e-6]


def test_a_barrier_is_a_small_all_reduce(tmp_path: Path) -> None:
    made = messages().Node(id=1, type=NODE_TYPES.index("collective"))
    made.attr.add(name="comm_type", int64_val=COLLECTIVES.index("barrier"))
    data = made.SerializeToString()
    (found,) = _read(tmp_path, b"\x00" + bytes([len(data)]) + data)
    assert (found.collective, found.nbytes) == ("all_reduce", 4)


def test_groups_that_pytorch_lists(tmp_path: Path) -> None:
    made = messages().Node(id=1, name="## process_group:init ##", type=1)
    made.inputs.values = (
        '["[{\\"pg_name\\": \\"dp\\", \\"ranks\\": [2, 0]}, {\\"pg_name\\": \\"x\\", \\"ranks\\": []}]"]'
    )
    data = made.SerializeToString()
    file = tmp_path / "x.0.et"
    file.write_bytes(b"\x00" + bytes([len(data) & 0x7F | 0x80, len(data) >> 7]) + data)
    assert read_trace(file).groups == {"dp": (0, 2)}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "found no bytes"),
        (b"\x07\x0a\x050.0", r"byte 0: the file ends in a message of 7 bytes, of which 5 are there"),
        (b"\x00\x80", "byte 1: the file ends in the length"),
        (b"\x00" + b"\xff" * 11, "byte 1: found no length"),
        (b"\x00\xff\xff\xff\x7f", "byte 1: found a message of 268,435,455 bytes, expected at most"),
        (b"\x00\x03\x52\x09\x01", "byte 1: found 3 bytes that are no protobuf message of a node"),
        (b"\x00\x00", "byte 1, node 0 '': found type 0, expected one of 1"),
        (b"\x00\x02\x18\x63", "found type 99"),
        (b"\x00\x02\x18\x07", "found the comm_type none, expected one of 0"),
        (b"\x00\x02\x18\x05", "no attribute comm_dst"),
        (trace_bytes([work(1, 1.0), work(1, 2.0)]), "node 1 'work': found its id again"),
        (trace_bytes([work(1, 1.0, 5)]), "found a dependency on node 5, which is not in the file"),
        (trace_bytes([work(1, 1.0, 1)]), "found a cycle, in which nodes wait for each other: 1 <- 1"),
        (trace_bytes([work(1, 1.0), work(2, 1.0, 3, 1), work(3, 1.0, 4), work(4, 1.0, 2)]), "2 <- 3 <- 4 <- 2"),
        (trace_bytes([message(1, "send", 1, 8)]).replace(b"comm_size", b"comm_xyz_"), "no attribute comm_size"),
    ],
)
def test_faults_name_the_byte(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        _read(tmp_path, data)


@pytest.mark.parametrize(
    "value", [{"int64_val": -1}, {"string_val": "many"}, {"double_val": float("nan")}, {"bool_val": True}]
)
def test_sizes_are_numbers(tmp_path: Path, value: dict[str, object]) -> None:
    made = messages().Node(id=1, type=5)
    made.attr.add(name="comm_dst", int32_val=1)
    made.attr.add(name="comm_size", **value)
    data = made.SerializeToString()
    with pytest.raises(ScenarioError, match=r"found comm_size .*, expected a number from 0 up"):
        _read(tmp_path, b"\x00" + bytes([len(data)]) + data)


def test_many_faults_are_cut(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        _read(tmp_path, b"\x00" + b"\x00" * 500)
    assert len(caught.value.faults) == 20


_WHOLE = trace_bytes(NODES, about="a test")


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.integers(0, len(_WHOLE)).map(lambda n: _WHOLE[:n]),
        st.tuples(st.integers(0, len(_WHOLE) - 1), st.integers(0, 255)).map(
            lambda at: _WHOLE[: at[0]] + bytes([at[1]]) + _WHOLE[at[0] + 1 :]
        ),
    )
)
def test_hostile_bytes_are_faults_or_traces(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Anything but a trace or a CommsimError that names the file fails this test."""
    said = "x.0.et"
    try:
        _read(tmp_path_factory.mktemp("hostile"), data)
    except CommsimError as error:
        said = str(error)
    assert "x.0.et" in said


def test_a_node_of_too_many_dependencies_is_refused(tmp_path: Path) -> None:
    deps = b"\x01" * 1_000_001
    body = b"\x18\x04\x2a" + bytes([len(deps) & 0x7F | 0x80, len(deps) >> 7 & 0x7F | 0x80, len(deps) >> 14]) + deps
    varint = bytes([len(body) & 0x7F | 0x80, len(body) >> 7 & 0x7F | 0x80, len(body) >> 14])
    with pytest.raises(ScenarioError, match="found over 1,000,000 dependencies"):
        _read(tmp_path, b"\x00" + varint + body)


def test_a_large_message_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """A length that promises more than may be: nothing of that size is allocated or read."""
    length = MOST_MESSAGE_BYTES + 1
    varint = bytes([length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14 & 0x7F | 0x80, length >> 21])
    with pytest.raises(ScenarioError, match="expected at most 4,194,304"):
        _read(tmp_path, b"\x00" + varint)


# -- which files ---------------------------------


def test_files_by_prefix_folder_and_name(tmp_path: Path) -> None:
    write_traces(tmp_path, {rank: [work(0, 1.0)] for rank in (0, 2, 10)}, "step.v1")
    assert list(trace_files(tmp_path / "step.v1")) == [0, 2, 10]
    assert list(trace_files(tmp_path)) == [0, 2, 10]
    assert trace_files(tmp_path / "step.v1.10.et") == {10: tmp_path / "step.v1.10.et"}
    write_traces(tmp_path, {0: [work(0, 1.0)]}, "other")
    with pytest.raises(ScenarioError, match=r"2 prefixes \(other, step.v1\)"):
        trace_files(tmp_path)


@pytest.mark.parametrize("name", ["nothing", ".", "a\x00b"])
def test_no_files_is_a_fault(tmp_path: Path, name: str) -> None:
    with pytest.raises(ScenarioError, match="expected Chakra traces"):
        trace_files(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "found no JSON"),
        ("[" * 100_000, "found no JSON"),
        ("[]", "no mapping"),
        ('{"a": [0, 9]}', "found rank 9, expected one of the 4 ranks"),
        ('{"a": [0, 0]}', "found a rank twice"),
        ('{"a": 3}', "found no list of ranks"),
        ('{"a": [true]}', "found no list of ranks"),
        ('{"a": []}', "found no list of ranks"),
    ],
)
def test_groups_files_that_make_no_sense(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "groups.json"
    file.write_text(text)
    with pytest.raises(ScenarioError, match=says):
        read_groups(file, 4)


def test_the_compiled_messages_are_those_of_the_proto_file() -> None:
    compiled = messages().DESCRIPTOR
    text = (resources.files("commsim.chakra") / "messages.proto").read_text(encoding="utf-8")
    written = {}
    for title, body in re.findall(r"^message (\w+) \{(.*?)\}$", text, re.MULTILINE | re.DOTALL):
        fields = re.findall(r"^\s*(?:repeated )?(\w+) (\w+) = (\d+);", body.replace("{", "\n"), re.MULTILINE)
        written[title] = {name: int(number) for _, name, number in fields}
    made = {title: {f.name: f.number for f in one.fields} for title, one in compiled.message_types_by_name.items()}
    assert made == written
    assert len(made["Attribute"]) == 32
