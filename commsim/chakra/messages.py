"""The messages of a Chakra file: classes compiled from `messages.proto`, and the names behind its numbers."""

from __future__ import annotations

from typing import Any

from commsim.chakra.trace import Kind
from commsim.errors import CommsimError

KINDS: dict[str, Kind] = {
    "invalid": "none",
    "metadata": "none",
    "mem_load": "memory",
    "mem_store": "memory",
    "compute": "compute",
    "send": "send",
    "recv": "recv",
    "collective": "collective",
    "storage": "cpu",
    "batch": "cpu",
    "checkpoint": "cpu",
}
"""What a node of each type occupies."""

NODE_TYPES = tuple(KINDS)
"""By number."""

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",  # MPI's block form: equal parts, which ours always has
    "barrier",
)
"""``comm_type`` by number."""


def messages() -> Any:
    """The message classes, as attributes; CommsimError without the protobuf library."""
    try:
        from commsim.chakra import messages_pb2
    except ImportError:
        raise CommsimError("Chakra traces need protobuf: pip install 'commsim[chakra]'") from None
    return messages_pb2


def attribute_value(attribute: Any) -> Any:
    """The value of an attribute message: a number, bool, text, bytes or list; None where it has none."""
    which = attribute.WhichOneof("value")
    if which is None:
        return None
    value = getattr(attribute, which)
    return list(value.values) if which.endswith("_list") else value
