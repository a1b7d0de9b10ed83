"""The protobuf messages of a Chakra file, described in code; field numbers and enums are those of MLCommons' schema
(mlcommons/chakra, schema/protobuf/et_def.proto).

A file is a sequence of messages, each after its length as a varint: one `GlobalMetadata`, then a `Node` per operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from commsim.errors import CommsimError

NODE_TYPES = (
    "invalid",
    "metadata",
    "mem_load",
    "mem_store",
    "compute",
    "send",
    "recv",
    "collective",
    "storage",
    "batch",
    "checkpoint",
)
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

_SCALARS = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
_FIRST_VALUE = 3  # of an attribute: a scalar, then its list, and so on


@dataclass(frozen=True)
class Messages:
    """The classes that protobuf makes of the description."""

    GlobalMetadata: Any
    Node: Any


@lru_cache(maxsize=1)
def messages() -> Messages:
    """The message classes; CommsimError without the protobuf library."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise CommsimError("Chakra traces need protobuf: pip install 'commsim[chakra]'") from None
    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="commsim/chakra.proto", package="commsim.chakra", syntax="proto3")

    def message(title: str, /, **fields: tuple[int, str]) -> Any:
        """A message of ``field=(number, kind)``; kinds are scalars or messages, ``*`` before repeated ones."""
        found = file.message_type.add(name=title)
        for field, (number, kind) in fields.items():
            one = found.field.add(name=field, number=number)
            one.label = field_type.LABEL_REPEATED if kind.startswith("*") else field_type.LABEL_OPTIONAL
            scalar = getattr(field_type, f"TYPE_{kind.lstrip('*').upper()}", None)
            if scalar is None:
                one.type, one.type_name = field_type.TYPE_MESSAGE, f".commsim.chakra.{kind.lstrip('*')}"
            else:
                one.type = scalar
        return found

    for scalar in _SCALARS:
        message(f"{scalar.title()}List", values=(1, f"*{scalar}"))
    values = {
        name: (_FIRST_VALUE + 2 * i + is_list, kind)
        for i, scalar in enumerate(_SCALARS)
        for is_list, (name, kind) in enumerate(((f"{scalar}_val", scalar), (f"{scalar}_list", f"{scalar.title()}List")))
    }
    attribute = message("Attribute", name=(1, "string"), doc_string=(2, "string"), **values)
    attribute.oneof_decl.add(name="value")
    for field in attribute.field[2:]:
        field.oneof_index = 0
    message("GlobalMetadata", version=(1, "string"), attr=(2, "*Attribute"))
    message("InputsOutputs", values=(1, "string"), shapes=(2, "string"), types=(3, "string"))
    message(
        "Node",
        id=(1, "uint64"),
        name=(2, "string"),
        type=(3, "int32"),  # an enum on the wire; numbers that the schema gains later stay readable
        ctrl_deps=(4, "*uint64"),
        data_deps=(5, "*uint64"),
        start_time_micros=(6, "uint64"),
        duration_micros=(7, "uint64"),
        inputs=(8, "InputsOutputs"),
        outputs=(9, "InputsOutputs"),
        attr=(10, "*Attribute"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    made = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"commsim.chakra.{name}"))
        for name in ("GlobalMetadata", "Node")
    }
    return Messages(**made)


def attribute_value(attribute: Any) -> Any:
    """The value of an attribute message: a number, bool, text, bytes or list; None where it has none."""
    which = attribute.WhichOneof("value")
    if which is None:
        return None
    value = getattr(attribute, which)
    return list(value.values) if which.endswith("_list") else value
