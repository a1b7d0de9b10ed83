"""For what a fit holds: the collectives, shapes and version that it has seen, its band elsewhere, what is outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commsim.nccl.version import Version, format_version

if TYPE_CHECKING:
    from commsim.scenario.params import ParamsFile, Seen
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology

Band = tuple[float, float]


@dataclass(frozen=True)
class Validity:
    """What a fit has seen; `name` is that of its file. Without calls it is unknown, as of files written before."""

    name: str
    calls: tuple[Seen, ...]
    version: str
    band: Band | None
    band_left_out: Band | None

    def saw(self, collective: str, topology: Topology) -> bool:
        """Whether the fit has seen a collective on the shape of a topology."""
        return any(c.collective == collective and _is_shape(c, topology) for c in self.calls)

    def band_of(self, collective: str, topology: Topology) -> Band | None:
        """The band of a collective there: of sizes left out where it was seen, else of shapes left out; None where the
        fit had one shape only, so that nothing of it was ever held against another."""
        return self.band if not self.calls or self.saw(collective, topology) else self.band_left_out

    def widest(self, collective: str, topology: Topology) -> Band | None:
        """The wider of the band of a collective there and that of shapes left out."""
        bands = [band for band in (self.band_of(collective, topology), self.band_left_out) if band is not None]
        return (min(low for low, _ in bands), max(high for _, high in bands)) if bands else None

    def outside(self, collective: str, topology: Topology, version: str) -> list[str]:
        """A sentence for everything that lies outside of what the fit has seen."""
        if not self.calls:
            return []
        out = []
        shapes = sorted({c.shape for c in self.calls})
        if not any(_is_shape(c, topology) for c in self.calls):
            here = f"{topology.nodes} x {topology.ranks_per_node} ranks"
            out.append(f"{self.name} was fitted to {_list(shapes)}, not to {here}: {self._error()}")
        elif not self.saw(collective, topology):
            own = sorted({c.collective for c in self.calls})
            out.append(f"{self.name} was fitted to {_list(own)}, not to {collective}: {self._error()}")
        if self.version and version and self.version != version:
            out.append(f"{self.name} was fitted to NCCL {self.version}, this is {version}: other choices and costs")
        return out

    def _error(self) -> str:
        if self.band_left_out is None:
            return "nothing says its error there; measure one more shape, or take the shipped parameters' error"
        low, high = self.band_left_out
        return f"8 of 10 measured times of shapes left out were {low:.2f} to {high:.2f} times the predicted ones"


def _is_shape(call: Seen, topology: Topology) -> bool:
    return (call.nodes, call.gpus) == (topology.nodes, topology.ranks_per_node)


def _list(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def validity_of(scenario: Setting) -> Validity | None:
    """What the scenario's parameters were fitted to; None where they are those that ship, or adapted to numbers."""
    from commsim.scenario.params import read_params

    path = scenario.params_path()
    return None if path is None else _of_file(path.name, read_params(path))


def _of_file(name: str, file: ParamsFile) -> Validity:
    bands = [(b.low, b.high) if b is not None else None for b in (file.band, file.band_left_out)]
    return Validity(name, file.seen, str(file.conditions.get("version", "")), *bands)


def version_words(version: Version | None) -> str:
    """A version as files hold it; blank where none is named."""
    return format_version(version) if version is not None else ""
