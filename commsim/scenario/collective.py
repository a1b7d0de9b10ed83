"""What a scenario may say about one collective: its sizes, its elements, and what is fixed of how it runs.

Sizes: ``8 B .. 8 GiB x2``, ``1 MiB .. 8 MiB +1 MiB``, one size, or a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PlainSerializer

from commsim.collectives.semantics import ITEM_BYTES, ROOTED, NcclTestsName
from commsim.document import failing
from commsim.document.types import KeyFaults, show, suggest
from commsim.errors import UnitError
from commsim.nccl.operation import OTHER_DTYPE_NAMES, Operation
from commsim.scenario.strict import Strict
from commsim.units import format_bytes, parse_bytes

MAX_SIZES = 1000

_RANGE = re.compile(r"(?P<first>.*?)\s*\.\.\s*(?P<last>.*?)(?:\s*(?P<step>[x*+]\s*\S.*))?", re.DOTALL)
_FORM = "expected a size such as '64 MiB', or a range such as '8 B .. 8 GiB x2' or '1 MiB .. 8 MiB +1 MiB'"


def parse_sizes(text: object, parse: Callable[[str], int] = parse_bytes) -> tuple[int, ...]:
    """Bytes of a size or a range, ascending, at most 1000 of them.

    A range multiplies (``x2``, the default) or adds (``+1 MiB``) from its first size up to its last at
    most, as nccl-tests does with ``-b -e -f -i``. `parse` reads one size. Raises UnitError.
    """
    if not isinstance(text, str) or ".." not in text:
        return (parse(text) if isinstance(text, str) else parse_bytes(text),)
    match = _RANGE.fullmatch(text.strip()) if len(text) <= 128 else None
    if match is None or not match["first"] or not match["last"] or ".." in match["last"]:
        raise UnitError(f"found {text[:60]!r}, {_FORM}")
    first, last = parse(match["first"]), parse(match["last"])
    if first > last:
        raise UnitError(f"found the range {text!r}, expected its first size not above its last")
    step = (match["step"] or "x2").strip()
    if step[0] == "+":
        return _sum_range(text, first, last, parse(step[1:].strip()))
    return _product_range(text, first, last, step[1:].strip())


def _sum_range(text: str, first: int, last: int, step: int) -> tuple[int, ...]:
    if step == 0:
        raise UnitError(f"found the step '+0' in {text!r}, expected a step above zero, such as +1 MiB")
    count = (last - first) // step + 1
    if count > MAX_SIZES:
        raise UnitError(f"found {count:,} sizes in {text!r}, expected at most {MAX_SIZES:,}; widen the step")
    return tuple(range(first, last + 1, step))


def _product_range(text: str, first: int, last: int, factor_text: str) -> tuple[int, ...]:
    if not (factor_text.isascii() and factor_text.isdigit() and len(factor_text) < 10 and int(factor_text) > 1):
        raise UnitError(f"found the factor 'x{factor_text}' in {text!r}, expected a whole factor above 1")
    if first == 0:
        raise UnitError(f"found the first size 0 B in {text!r}, expected one above zero to multiply")
    sizes = [first]
    while sizes[-1] * int(factor_text) <= last:
        sizes.append(sizes[-1] * int(factor_text))
    return tuple(sizes)


def parse_size_list(value: object) -> tuple[int, ...]:
    """Bytes of everything `parse_sizes` takes, or of a list of quantities. Raises UnitError."""
    if not isinstance(value, (list, tuple)):
        return parse_sizes(value)
    if not value:
        raise UnitError(f"found an empty list, {_FORM}")
    if len(value) > MAX_SIZES:
        raise UnitError(f"found a list of {len(value):,} sizes, expected at most {MAX_SIZES:,}")
    sizes = tuple(parse_bytes(item) for item in value)
    for repeated in (size for i, size in enumerate(sizes) if size in sizes[:i]):
        raise UnitError(f"found the size {format_bytes(repeated)} twice, expected each size once")
    return sizes


def _dtype(value: Any) -> Any:
    """Names of nccl-tests and others; the nearest of our names would mislead (``float`` is not float16)."""
    if isinstance(value, str) and value in OTHER_DTYPE_NAMES:
        raise ValueError(f"found {value!r}, did you mean {OTHER_DTYPE_NAMES[value]!r}?")
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


def algorithm_faults(algorithm: str | None, known: list[str]) -> KeyFaults:
    """An algorithm that is none of those known."""
    if algorithm is None or algorithm in known:
        return []
    return [(("algorithm",), f"found the unknown algorithm {show(algorithm)}, {suggest(algorithm, known)}")]


def root_faults(root: int | None, collective: str) -> KeyFaults:
    """A root where the collective has none."""
    text = f"found a root for {collective}, expected it only for broadcast, reduce, gather and scatter"
    return failing((root is not None and collective not in ROOTED, ("root",), text))


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
