"""What machine a name is of, where an override changes its size: a title's own words are those of the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commsim.errors import CommsimError

if TYPE_CHECKING:
    from commsim.topology.spec import TopologySpec

_OF_SIZE = {"nodes", "gpus_per_node", "preset", "path", "topology", "clusters"}
"""Last words of the paths of overrides that change the number of nodes or of GPUs."""


def with_machine_named(name: str, overrides: Sequence[str], spec: TopologySpec, base_dir: Path, longest: int) -> str:
    """The name, and behind it ``[128 x A100 SXM4]`` where an override changes that; `commsim.files.slug` leaves it out.

    A name that an override gives, and one that would be longer than `longest`, stay as they are.
    """
    paths = [text.partition("=")[0].strip() for text in overrides]
    if "name" in paths or not any(path.rpartition(".")[2] in _OF_SIZE for path in paths):
        return name
    words = machine_words(spec, base_dir)
    longer = f"{name} [{words}]"
    return longer if words and len(longer) <= longest else name


def machine_words(spec: TopologySpec, base_dir: Path) -> str:
    """``128 x A100 SXM4``: the GPUs of a description, without building it; blank of different nodes and of faults."""
    from commsim.topology.presets import described, preset

    if spec.groups is not None or (spec.preset is None and spec.path is None):
        return ""
    try:
        machine = preset(spec.preset) if spec.preset is not None else described(base_dir / str(spec.path))
    except CommsimError:
        return ""
    gpu = (spec.gpu and spec.gpu.model) or machine.gpu
    each = spec.gpus_per_node or machine.gpus_per_node
    return f"{spec.nodes * each:,} x {gpu}" if gpu and each else ""
