"""Traces to Chakra files."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import Any

from commsim.chakra.messages import COLLECTIVES, NODE_TYPES, messages
from commsim.chakra.trace import Node

SCHEMA = "0.0.4"
"""The version of the schema that files say they follow."""

_TYPES = {"compute": "compute", "cpu": "compute", "memory": "mem_load", "none": "metadata"}


def trace_bytes(nodes: Iterable[Node], **about: str) -> bytes:
    """The file of one rank; ``about``: attributes of the file as a whole.

    Durations are there twice: in whole microseconds, as the format has them, and exact as ``duration_seconds``.
    """
    file = BytesIO()
    head = messages().GlobalMetadata(version=SCHEMA)
    for name, text in about.items():
        _add(head, name, "string", text)
    _append(file, head)
    for node in nodes:
        _append(file, _message(node))
    return file.getvalue()


def _append(file: BytesIO, message: Any) -> None:
    data = message.SerializeToString(deterministic=True)
    length = len(data)
    while length >= 0x80:
        file.write(bytes([length & 0x7F | 0x80]))
        length >>= 7
    file.write(bytes([length]))
    file.write(data)


def _add(message: Any, name: str, kind: str, value: Any) -> None:
    message.attr.add(name=name, **{f"{kind}_val": value})


def _message(node: Node) -> Any:
    message = messages().Node(id=node.id, name=node.name, type=NODE_TYPES.index(_TYPES.get(node.kind, node.kind)))
    message.ctrl_deps.extend(node.deps)
    _add(message, "is_cpu_op", "bool", node.kind == "cpu")
    if node.seconds is not None:
        message.duration_micros = round(node.seconds * 1e6)
        _add(message, "duration_seconds", "double", node.seconds)
    if node.kind == "collective":
        _add(message, "comm_type", "int64", COLLECTIVES.index(node.collective))
    if node.kind in ("collective", "send", "recv"):
        _add(message, "comm_size", "int64", node.nbytes)
        if node.group:
            _add(message, "pg_name", "string", node.group)
    else:
        if node.flops:
            _add(message, "num_ops", "int64", round(node.flops))
        if node.nbytes:
            _add(message, "tensor_size", "uint64", node.nbytes)
    if node.dims:
        attribute = message.attr.add(name="involved_dim")
        attribute.bool_list.values.extend(node.dims)
    if node.kind in ("send", "recv"):
        _add(message, "comm_dst" if node.kind == "send" else "comm_src", "int32", node.peer)
        _add(message, "comm_tag", "int32", node.tag)
    return message
