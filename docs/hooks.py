"""For mkdocs: links into the code, which the site does not hold, become words; wide tables get the whole width."""

from __future__ import annotations

import re
from typing import Any

CODE = re.compile(r'\[([^\]]+)\]\((?:\.\./)+(commsim/[^)\s]+\.py) "(\w+)"\)')
"""Text, file and name of a link such as `[topology](../commsim/topology/graph.py "Topology")`."""

WIDE = {f"accuracy-{name}.md" for name in ("decisions", "degraded", "rl", "terms", "training")}
"""Pages whose tables do not fit beside a table of contents on a screen of 1,280 px."""


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """The text of a page without links into the code."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    return CODE.sub(r'<abbr title="\2: \3">\1</abbr>', markdown)
