"""For what a fit holds: machine, collectives, shapes and version that it has seen; its band, and what is outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from commsim.nccl.version import Version, format_version
from commsim.units import format_bandwidth

if TYPE_CHECKING:
    from commsim.scenario.params import Errors, ParamsFile, Seen
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
    conditions: Mapping[str, str | int | float] = field(default_factory=dict)
    errors: Mapping[str, Errors] = field(default_factory=dict)
    slower: tuple[str, ...] = ()

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
        out = [other] if (other := self.other_machine(topology)) else []
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

    def other_machine(self, topology: Topology) -> str:
        """That the fit is of another machine: of other GPUs, or over nodes of another network or other NICs; else ''.

        Files that were written before these were kept are held against the name of the topology.
        """
        kept, here = self.conditions, machine_of(topology)
        across = topology.nodes > 1 and kept.get("nodes", 1) != 1
        names = ["gpu", *(["fabric", "nics_per_node", "nic"] if across else [])]
        if "gpu" in kept:
            differ = [name for name in names if name in kept and kept[name] != here[name]]
        else:
            differ = [] if kept.get("topology", topology.name) == topology.name else ["topology"]
        if not differ:
            return ""
        words = "; ".join(f"{name} {kept[name]}, here {here[name]}" for name in differ)
        return f"{self.name} was fitted to another machine ({words}): its values are not this machine's"

    def sizes(self, collective: str, topology: Topology) -> dict[int, bool]:
        """The sizes that a collective was measured at on such ranks, and whether the fit agrees with the logs there."""
        calls = [c for c in self.calls if c.collective == collective and _is_shape(c, topology)]
        every = sorted({size for c in calls for size in c.sizes_bytes})
        return {size: not any(size in c.off_bytes for c in calls) for size in every}

    def refusals(self, topology: Topology) -> list[str]:
        """Why no choice of NCCL's may be overruled by this fit; none where it may."""
        out = [other] if (other := self.other_machine(topology)) else []
        out += [f"{self.name} was fitted to a sick machine: {text}" for text in self.slower]
        for kind in ("sizes", "collectives"):
            error = self.errors.get(kind)
            if error is not None and error.fitted >= error.shipped:
                shares = f"{100 * error.fitted:.1f} %, the shipped parameters' {100 * error.shipped:.1f} %"
                out.append(f"{self.name} is no better than what ships on {kind} left out: its error is {shares}")
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


def machine_of(topology: Topology) -> dict[str, str | int]:
    """What a fit depends on of a machine, as the conditions of its file: name, GPU, network between nodes and NICs."""
    group = topology.groups[0]
    rate = format_bandwidth(group.nic_bandwidth) if group.nics_per_node else "none"
    return {
        "topology": topology.name,
        "gpu": group.gpu.model,
        "fabric": topology.network,
        "nics_per_node": group.nics_per_node,
        "nic": rate,
    }


def validity_of(scenario: Setting) -> Validity | None:
    """What the scenario's parameters were fitted to; None where they are those that ship, or adapted to numbers."""
    from commsim.scenario.params import read_params

    path = scenario.params_path()
    return None if path is None else _of_file(path.name, read_params(path))


def _of_file(name: str, file: ParamsFile) -> Validity:
    band, left_out = ((b.low, b.high) if b is not None else None for b in (file.band, file.band_left_out))
    version = str(file.conditions.get("version", ""))
    errors = {str(kind): error for kind, error in file.errors.items()}
    return Validity(name, file.seen, version, band, left_out, file.conditions, errors, file.slower)


def version_words(version: Version | None) -> str:
    """A version as files hold it; blank where none is named."""
    return format_version(version) if version is not None else ""


def beyond_fit(scenario: Setting, collective: str, topology: Topology) -> list[str]:
    """A sentence for everything of a call that the scenario's parameters have not seen; none of those that ship."""
    fit = validity_of(scenario)
    return [] if fit is None else fit.outside(collective, topology, _version_of(scenario))


def _version_of(scenario: Setting) -> str:
    return version_words(scenario.library.named_version) if scenario.library.name == "nccl" else ""
