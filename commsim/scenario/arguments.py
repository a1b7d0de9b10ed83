"""What the Python functions are given, checked by type: every error names the argument, what was found and expected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Real
from operator import index
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from commsim.document.types import show
from commsim.errors import ScenarioError, UnitError
from commsim.units import nccl_bytes

Size: TypeAlias = float | str
"""Bytes as a number, or a text such as ``"8G"`` or ``"64 MiB"``."""


def whole_number(name: str, value: object, least: int = 1) -> int:
    """An integer, of numpy too; ScenarioError for one below `least` and for anything else."""
    number = _integer(value)
    if number is None or number < least:
        raise ScenarioError(f"{name}: found {show(value)}, expected a whole number from {least} up")
    return number


def size(name: str, value: object) -> int:
    """Bytes of a size as nccl-tests reads it, or of a number of them; UnitError."""
    number = _integer(value)
    if number is not None:
        text = str(number)
    elif isinstance(value, str):
        text = value
    elif not isinstance(value, bool) and isinstance(value, Real):
        text = repr(float(value))
    else:
        raise UnitError(f"{name}: found {show(value)}, expected bytes as a number, or a text such as '64 MiB'")
    try:
        return nccl_bytes(text)
    except UnitError as error:
        raise UnitError(f"{name}: {error}") from None


def sizes(name: str, value: Size | Iterable[Size] | None) -> list[int]:
    """Bytes of one size or of several; None: of none. UnitError."""
    if value is None:
        return []
    several = isinstance(value, Iterable) and not isinstance(value, (str, bytes)) and _integer(value) is None
    return [size(name, one) for one in value] if several else [size(name, value)]  # type: ignore[union-attr]


def override_texts(overrides: Sequence[object]) -> list[str]:
    """The overrides, which are texts; ScenarioError for one that is none."""
    for one in overrides:
        if not isinstance(one, str):
            raise ScenarioError(
                f"override: found {show(one)}, expected a text key.path=value, such as topology.nodes=4"
            )
    return [one for one in overrides if isinstance(one, str)]


def scenario_name(value: object) -> str:
    """What names a scenario; ScenarioError for what is neither a text nor a path."""
    if not isinstance(value, (str, PathLike)):
        raise ScenarioError(f"found {show(value)}, expected a scenario: a file, the name of a shipped one or a mapping")
    return str(value)


def file_path(name: str, value: object) -> Path:
    """The path of a file; ScenarioError for what is neither a text nor a path."""
    if not isinstance(value, (str, PathLike)):
        raise ScenarioError(f"{name}: found {show(value)}, expected the path of a file")
    return Path(value)


def _integer(value: object) -> int | None:
    """The value as an integer, None where it is none; true and false are none."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]  # refused here
    except TypeError:
        return None
