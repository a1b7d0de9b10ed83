"""Runs the ``console`` blocks of a page and writes their output anew.

In a block ``$`` begins a command and ``>`` a further line of it; the rest is what it printed. A line ``...`` is a gap:
the first and last lines of the output are kept, as many as stand before and after it. A command ends with status 0, or
with that of its comment ``# exit status 1``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from commsim.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
GAP = "..."
_SHARED = ("commsim", "docs", "scenarios", "tests", "topologies", "validation")
"""Folders of the checkout that commands of a page may read."""
_STATUS = re.compile(r"# exit status (\d+)$")
_FILE = re.compile(r"# (\S+\.ya?ml)\n")
_COMPILING = "commsim: compiling"
"""Begins a line that only the first run after an install prints."""
_TIMEOUT_S = 900


class ExampleError(Exception):
    """A command of a page does not do what the page says."""


@dataclass
class Command:
    """A command of a block and what the page says that it prints."""

    lines: list[str]
    printed: list[str] = field(default_factory=list)

    @property
    def script(self) -> str:
        """What bash is given."""
        return "\n".join(self.lines) + "\n"

    @property
    def status(self) -> int:
        """The exit status that the page promises."""
        said = _STATUS.search(self.lines[0])
        return int(said[1]) if said else 0

    def __str__(self) -> str:
        first, *more = self.lines
        shown = [f"$ {first}", *(f"> {line}".rstrip() for line in more), *self.printed]
        return "".join(f"{line}\n" for line in shown)


def commands(block: str) -> Iterator[Command]:
    """The commands of a block, in order. Raises ExampleError where output stands before the first."""
    command: Command | None = None
    for line in block.splitlines():
        if line.startswith("$ "):
            if command:
                yield command
            command = Command([line[2:]])
        elif command is None:
            raise ExampleError(f"found {line!r} before the first command, expected a line that begins with '$ '")
        elif (line == ">" or line.startswith("> ")) and not command.printed:
            command.lines.append(line[2:])
        else:
            command.printed.append(line)
    if command:
        yield command


def run_block(block: str, folder: Path) -> str:
    """The block with what its commands print in `folder`, which `prepare` has made. Raises ExampleError."""
    return "".join(str(Command(c.lines, kept(_printed(c, folder), c.printed))) for c in commands(block))


def prepare(folder: Path) -> None:
    """Makes `folder` look like the checkout to commands, whose `commsim` is the checkout's; it has no `out/`."""
    for name in _SHARED:
        (folder / name).symlink_to(ROOT / name)
    programs = folder / ".bin"
    programs.mkdir()
    for name, arguments in (("commsim", "-m commsim"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n', encoding="utf-8")
        program.chmod(0o755)


def write_file(block: str, folder: Path) -> None:
    """Writes a ``yaml`` block that begins with a comment of a file's name, for the commands that follow."""
    named = _FILE.match(block)
    if named:
        write_atomically(folder / named[1], block)


def kept(output: list[str], before: list[str]) -> list[str]:
    """The lines of `output` that are shown: all, or around a gap as many as stood `before`."""
    gaps = [i for i, line in enumerate(before) if line == GAP]
    if not gaps:
        return output
    if len(gaps) > 1:
        raise ExampleError(f"found {len(gaps)} gaps in the output of one command, expected one at most")
    first, last = gaps[0], len(before) - gaps[0] - 1
    if len(output) <= first + last:
        return output
    return [*output[:first], GAP, *output[len(output) - last :]]


def _printed(command: Command, folder: Path) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", command.script],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != command.status:
        raise ExampleError(
            f"{command.script}found exit status {done.returncode}, expected {command.status}\n{done.stdout}"
        )
    lines = [line.rstrip() for line in done.stdout.rstrip().splitlines() if not line.startswith(_COMPILING)]
    shown = kept(lines, command.printed)
    unclear = [line for line in shown if line.startswith(("$ ", "```")) or str(folder) in line or str(ROOT) in line]
    if unclear:
        raise ExampleError(
            f"{command.script}found {unclear[0]!r}, expected lines without prompts or paths of this machine"
        )
    return lines


def _environment(folder: Path) -> dict[str, str]:
    """Variables of a command: a home of its own, 100 columns, no colours, pictures without a display."""
    caches = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    return {
        "PATH": os.pathsep.join([str(folder / ".bin"), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",  # what goes to the two streams stays in order
        "HOME": str(folder),
        "XDG_CACHE_HOME": caches,  # matplotlib's list of fonts takes seconds to make
        "COLUMNS": "100",
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
