"""The key paths that a pydantic model knows, such as `topology.nodes`: for completion, and for who left out a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel

from commsim.document.slots import Slot, keys_of, slots_of, step

_DEEPEST = 6
_SHOWN = 3


def paths_of(model: type[BaseModel], data: Any) -> Iterator[str]:
    """Every path that `data` may have by the model; of alternatives those whose keys stand there."""
    yield from _below(list(slots_of(model)), data, "", _DEEPEST)


def _below(slots: Sequence[Slot], here: Any, prefix: str, depth: int) -> Iterator[str]:
    if not depth:
        return
    if isinstance(here, list):
        for i, item in enumerate(here):
            yield from _below(step(slots, i), item, f"{prefix}{i}.", depth)
        return
    slots = _meant(slots, here)
    for key in keys_of(slots):
        yield f"{prefix}{key}"
        yield from _below(
            step(slots, key), here.get(key) if isinstance(here, dict) else None, f"{prefix}{key}.", depth - 1
        )


def _meant(slots: Sequence[Slot], here: Any) -> Sequence[Slot]:
    """Of several models those that know most keys of the data."""
    if not isinstance(here, dict):
        return slots
    known = [len(set(keys_of([slot])) & set(here)) for slot in slots]
    return [slot for slot, many in zip(slots, known, strict=True) if many == max(known, default=0)]


def longer(key: str, model: type[BaseModel], data: Any) -> str:
    """``did you mean 'topology.nodes'?`` for a path that leaves out its beginning or a block inside; else empty.

    Of several those whose blocks stand in the data.
    """
    paths = list(paths_of(model, data))
    if key.isupper():  # a variable
        ends = [f"{path}.{key}" for path in paths if path.endswith(".env")]
    else:
        ends = [path for path in paths if path.endswith(f".{key}")]
    if not ends and "." in key:  # a block in the middle
        block, _, last = key.rpartition(".")
        ends = [path for path in paths if path.startswith(f"{block}.") and path.endswith(f".{last}")]
    if not ends and "." not in key and not get_close_matches(key[:80], [p for p in paths if "." not in p], n=1):
        near = get_close_matches(key[:80], sorted({path.rpartition(".")[2] for path in paths}), n=1, cutoff=0.8)
        ends = [path for path in paths if near and path.endswith(f".{near[0]}")]
    least = min((_missing(path, data) for path in ends), default=0)
    shown = sorted((path for path in ends if _missing(path, data) == least), key=lambda path: path.count("."))[:_SHOWN]
    return f"did you mean {' or '.join(map(repr, shown))}?" if shown else ""


def _missing(path: str, data: Any) -> int:
    """How many of the blocks that a path goes through do not stand in the data."""
    here, missing = data, 0
    for key in path.split(".")[:-1]:
        here = here.get(key) if isinstance(here, dict) else here[int(key)] if isinstance(here, list) else None
        missing += here is None
    return missing
