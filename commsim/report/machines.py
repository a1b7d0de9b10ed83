"""The shipped machines as a notebook takes them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from commsim.errors import CommsimError
from commsim.report.answered import Answered
from commsim.topology.presets import Preset, list_presets
from commsim.units import gbit_per_s

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Machines(Answered):
    """Presets, sorted by name."""

    presets: tuple[Preset, ...]

    @classmethod
    def shipped(cls) -> Machines:
        """Those of the package."""
        return cls(tuple(list_presets()))

    @property
    def answer(self) -> tuple[str, ...]:
        """How many there are."""
        return (f"{len(self.presets)} machines are described; your own is a file (docs/reference/topology.md).",)

    def to_frame(self) -> pd.DataFrame:
        """A row for every preset; the rate of a NIC in Gb/s, 0 without NICs."""
        import pandas as pd

        return pd.DataFrame([_row(preset) for preset in self.presets])

    def __repr__(self) -> str:
        from commsim.report.topology_tables import preset_table

        return preset_table(self.presets)

    def plot(self, kind: str = "", item: int = 0, path: str = "") -> Figure:
        """CommsimError: a list has no picture."""
        raise CommsimError("found a list of machines, which has no picture; `commsim topo draw NAME` draws one of them")


def _row(preset: Preset) -> dict[str, Any]:
    row = asdict(preset)
    return row | {"nic_Gbps": gbit_per_s(row.pop("nic_bandwidth"))}
