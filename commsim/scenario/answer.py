"""What every workload answers with: plain rows for tables, plain values for JSON."""

from __future__ import annotations

from typing import Any, ClassVar

from commsim.units import microseconds


def plain_row(row: object) -> dict[str, Any]:
    """The fields of a row as plain values, those in seconds (``..._s``) as microseconds (``..._us``)."""
    fields = vars(row)
    in_us = {k: None if v is None else microseconds(v) for k, v in fields.items() if k.endswith("_s")}
    return {f"{k[:-1]}us" if k in in_us else k: in_us.get(k, v) for k, v in fields.items()}


class Answer:
    """The answer to one item of a workload."""

    kind: ClassVar[str]
    parameters: str = ""  # where those of the model come from

    def records(self) -> list[dict[str, Any]]:
        """Rows of plain values with units in the names: what CSV and data frames hold."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        raise NotImplementedError

    @property
    def unlisted(self) -> int:
        """How many statements it holds that `records` does not."""
        return 0
