"""Fits the channel model's parameters to the measured curves; writes commsim/nccl/generations and networks.

    python validation/fit_parameters.py            show the fit: what moved, and the errors with it
    python validation/fit_parameters.py --write    also write the parameter files

The fit is that of `commsim validate collectives` (study.pooled_fit), on every log that is known to be
healthy; starting values and priors are in commsim/accuracy/starts.yaml. What no curve determines stays at its start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from commsim.accuracy.fields import Field, is_share, scope_of, space, start_parameters, walk
from commsim.files import write_atomically
from commsim.nccl.parameters import GENERATIONS, NETWORKS
from commsim.units import format_bytes
from study.validate import Validation, prepare, training_folder
from study.workers import Workers

TARGET = Path(__file__).resolve().parent.parent / "commsim" / "nccl"
FITTED = Path(__file__).resolve().parent / "fitted.csv"
SOURCES = "sources of each parameter in validation/parameters.csv."
HEAD = "# Written by validation/fit_parameters.py --write; do not edit by hand.\n"


LIMITS = {"rendezvous": "eager", "inline_cost": "inline"}
"""Fields of a network that go with a limit in bytes, which is no rate and no time and is not fitted."""


def quantity(value: float, is_time: bool, path: str) -> object:
    """A value to four digits as the parameter files hold it."""
    if is_time:
        return f"{value * 1e6:.4g} us"
    return float(f"{value:.4g}") if is_share(path) else f"{value / 1e9:.4g} GB/s"


def tree(generation: str, network: str, values: dict[Field, float], part: str) -> dict[str, object]:
    """The numbers of a generation (`part` "generation") or of a network as nested dictionaries."""
    out: dict[str, object] = {}
    for path, start, is_time in walk(start_parameters(generation, network)):
        inside = path.startswith("network.")
        if inside != (part == "network"):
            continue
        value = values.get((scope_of(path, generation, network), path), start)
        *folders, leaf = path.removeprefix("network.").split(".")
        at = out
        for folder in folders:
            at = at.setdefault(folder, {})  # type: ignore[assignment]
        at[leaf] = quantity(value, is_time, path)
        if leaf in LIMITS:
            at[LIMITS[leaf]] = format_bytes(getattr(start_parameters(generation, network).network, LIMITS[leaf]))
    return out


@dataclass(frozen=True)
class Fitted:
    """The curves that determine a generation's or a network's parameters, and their systems."""

    scope: str
    curves: int
    systems: tuple[str, ...]

    @property
    def provenance(self) -> str:
        """The line that a parameter file holds."""
        if not self.curves:
            return f"No healthy measured curve of this kind, so the starting values; {SOURCES}"
        many = "s" if len(self.systems) > 1 else ""
        count = len(self.systems)
        return f"Fitted to {self.curves} curves of {count} system{many} (validation/{FITTED.name}); {SOURCES}"


def fitted_to(validation: Validation, scope: str) -> Fitted:
    """What the fit knows of a generation or a network."""
    study, planes = validation.study, validation.planes
    cases = [study.logs[i].case for i in study.train if scope in (planes[i].generation, planes[i].network)]
    slugs = {case.slug for case in cases}
    systems = {study.logs[i].case.system for i in study.train if study.logs[i].case.slug in slugs}
    return Fitted(scope, len(cases), tuple(sorted(systems)))


def write(validation: Validation) -> list[Path]:
    """Write one file per generation and per network, and the table of what they were fitted to."""
    values = space().values(validation.whole)
    fitted = [fitted_to(validation, scope) for scope in (*sorted(GENERATIONS), *sorted(NETWORKS))]
    provenance = {each.scope: each.provenance for each in fitted}
    written = []
    for generation in GENERATIONS:
        head = {"generation": generation, "provenance": provenance[generation]}
        written.append(_dump("generations", generation, head | tree(generation, NETWORKS[0], values, "generation")))
    for network in NETWORKS:
        head = {"name": network, "provenance": provenance[network]}
        written.append(_dump("networks", network, head | tree(GENERATIONS[0], network, values, "network")))
    rows = [f"{each.scope},{each.curves},{';'.join(each.systems)}" for each in fitted]
    return [*written, write_atomically(FITTED, "\n".join(["scope,curves,systems", *rows]) + "\n")]


def _dump(folder: str, name: str, data: dict[str, object]) -> Path:
    return write_atomically(TARGET / folder / f"{name}.yaml", HEAD + yaml.safe_dump(data, sort_keys=False, width=160))


def moved(validation: Validation) -> Iterable[str]:
    """A line for every field that the fit moved by more than a tenth."""
    fitted = space()
    for i, ((scope, path), x) in enumerate(zip(fitted.fields, validation.whole, strict=True)):
        if abs(x) > 0.1:
            start, is_time = float(fitted.start[i]), bool(fitted.is_time[i])
            value = float(fitted.values(validation.whole)[scope, path])
            yield f"{scope:12s} {path:40s} {quantity(start, is_time, path)!s:>12} -> {quantity(value, is_time, path)}"


def main() -> int:
    """Run the fit from the command line."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write commsim/nccl/generations and networks")
    chosen = arguments.parse_args()
    with Workers() as workers:
        validation = prepare(workers, [training_folder()])
    print("\n".join(moved(validation)))
    if chosen.write:
        for path in write(validation):
            print(f"# wrote {path.relative_to(TARGET.parent.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
