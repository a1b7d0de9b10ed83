"""What a path of a document is called where there is no room for it: the heads of tables, keys of pictures, folders."""

from __future__ import annotations

from collections.abc import Iterable

_SAY_LITTLE = frozenset({"bandwidth", "count", "latency", "model", "name", "path", "rate", "size", "version"})
"""Last keys that say something only behind the key before them."""


def short_label(path: str, others: Iterable[str] = ()) -> str:
    """The last key of a path, behind as many keys before it as set it apart from other paths.

    >>> short_label("topology.nodes"), short_label("topology.node.pcie.bandwidth")
    ('nodes', 'pcie bandwidth')
    >>> short_label("workload.0.sizes", ["workload.0.sizes", "workload.1.sizes"])
    '0 sizes'
    """
    keys, beside = path.split("."), [other.split(".") for other in others if other != path]
    for many in range(1 + (keys[-1] in _SAY_LITTLE), len(keys)):
        if all(other[-many:] != keys[-many:] for other in beside):
            return " ".join(keys[-many:])
    return " ".join(keys)


def value_label(path: str, value: object) -> str:
    """A value of a path in a cell; of an empty variable of NCCL's, that NCCL chooses."""
    return "NCCL's own" if value == "" and path.startswith("library.env.") else str(value)
