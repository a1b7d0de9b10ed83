"""What a scenario may say about one collective: its sizes, its elements, and what is fixed of how it runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer

from commsim.collectives.semantics import ITEM_BYTES, NcclTestsName
from commsim.nccl.operation import Operation
from commsim.scenario.sizes import parse_size_list
from commsim.scenario.strict import Strict

_OTHER_DTYPE_NAMES = {
    "float": "float32",
    "half": "float16",
    "double": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "fp64": "float64",
    "bf16": "bfloat16",
    "int": "int32",
    "f8e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
}


def _dtype(value: Any) -> Any:
    """Names of nccl-tests and others; the nearest of our names would mislead (``float`` is not float16)."""
    if isinstance(value, str) and value in _OTHER_DTYPE_NAMES:
        raise ValueError(f"found {value!r}, did you mean {_OTHER_DTYPE_NAMES[value]!r}?")
    return value


DType = Annotated[
    Literal[
        "int8",
        "uint8",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "bfloat16",
        "float8_e4m3",
        "float8_e5m2",
    ],
    BeforeValidator(_dtype),
]
Sizes = Annotated[
    tuple[int, ...],
    BeforeValidator(parse_size_list, json_schema_input_type=str | list[str]),
    PlainSerializer(lambda sizes: [f"{s} B" for s in sizes], return_type=list[str]),
]


class CollectiveSpec(Strict):
    """One collective over message sizes; ``sizes`` are bytes, None to take those of the measured files."""

    collective: Literal[NcclTestsName, "all_to_all_v"] = Field(
        description="which one; `all_to_all_v` is not one of NCCL's own"
    )
    sizes: Sizes | None = Field(
        default=None,
        description=(
            "one size, a list, or a range such as `8 B .. 8 GiB x2`; left out: those of the curves under `compare`"
        ),
    )
    dtype: DType = Field(
        default="float32",
        description="type of an element; with `redop` it decides which of NCCL's algorithms a reduction may have",
    )
    redop: Literal["sum", "prod", "max", "min", "avg"] = Field(
        default="sum", description="how elements are combined; NVLS knows `sum`, and `max` and `min` of some types"
    )
    algorithm: str | None = Field(
        default=None,
        description=(
            "with library `none` only: a name that `commsim schedule list` shows for the collective, or `auto` for "
            "the quickest of all that fit; left out: the first of the list"
        ),
    )
    root: int | None = Field(
        default=None, ge=0, description="rank of broadcast, reduce, gather and scatter; left out: 0"
    )
    protocol: Literal["LL", "LL128", "Simple"] | None = Field(
        default=None, description="what `NCCL_PROTO` does, for this entry; left out: NCCL's choice"
    )
    channels: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="what `NCCL_MIN_NCHANNELS` and `NCCL_MAX_NCHANNELS` do; left out: the library's choice",
    )

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @property
    def operation(self) -> Operation:
        """What the call does to its elements."""
        return Operation(self.dtype, self.redop)

    def as_logged(self, dtype: str, redop: str) -> Self:
        """The item with the type and the reduction of a log, in its words, where it states none of its own."""
        named = Operation.named(dtype, redop)
        logged = {"dtype": named.dtype if dtype else "", "redop": named.redop if redop else ""}
        unstated = {k: v for k, v in logged.items() if v and k not in self.model_fields_set}
        return self.model_copy(update=unstated)
