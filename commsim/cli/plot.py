"""``commsim plot``: pictures of saved results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsim.cli.options import Memory
from commsim.cli.pictures import write_both, write_picture
from commsim.cli.say import aside
from commsim.errors import CommsimError
from commsim.scenario.load import find_scenario


def plot(
    result: Annotated[
        str,
        typer.Argument(
            help="A folder or JSON that run, sweep, plan or validate --json wrote; for a map, also a scenario file."
        ),
    ],
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind", "-k", help="Kind of picture, or all (default: the first of those that the result can show)."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A .png or .svg file, or a folder for both (default: beside the result)."),
    ] = None,
    item: Annotated[int | None, typer.Option(min=1, help="Only this item of several, from 1.")] = None,
    path: Annotated[str | None, typer.Option(help="Of a sweep's knees, only along this path.")] = None,
    nodes: Annotated[
        str | None, typer.Option(help="Of a scenario's map, the numbers of nodes (default: 1,2,4,8,16,32).")
    ] = None,
    memory: Memory = None,
) -> None:
    """Draw a saved result as PNG and SVG: bandwidth, accuracy, crossovers, scaling, steps, memory, links, choices."""
    del memory
    from commsim.report.kinds import kinds_of, pictures
    from commsim.report.read_saved import read_saved
    from commsim.report.view import PictureChoice

    if out is not None and out.suffix[1:].isalpha() and out.suffix not in (".png", ".svg") and not out.is_dir():
        raise CommsimError(f"{out}: found the ending {out.suffix!r}, expected .png, .svg or a folder")
    saved = read_saved(Path(result) if Path(result).exists() else find_scenario(result))
    selection = PictureChoice(item, path, _numbers(nodes))
    possible = kinds_of(saved)
    wanted = possible if kind == ["all"] else list(dict.fromkeys(kind or possible[:1] or [""]))
    if kind is None and possible[1:]:
        aside(f"# drawn: {possible[0]}; --kind takes {', '.join(possible[1:])} or all as well")
    made = {f"{name}{suffix}": figure for name in wanted for suffix, figure in pictures(saved, name, selection)}
    if out is not None and out.suffix in (".png", ".svg"):
        if len(made) != 1:
            raise CommsimError(f"found {len(made)} pictures for one file, expected a folder, or --kind and --item")
        written = [write_picture(out, next(iter(made.values())))]
    else:
        folder = out or saved.folder
        written = [file for name, figure in made.items() for file in write_both(folder / name, figure)]
    for file in written:
        aside(f"# wrote {file}")


def _numbers(text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if any(not (p.isascii() and p.isdigit() and 0 < int(p) <= 65536) for p in parts):
        raise CommsimError(f"found --nodes {text!r}, expected numbers from 1 to 65536, such as 1,2,4")
    return tuple(sorted({int(p) for p in parts}))
