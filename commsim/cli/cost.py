"""``commsim cost``: what a call costs, and the table of it for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commsim.cli.options import Json
from commsim.cli.say import print_json
from commsim.errors import CommsimError
from commsim.units import format_bytes, format_time


def cost(
    collective: Annotated[str, typer.Argument(help="Which one, such as all_reduce.")],
    sizes: Annotated[
        list[str] | None, typer.Argument(help="Sizes as nccl-tests counts them, such as 64MiB or '8 B .. 8 GiB x2'.")
    ] = None,
    on: Annotated[
        str,
        typer.Option("--on", metavar="MACHINE", help="A preset, or a file of a topology or of one scenario."),
    ] = ...,  # type: ignore[assignment]  # required
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", "-n", help="How many, or which, such as '0 .. 7' (default: all of the machine)."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Type of an element, which matters where elements are added.")] = "float32",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the whole table: FILE.json for programs, or FILE.csv."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Say what one call of a collective costs, and write the table for other programs."""
    from commsim.files import check_writable
    from commsim.scenario.collective import parse_sizes
    from commsim.scenario.cost_source import cost_table

    if not sizes and out is None:
        raise CommsimError("found no sizes and no --out, expected sizes such as 64MiB, a file for the table, or both")
    if out is not None:
        if out.suffix not in (".json", ".csv"):
            raise CommsimError(f"--out: found {str(out)!r}, expected a file that ends in .json or .csv")
        check_writable(out)
    asked = [size for text in sizes or () for size in parse_sizes(text)]
    number = ranks is not None and ranks.strip().isdecimal()
    table = cost_table(collective, int(ranks) if number and ranks else ranks, on, dtype=dtype)
    seconds = [table(size) for size in asked]
    if out is not None:
        (table.to_json if out.suffix == ".json" else table.to_csv)(out)
    for warning in table.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if json_output:
        print_json({**table.facts, "size_bytes": asked, "seconds": seconds})
        return
    for size, each in zip(asked, seconds, strict=True):
        typer.echo(f"{format_bytes(size):>12}  {format_time(each)}")
    if out is not None:
        typer.echo(f"# wrote {out}")
