"""How a run used the network, as lines on the screen and as a table of its links."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from commsim.report.tables import format_time_us
from commsim.scenario.item import Item
from commsim.units import format_bytes, microseconds


def use_lines(item: Item) -> list[str]:
    """What the largest size waited for, the time it was exposed, and a line for each kind of link it used."""
    use = item.use
    if use is None:
        return []
    if not use.time_s:
        return [f"# network at {format_bytes(item.use_bytes)}: {use.bottleneck}"]
    head = (
        f"# network at {format_bytes(item.use_bytes)}: {use.bottleneck}; exposed {format_time_us(use.exposed_s)} us "
        f"of {format_time_us(use.time_s)} us{f' (links of {use.part})' if use.part else ''}"
    )
    kinds = [
        f"#   {kind.kind}: {kind.links} links, {format_bytes(kind.nbytes)}, carrying data for "
        f"{100 * kind.busy_share:.0f} % of the time, at most {100 * kind.busiest_share:.0f} % ({kind.busiest})"
        for kind in use.kinds
    ]
    return [head, *kinds]


def links_csv(items: Iterable[Item]) -> str:
    """The links of the largest size of every item, the longest busy first, as one CSV table."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["item", "collective", "size_bytes", "link", "kind", "bytes", "busy_us", "utilisation"])
    for number, item in enumerate(items, 1):
        for link in item.use.links if item.use else ():
            busy = f"{microseconds(link.busy_s):.9g}"
            place = [number, item.collective, item.use_bytes, link.link, link.kind]
            writer.writerow([*place, link.nbytes, busy, f"{link.busy_share:.9g}"])
    return stream.getvalue()
