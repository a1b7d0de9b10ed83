"""Overrides of a machine's network that are not what bounds any row: what bounds instead, from the rows at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from commsim.nccl.machine import FABRIC, NIC, UPLINKS
from commsim.nccl.messages import MESSAGES
from commsim.units import format_bytes

if TYPE_CHECKING:
    from commsim.scenario.item import Item
    from commsim.scenario.setting import Setting

_UPLINKS = frozenset({UPLINKS, FABRIC})
_CARDS = frozenset({NIC, MESSAGES}) | _UPLINKS

_BINDS = {"nic_bandwidth": _CARDS, "nics_per_node": _CARDS, "oversubscription": _UPLINKS}
"""By key of a topology, the bottlenecks in which it is felt."""


def unbound_notes(scenario: Setting, item: Item, said: Sequence[str]) -> Iterator[str]:
    """A sentence at each override of the command line that no row of an item is bound by; of NCCL's rows only.

    None for what is `said` already to have no effect.
    """
    given = [
        key
        for key in _BINDS
        if ("topology", key) in scenario.document.overrides and not any(f"topology.{key}: has no" in s for s in said)
    ]
    if not given or item.library != "nccl" or not item.rows or not item.rows[-1].bottleneck:
        return
    binding = {name for row in item.rows for name in (row.bottleneck, row.busiest_link)}
    last = item.rows[-1]
    for key in given:
        if not binding & _BINDS[key]:
            text = (
                f"does not bound {item.collective} here: at {format_bytes(last.size_bytes)} it is bound by "
                f"{last.bottleneck}; `commsim explain` says what would help"
            )
            yield str(scenario.document.fault(("topology", key), text, at_key=True))
