"""Executes the pages of EXECUTED: `python docs/examples.py` (or `make examples`) writes what their code prints.

A page's ``pycon`` blocks run in order in one namespace, as a notebook would; their output is written anew, and at
`<!-- figure: NAME -->` the value of `figure` goes to docs/images/guides/NAME.png. `tests/test_examples.py` fails where
a page does not say what its code prints.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
from pathlib import Path
from typing import Any

from commsim.files import write_atomically
from commsim.report.plots import figure_bytes

ROOT = Path(__file__).resolve().parent.parent
GUIDES = ROOT / "docs" / "guides"
PICTURES = ROOT / "docs" / "images" / "guides"
_NAMES = ("size-a-fabric", "find-the-best-parallelism", "check-my-log", "synthesis", "one-line")
EXECUTED = tuple(GUIDES / f"{name}.md" for name in _NAMES)

_PART = re.compile(r"^```pycon\n(.*?)^```|<!-- figure: ([\w-]+) -->", re.MULTILINE | re.DOTALL)


def executed(text: str) -> tuple[str, dict[str, bytes]]:
    """The page with the output of its code as it is now, and its pictures as PNG files by name."""
    names: dict[str, Any] = {}
    pictures: dict[str, bytes] = {}

    def part(found: re.Match[str]) -> str:
        if found[1] is None:
            pictures[found[2]] = figure_bytes(names["figure"], "png")
            return found[0]
        lines = [_run(example, names) for example in doctest.DocTestParser().get_examples(found[1])]
        return "```pycon\n" + "".join(lines) + "```"

    return _PART.sub(part, text), pictures


def _run(example: doctest.Example, names: dict[str, Any]) -> str:
    """The source with its prompts, then what it printed."""
    first, *more = example.source.splitlines()
    shown = "".join([f">>> {first}\n", *(f"... {line}\n" if line else "...\n" for line in more)])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.source, "<example>", "single"), names)
    return shown + "".join(f"{line}\n" for line in (text.rstrip() for text in printed.getvalue().splitlines()) if line)


def main() -> int:
    """Write the pages and their pictures."""
    for page in EXECUTED:
        text, pictures = executed(page.read_text(encoding="utf-8"))
        write_atomically(page, text)
        for name, content in pictures.items():
            write_atomically(PICTURES / f"{name}.png", content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
