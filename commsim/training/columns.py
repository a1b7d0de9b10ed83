"""Many steps read as one: a formula on a step works on a table of steps, one array element per step.

Numbers of a step are numbers or arrays. `Columns` gives objects and names the same two faces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

Number: TypeAlias = Any
"""A number, or an array of one per step."""


def where(condition: Number, chosen: Number, other: Number) -> Number:
    """`numpy.where` that leaves plain numbers plain."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, chosen, other)
    return chosen if condition else other


def holds(names: Any, name: str) -> Number:
    """Whether names, or those of each of many steps, have one among them."""
    return names.each_holds(name) if isinstance(names, Columns) else name in names


class Columns:
    """Objects or names of many steps: an attribute, and a comparison, is an array with one element per step.

    >>> Columns(("none", "full"), np.array([0, 1, 1])) == "full"
    array([False,  True,  True])
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, values: Sequence[Any], at: npt.ArrayLike | None = None, tables: dict[str, Any] | None = None
    ) -> None:
        self._values = tuple(values)
        self._at = np.arange(len(self._values)) if at is None else np.asarray(at, np.int64)
        self._tables = {} if tables is None else tables  # by attribute, an element per value

    def __len__(self) -> int:
        return len(self._at)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        table = self._table(name)
        if isinstance(table, Columns):
            return Columns(table._values, table._at[self._at], table._tables)
        return table[self._at]

    def _table(self, name: str) -> Any:
        if name not in self._tables:
            self._tables[name] = _table([getattr(value, name) for value in self._values])
        return self._tables[name]

    def __eq__(self, other: object) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        return np.array([value == other for value in self._values], np.bool_)[self._at]

    def __ne__(self, other: object) -> npt.NDArray[np.bool_]:  # type: ignore[override]
        return ~(self == other)

    def each_holds(self, name: str) -> npt.NDArray[np.bool_]:
        """Where the names of a step have one among them."""
        return np.array([name in value for value in self._values], np.bool_)[self._at]

    @property
    def distinct(self) -> tuple[tuple[Any, ...], Int64]:
        """The objects, and which of them each step has."""
        return self._values, self._at

    def mapped(self, table: Mapping[Any, float]) -> npt.NDArray[np.float64]:
        """The number that a table gives for each."""
        return np.array([table[value] for value in self._values])[self._at]

    def take(self, index: Int64) -> Columns:
        """Some of the steps."""
        return Columns(self._values, self._at[index], self._tables)

    def replaced(self, values: Mapping[str, Any]) -> Columns:
        """The same with one value for all steps in place of an attribute: ``{"model.vocab": 1.0}``.

        What follows from an attribute stays as it was.
        """
        made = Columns(self._values, self._at)
        for path, value in values.items():
            *outer, name = path.split(".")
            owner = made
            for attribute in outer:
                owner = owner._table(attribute)
            owner._tables[name] = _table([value] * len(owner._values))
        return made


def _table(values: list[Any]) -> npt.NDArray[Any] | Columns:
    """Numbers as an array, all else as columns of what is distinct."""
    if all(isinstance(value, (bool, int, float, np.generic)) for value in values):
        return np.array(values)
    place = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return Columns(tuple(place), [place[value] for value in values])
