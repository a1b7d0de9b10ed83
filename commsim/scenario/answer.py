"""What every workload answers with: plain rows for tables, plain values for JSON."""

from __future__ import annotations

from typing import Any, ClassVar


class WorkAnswer:
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
