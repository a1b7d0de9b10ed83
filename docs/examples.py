"""Executes the pages of EXECUTED: `python docs/examples.py` (or `make examples`) writes what they print.

The ``pycon`` blocks of a page run in order in one namespace, as a notebook would, the ``console`` blocks in bash
(`docs/console.py`), both in a fresh folder that looks like the checkout; a ``yaml`` block that begins with a file's
name in a comment is written there first. At `<!-- figure: NAME -->` the value of `figure` goes to
docs/images/guides/NAME.png. `tests/test_examples.py` fails where a page does not say what it prints.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import multiprocessing
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from console import ROOT, ExampleError, prepare, run_block, write_file

from commsim.files import write_atomically
from commsim.report.plots import figure_bytes

PICTURES = ROOT / "docs" / "images" / "guides"
_WORKERS = 2

_PART = re.compile(r"^```(pycon|console|yaml)\n(.*?)^```|<!-- figure: ([\w-]+) -->", re.MULTILINE | re.DOTALL)


def _executed() -> Iterator[Path]:
    """Pages with something to run. Those of the reference come from docstrings, which are tests already."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        if "reference" not in page.parts and re.search(r"^```(pycon|console)$", text, re.MULTILINE):
            yield page


EXECUTED = tuple(_executed())


def executed(text: str) -> tuple[str, dict[str, bytes]]:
    """The page with the output of its code as it is now, and its pictures as PNG files by name.

    Raises ExampleError where a command ends with another status than the page says.
    """
    with tempfile.TemporaryDirectory(prefix="page-") as place, contextlib.chdir(place):
        folder = Path(place)
        prepare(folder)
        return _in_folder(text, folder)


def _in_folder(text: str, folder: Path) -> tuple[str, dict[str, bytes]]:
    names: dict[str, Any] = {}
    pictures: dict[str, bytes] = {}

    def part(match: re.Match[str]) -> str:
        language, body, picture = match.groups()
        if picture:
            pictures[picture] = figure_bytes(names["figure"], "png")
        elif language == "console":
            return f"```console\n{run_block(body, folder)}```"
        elif language == "pycon":
            return f"```pycon\n{_run_python(body, names)}```"
        else:
            write_file(body, folder)
        return match[0]

    return _PART.sub(part, text), pictures


def _run_python(block: str, names: dict[str, Any]) -> str:
    """The examples of a block with what they print; blank lines between two examples stay."""
    parts = doctest.DocTestParser().parse(block)
    shown = [_run(p, names) if isinstance(p, doctest.Example) else "\n" * p.count("\n") for p in parts]
    return "".join(shown).rstrip("\n") + "\n"


def _run(example: doctest.Example, names: dict[str, Any]) -> str:
    """The source with its prompts, then what it printed."""
    first, *more = example.source.splitlines()
    shown = "".join([f">>> {first}\n", *(f"... {line}\n" if line else "...\n" for line in more)])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example.source, "<example>", "single"), names)
    return shown + "".join(f"{line}\n" for line in (text.rstrip() for text in printed.getvalue().splitlines()) if line)


def write_page(page: Path) -> bool:
    """Writes a page and its pictures anew; whether its text has changed."""
    before = page.read_text(encoding="utf-8")
    try:
        text, pictures = executed(before)
    except ExampleError as error:
        raise ExampleError(f"{page.relative_to(ROOT)}: {error}") from None
    write_atomically(page, text)
    for name, content in pictures.items():
        write_atomically(PICTURES / f"{name}.png", content)
    return text != before


def main(names: list[str]) -> int:
    """Write the pages of these names (`doctor`, `guides/doctor`), all without a name; 2 where a name is of no page."""
    pages = [p for p in EXECUTED if not names or any(p.with_suffix("").as_posix().endswith(f"/{n}") for n in names)]
    if not pages:
        print(f"found no page {' '.join(names)}, expected one of {', '.join(p.stem for p in EXECUTED)}")
        return 2
    # A process for each page: what one page imports or sets is not there for the next.
    spawn = multiprocessing.get_context("spawn")
    failed = 0
    with ProcessPoolExecutor(_WORKERS, mp_context=spawn, max_tasks_per_child=1) as pool:
        for page, written in [(page, pool.submit(write_page, page)) for page in pages]:
            try:
                print(f"{page.relative_to(ROOT)}: {'changed' if written.result() else 'as it was'}", flush=True)
            except Exception as error:
                print(f"{page.relative_to(ROOT)}: {type(error).__name__}: {error}", file=sys.stderr)
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
