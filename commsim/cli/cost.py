"""``commsim cost``: what a call costs, and the table of it for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from commsim.cli.options import Json, RawBytes, complete_collectives, complete_machines
from commsim.cli.say import aside, print_json, tracking
from commsim.errors import CommsimError
from commsim.units import format_size, format_time, nccl_bytes

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command("cost", context_settings={"ignore_unknown_options": True})  # -5MB is a size, which is refused as one
def cost(
    collective: Annotated[
        str, typer.Argument(autocompletion=complete_collectives, help="Which one, such as all_reduce.")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SIZE|KEY=VALUE]...",
            help="Sizes as nccl-tests counts them, such as 64M, 64MiB or '8 .. 8G x2'; changes to the scenario of the "
            "call, such as library.version=2.29.2 mode=single workload.0.redop=max (workload.0 is the call).",
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="MACHINE",
            autocompletion=complete_machines,
            help="A preset, a file of a topology or of one scenario, or the name of a shipped scenario.",
        ),
    ] = ...,  # type: ignore[assignment]  # required
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks",
            "-n",
            help="How many ranks (GPUs; `run -n` counts nodes), or which: '0 .. 7', 0,8, '0 .. 63 +8' (default: all of "
            "the machine).",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Type of an element, which matters where elements are added (default: as the scenario says, else "
            "float32)."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write the whole table: FILE.json for programs, or FILE.csv."),
    ] = None,
    raw: RawBytes = False,
    json_output: Json = False,
) -> None:
    """Say what one call of a collective costs, and write the table for other programs."""
    from commsim.scenario.collective import parse_sizes
    from commsim.scenario.cost_question import AskedCall
    from commsim.scenario.cost_source import model_source
    from commsim.scenario.cost_table import CostTable, check_place

    overrides = [text for text in texts or () if "=" in text]
    sizes = [text for text in texts or () if "=" not in text]
    if unknown := [text for text in sizes if text.startswith("-") and not text[1:2].isdecimal()]:
        raise CommsimError(f"found the option {unknown[0]!r}, expected one that `commsim cost --help` lists")
    if not sizes and out is None:
        raise CommsimError("found no sizes and no --out, expected sizes such as 64MiB, a file for the table, or both")
    if out is not None:
        if out.suffix not in (".json", ".csv"):
            raise CommsimError(f"--out: found {str(out)!r}, expected a file that ends in .json or .csv")
        check_place(out)
    asked = [
        (size, str(size) if raw else _echo(text, size)) for text in sizes for size in parse_sizes(text, nccl_bytes)
    ]
    source = model_source(AskedCall(collective, dtype, overrides=tuple(overrides)), ranks, on)
    table = CostTable(source.facts(), source)
    with tracking(json_output) as progress:
        seconds = [table(size) for size, _ in (progress(asked, f"{collective} on {on}") if progress else asked)]
        if out is not None:
            table.fill(progress)
    if out is not None:
        (table.to_json if out.suffix == ".json" else table.to_csv)(out)
    for size, _ in asked:
        source.predictor.doubt(size)
    for warning in table.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if json_output:
        print_json({**table.facts, "size_bytes": [size for size, _ in asked], "seconds": seconds})
        return
    if asked:
        typer.echo(_heading(table.facts, ranks))
    for (_, shown), each in zip(asked, seconds, strict=True):
        typer.echo(f"{shown:>12}  {format_time(each)}")
    if out is not None:
        aside(f"# wrote {out}")


def _heading(facts: Mapping[str, Any], given: str | None) -> str:
    """What the times are of: ``# all_reduce on 16 ranks: 2 nodes, hgx-h100-ndr400``, and which ranks were given."""
    ranks, nodes = facts["n_ranks"], facts["nodes"]
    which = "" if given is None or given.strip().isdecimal() else f" ({given.strip()})"
    counted = f"{ranks:,} rank{'s' * (ranks != 1)}{which}: {nodes:,} node{'s' * (nodes != 1)}"
    return f"# {facts['collective']} on {counted}, {facts['machine']}"


def _echo(text: str, size: int) -> str:
    """A size as it was given; of a range in powers of two where that is exact, else in bytes."""
    if ".." not in text:
        return text.strip()
    return format_size(size)
