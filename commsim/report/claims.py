"""Claims as text: what is said, by whom, what comes out, and the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from commsim.scenario.workload.claim import ClaimItem


def claim_table(item: ClaimItem, heading: Iterable[str] = ()) -> str:
    """Five lines per claim; ends with a newline."""
    printed = " to ".join(f"{v:.6g}" for v in item.printed)
    rows = [
        ("claim", item.text),
        ("source", item.source),
        ("printed", f"{printed} {item.unit}".strip()),
        ("computed", f"{item.value:.6g} {item.unit}".strip()),
        ("verdict", item.verdict),
    ]
    lines = [f"# {text}".rstrip() for text in heading]
    for name, text in rows:
        first, *more = textwrap.wrap(text, 105) or [""]
        lines += [f"  {name:<9} {first}", *(" " * 12 + line for line in more)]
    return "\n".join(lines) + "\n"
