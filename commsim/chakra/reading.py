"""Chakra files to Traces: streamed, in bounded memory, every fault with the byte at which its message starts.

Attributes read: ``is_cpu_op``, ``num_ops``, ``tensor_size``, ``comm_type``, ``comm_size``, ``comm_src``, ``comm_dst``,
``comm_tag``, ``pg_name``, ``pg_size``, ``involved_dim``, ``runtime`` (microseconds), and ``duration_seconds``, which
our exporter writes since the format's own durations are whole microseconds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from commsim.chakra.messages import COLLECTIVES, KINDS, NODE_TYPES, attribute_value, messages
from commsim.chakra.trace import MOST_FAULTS, Node, Trace
from commsim.errors import Fault, ScenarioError

MOST_MESSAGE_BYTES = 4 << 20
"""A decoded message takes up to some eighty times as much memory: two bytes may be an object."""
MOST_NODES = 2_000_000
MOST_DEPS = 16_000_000
MOST_NODE_DEPS = 1_000_000
MOST_NAME = 200
MOST_NUMBER = 2.0**63
BARRIER_BYTES = 4
"""torch's barrier is an all_reduce of one element (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""

_FILE_RANK = re.compile(r"(?P<prefix>.+)\.(?P<rank>[0-9]{1,7})\.et", re.ASCII | re.DOTALL)


def trace_files(path: Path) -> dict[int, Path]:
    """Trace files by rank: of a folder or a prefix those named ``PREFIX.RANK.et``, else the one file, as rank 0.

    Raises ScenarioError where there are none, or where a folder holds those of several prefixes.
    """
    if path.is_file():
        match = _FILE_RANK.fullmatch(path.name)
        return {int(match["rank"]) if match else 0: path}
    folder, prefix = (path, None) if path.is_dir() else (path.parent, path.name)
    by_prefix: dict[str, dict[int, Path]] = {}
    if folder.is_dir():
        for file in sorted(folder.iterdir()):
            match = _FILE_RANK.fullmatch(file.name)
            if match and match["prefix"] == (prefix or match["prefix"]):
                by_prefix.setdefault(match["prefix"], {})[int(match["rank"])] = file
    if not by_prefix:
        fault = "holds no files named PREFIX.0.et" if prefix is None else "is no file, no folder and no prefix of files"
        raise ScenarioError(f"{path}: {fault}, expected Chakra traces such as {prefix or 'trace'}.0.et")
    if len(by_prefix) > 1:
        names = ", ".join(sorted(by_prefix)[:4]) + (", ..." if len(by_prefix) > 4 else "")
        raise ScenarioError(
            f"{path}: holds traces of {len(by_prefix)} prefixes ({names}), expected the path of one of them"
        )
    return dict(sorted(by_prefix.popitem()[1].items()))


def read_trace(path: Path) -> Trace:
    """The trace of one file; ScenarioError with every fault of its messages (the first few, if there are many)."""
    if not path.is_file():
        raise ScenarioError(f"{path}: is no file, expected a Chakra trace")
    nodes: list[Node] = []
    groups: dict[str, tuple[int, ...]] = {}
    faults: list[Fault] = []
    deps, first = 0, True
    try:
        with path.open("rb") as stream:
            for offset, encoded in _split(stream, path):
                message = _parse(encoded, offset, path, first=first)
                if first:
                    first = False
                    continue
                if "process_group:init" in message.name:
                    groups |= _listed_groups(message.inputs.values)
                try:
                    nodes.append(_node(message, offset))
                except ValueError as error:
                    place = f"byte {offset}, node {message.id} {message.name[:40]!r}"
                    faults.append(Fault(str(path), 0, 0, place, str(error)))
                    if len(faults) >= MOST_FAULTS:
                        break
                    continue
                deps += len(nodes[-1].deps)
                if len(nodes) > MOST_NODES or deps > MOST_DEPS:
                    raise _at(path, offset, f"found over {MOST_NODES:,} nodes or {MOST_DEPS:,} dependencies")
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror or error}") from None
    if first:
        raise ScenarioError(f"{path}: found no bytes, expected a Chakra trace: metadata, then one message per node")
    if faults:
        raise ScenarioError(faults)
    return Trace(tuple(nodes), path, groups)


def _at(path: Path, offset: int, message: str) -> ScenarioError:
    return ScenarioError([Fault(str(path), 0, 0, f"byte {offset}", message)])


