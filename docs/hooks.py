"""For mkdocs: links into the code, which the site does not hold, become words with the place behind them."""

from __future__ import annotations

import re

CODE = re.compile(r'\[([^\]]+)\]\((?:\.\./)+(commsim/[^)\s]+\.py) "(\w+)"\)')
"""Text, file and name of a link such as `[topology](../commsim/topology/graph.py "Topology")`."""


def on_page_markdown(markdown: str, **_: object) -> str:
    """The text of a page without links into the code."""
    return CODE.sub(r'<abbr title="\2: \3">\1</abbr>', markdown)
