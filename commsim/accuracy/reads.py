"""Parameters that note which of their numbers are read: what a predicted time depends on."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


class _Noting:
    """A model whose instances note every number that is read from them, by its path, in `_seen`."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if isinstance(value, float):
            seen, prefix = super().__getattribute__("_seen")
            seen[prefix + name] = value
        return value


def noting(model: M, seen: dict[str, float], prefix: str = "") -> M:
    """A copy of a model that writes every number read from it to `seen`, as ``{"base.LL": 4e-6}``."""
    values: dict[str, Any] = {
        name: noting(value, seen, f"{prefix}{name}.") if isinstance(value, BaseModel) else value
        for name, value in model.__dict__.items()
    }
    copy: M = _noting_class(type(model)).model_construct(**values)
    object.__setattr__(copy, "_seen", (seen, prefix))
    return copy


@lru_cache(maxsize=64)
def _noting_class(kind: type[M]) -> type[M]:
    return type(f"Noting{kind.__name__}", (_Noting, kind), {})