def _split(stream: IO[bytes], path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of every message; the offset is that of its length."""
    offset = 0
    while True:
        length, used = _varint(stream, offset, path)
        if not used:
            return
        if length > MOST_MESSAGE_BYTES:
            text = (
                f"found a message of {length:,} bytes, expected at most {MOST_MESSAGE_BYTES:,}; is it a Chakra trace?"
            )
            raise _at(path, offset, text)
        encoded = stream.read(length)
        if len(encoded) < length:
            text = f"the file ends in a message of {length:,} bytes, of which {len(encoded):,} are there"
            raise _at(path, offset, text)
        yield offset, encoded
        offset += used + length


def _varint(stream: IO[bytes], offset: int, path: Path) -> tuple[int, int]:
    """(value, bytes read) of a length; (0, 0) at the end of the file."""
    value = 0
    for i in range(10):
        byte = stream.read(1)
        if not byte:
            if i:
                raise _at(path, offset, "the file ends in the length of a message")
            return 0, 0
        value |= (byte[0] & 0x7F) << (7 * i)
        if byte[0] < 0x80:
            return value, i + 1
    raise _at(path, offset, "found no length of a message (a varint of at most 10 bytes); is it a Chakra trace?")


def _parse(encoded: bytes, offset: int, path: Path, *, first: bool) -> Any:
    from google.protobuf.message import DecodeError

    message = messages().GlobalMetadata() if first else messages().Node()
    try:
        message.ParseFromString(encoded)
    except (DecodeError, UnicodeDecodeError, ValueError):
        kind = "the metadata" if first else "a node"
        raise _at(path, offset, f"found {len(encoded):,} bytes that are no protobuf message of {kind}") from None
    return message


def _node(message: Any, offset: int) -> Node:
    """The Node of a message; ValueError for what makes no sense."""
    if len(message.ctrl_deps) + len(message.data_deps) > MOST_NODE_DEPS:
        raise ValueError(f"found over {MOST_NODE_DEPS:,} dependencies of one node")
    if not 0 < message.type < len(NODE_TYPES):
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(NODE_TYPES) if i)
        raise ValueError(f"found type {message.type}, expected one of {known}")
    kind = KINDS[NODE_TYPES[message.type]]
    attributes = {a.name: attribute_value(a) for a in message.attr}
    if kind == "compute" and attributes.get("is_cpu_op"):
        kind = "cpu"
    transfer = kind in ("collective", "send", "recv")
    node = Node(
        id=message.id,
        name=message.name[:MOST_NAME],
        kind=kind,
        deps=tuple(dict.fromkeys((*message.ctrl_deps, *message.data_deps))),
        seconds=None if transfer or kind == "none" else _seconds(message, attributes),
        flops=_number(attributes, "num_ops"),
        nbytes=int(_number(attributes, "tensor_size")),
        offset=offset,
    )
    return _transfer(node, attributes) if transfer else node


def _transfer(node: Node, attributes: dict[str, Any]) -> Node:
    """The node with who sends what to whom."""
    collective = _collective(attributes) if node.kind == "collective" else ""
    end = {"send": "comm_dst", "recv": "comm_src"}.get(node.kind)
    if end is not None and end not in attributes:
        raise ValueError(f"found no attribute {end}, expected the rank of the other end")
    if "comm_size" not in attributes and collective != "barrier":
        raise ValueError("found no attribute comm_size, expected the bytes of one rank's input")
    dims = attributes.get("involved_dim") or ()
    if not isinstance(dims, (list, tuple)):
        raise ValueError("found an involved_dim that is no list, expected true or false per axis")
    return replace(
        node,
        nbytes=int(_number(attributes, "comm_size")) or (BARRIER_BYTES if collective == "barrier" else 0),
        collective="all_reduce" if collective == "barrier" else collective or "send_recv",
        peer=int(_number(attributes, end)) if end else -1,
        tag=int(_number(attributes, "comm_tag", least=-MOST_NUMBER)),
        group=_text(attributes.get("pg_name")),
        group_size=int(_number(attributes, "pg_size")),
        dims=tuple(bool(flag) for flag in dims),
    )


def _collective(attributes: dict[str, Any]) -> str:
    number = attributes.get("comm_type")
    if isinstance(number, str) and number.lower() in COLLECTIVES:
        return number.lower()
    if isinstance(number, int) and 0 <= number < len(COLLECTIVES):
        return COLLECTIVES[number]
    known = ", ".join(f"{i} ({name})" for i, name in enumerate(COLLECTIVES))
    raise ValueError(f"found the comm_type {_shown(number)}, expected one of {known}")


def _seconds(message: Any, attributes: dict[str, Any]) -> float | None:
    """The duration that a node states; None where it states none."""
    if "duration_seconds" in attributes:
        return _number(attributes, "duration_seconds")
    if message.duration_micros:
        return float(message.duration_micros) / 1e6
    runtime = _number(attributes, "runtime")
    return runtime / 1e6 if runtime else None


def _number(attributes: dict[str, Any], name: str, least: float = 0.0) -> float:
    """A number from 0 up, 0 where there is none; text of digits counts."""
    value = attributes.get(name, 0)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        raise ValueError(f"found {name} {_shown(value)}, expected a number from 0 up")
    if abs(value) > MOST_NUMBER:
        raise ValueError(f"found {name} {_shown(value)}, expected at most {MOST_NUMBER:.3g}")
    return value


def _text(value: Any) -> str:
    return "" if value is None else str(value)[:MOST_NAME]


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)[:40]


def _listed_groups(text: str) -> dict[str, tuple[int, ...]]:
    """Process groups as PyTorch's tracer writes them into its node ``## process_group:init ##``: a list, or a list of
    the text of one, of ``pg_name`` and ``ranks``; nothing where it reads otherwise."""
    try:
        entries = json.loads(text)
        if isinstance(entries, list) and entries and isinstance(entries[0], str):
            entries = json.loads(entries[0])
    except (ValueError, RecursionError):
        return {}
    groups: dict[str, tuple[int, ...]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or "pg_name" not in entry or not isinstance(entry.get("ranks"), list):
            continue
        ranks = entry["ranks"]
        if ranks and all(isinstance(r, int) and 0 <= r < 1 << 20 for r in ranks):
            groups[_text(entry["pg_name"])] = tuple(sorted(set(ranks)))
    return groups
