"""The memory of communicators as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.nccl.environment import ALGORITHM_NAMES
from commsim.nccl.memory import INIT, SENDS, WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commsim.nccl.memory import CommunicatorMemory
    from commsim.scenario.communicators import CommunicatorsOfScenario

_MIB = 1 << 20

_MOST_NAMES = 8
"""Stages that a heading names."""

_WHEN = {INIT: "at init", SENDS: "first send", WINDOW: "first window"}


def communicator_lines(made: CommunicatorsOfScenario) -> str:
    """Each communicator's memory by kind and by when it is taken; of communicators that are alike the first."""
    lines = ["# memory of communicators on the GPU that has most, without CUDA's context"] if made.uses else []
    alike: dict[CommunicatorMemory, list[str]] = {}
    for use in made.uses:
        alike.setdefault(use.memory, []).append(use.of)
    for memory, names in alike.items():
        lines += _lines(memory, names)
    if made.kernels:
        lines.append(f"# kernels of NCCL, once for a process: {made.kernels / _MIB:.1f} MiB")
    lines += [f"# {note}" for note in made.notes]
    return "".join(f"{line}\n" for line in lines)


def _lines(memory: CommunicatorMemory, names: list[str]) -> Iterator[str]:
    several = list(dict.fromkeys(names))
    more = f" and {len(several) - _MOST_NAMES} more" if len(several) > _MOST_NAMES else ""
    shown = ", ".join(several[:_MOST_NAMES]) + more
    nodes = f"{memory.nodes} node" + ("s" if memory.nodes > 1 else "")
    count, rest = divmod(len(names), len(several))
    alike = f", {count} each" if count > 1 and not rest else ""
    yield f"# {shown}: {memory.ranks} ranks on {nodes}, rank {memory.rank}{alike}"
    yield f"  {'when':<20} {'what':<36} {'GPU MiB':>10} {'host MiB':>10}"
    for each in memory.held:
        when = _WHEN.get(each.when) or f"first {ALGORITHM_NAMES.get(each.when, each.when)}"
        yield f"  {when:<20} {each.kind:<36} {each.gpu / _MIB:>10.1f} {each.host / _MIB:>10.1f}"
    yield f"  {'':<20} {'total':<36} {memory.gpu / _MIB:>10.1f} {memory.host / _MIB:>10.1f}"
