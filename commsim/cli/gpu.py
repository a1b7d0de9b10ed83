"""``commsim gpu``: everything worth measuring of the GPUs at hand, in one folder, by one command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.options import Port
from commsim.cli.say import aside
from commsim.errors import CommsimError, MeasurementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commsim.lab.ranks import Ranks
    from commsim.measure.rendezvous import Place


def gpu(
    minutes: Annotated[
        float, typer.Option(min=0, help="How long to measure; 0 writes the report of what is there.")
    ] = 10.0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for all of it; the zip lies beside it.")] = Path(
        "lab"
    ),
    nproc: Annotated[
        int | None, typer.Option("--nproc", "-n", min=1, help="Ranks to start here (default: one per GPU).")
    ] = None,
    ranks_per_gpu: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Ranks that share each GPU (default: 4 where there is only one GPU, so that NCCL has peers; else 1).",
        ),
    ] = None,
    largest: Annotated[
        str | None, typer.Option(help="Largest message, such as '1 GiB' (default: what fits, 8 GiB at most).")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Parts to keep to, with commas: collectives, rates, steps, forced, graphs, registered."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds that a rank waits for all calls of a row together.")
    ] = 600.0,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Drop what an earlier run left in the folder; without it that is kept.")
    ] = False,
    port: Port = None,
) -> None:
    """Measure the GPUs here, or those of torchrun or srun: curve, choices, rates, steps, calibration and a report."""
    from commsim.lab.folder import begin, discard, expect, expect_same
    from commsim.lab.ranks import follow
    from commsim.lab.session import PARTS
    from commsim.lab.stages import SMALLEST_BYTES
    from commsim.measure.gpu import gpus
    from commsim.measure.launcher import require_torch
    from commsim.measure.rendezvous import place_from
    from commsim.measure.run import ARRIVAL_S
    from commsim.units import nccl_bytes

    require_torch()
    most = None if largest is None else nccl_bytes(largest)
    if most is not None and most < SMALLEST_BYTES:
        raise CommsimError(f"--largest: found {largest}, expected at least {SMALLEST_BYTES} B")
    if fresh and not minutes:
        raise CommsimError("--fresh drops what is measured, and --minutes 0 measures nothing: leave out one of them")
    parts = PARTS if only is None else tuple(part.strip() for part in only.split(","))
    if unknown := [part for part in parts if part not in PARTS]:
        raise CommsimError(f"--only: found {', '.join(map(repr, unknown))}, expected some of {', '.join(PARTS)}")
    place = place_from(os.environ)
    if place is not None and place.rank:
        from commsim.measure.rank_end import end_process

        follow(place, ARRIVAL_S)
        end_process(0)
    if minutes and not gpus().available():
        raise MeasurementError("torch sees no GPU here; `commsim measure --backend gloo` needs none")
    ranks = _ranks(nproc, ranks_per_gpu, place, port) if minutes else None
    if ranks is None:
        expect(out)
    else:
        begin(out)
        if fresh:
            discard(out)
        expect_same(out, _of_this_machine(ranks))
    _lead(out, 60 * minutes, most, parts, ranks, port, timeout)


def _lead(
    folder: Path,
    seconds: float,
    largest: int | None,
    parts: Sequence[str],
    ranks: Ranks | None,
    port: int | None,
    timeout_s: float,
) -> None:
    """Measures as long as there is time, then writes the report, also of what an interrupt or a fault has left."""
    from commsim.lab.ranks import StartedHere
    from commsim.lab.session import Clock, Session

    interrupted = False
    faults: list[str] = []
    notes: list[str] = []
    if ranks is not None:
        clock = Clock(seconds)
        # Rates of a GPU and steps need it whole, where the ranks of the job share one.
        alone = StartedHere(1, 1, typer.echo, port) if ranks.ranks_per_gpu > 1 else None

        def say(text: str) -> None:
            typer.echo(f"# {clock.spent:5.0f} s  {text}")

        session = Session(folder, ranks, alone, clock, say, largest, parts, timeout_s)
        faults, notes = session.faults, session.notes
        try:
            session.measure()
        except KeyboardInterrupt:
            interrupted = True
            typer.echo("# interrupted: what is measured is kept, and the report is written of it", err=True)
        except MeasurementError as error:
            faults.append(str(error).splitlines()[0])
        finally:
            ranks.end()
            if alone is not None:
                alone.end()
    stopped = bool(faults)
    _report(folder, faults, notes)
    if interrupted:
        raise typer.Exit(130)
    if faults:
        kept = ["what was measured is kept; run the same command again to go on"] if stopped else []
        raise MeasurementError("\n".join([*faults, *kept]))


def _ranks(nproc: int | None, ranks_per_gpu: int | None, place: Place | None, port: int | None) -> Ranks:
    """Those of torchrun or srun, else one per GPU; several on a single GPU, or NCCL would have no peers."""
    from commsim.lab.ranks import SHARING, Joined, StartedHere
    from commsim.measure.gpu import gpus
    from commsim.measure.run import ARRIVAL_S

    if place is not None:
        return Joined(place, ranks_per_gpu or 1, typer.echo, ARRIVAL_S)
    count = gpus().count()
    each = ranks_per_gpu or (SHARING if count == 1 and nproc in (None, SHARING) else 1)
    if nproc is not None and nproc > count * each:
        raise MeasurementError(
            f"found {count} GPU{'s' * (count != 1)} here, expected {-(-nproc // each)} for {nproc} ranks; start fewer "
            "with --nproc, or share GPUs with --ranks-per-gpu"
        )
    return StartedHere(nproc or count * each, each, typer.echo, port)


def _of_this_machine(ranks: Ranks) -> dict[str, object]:
    """What is the same all through a laboratory, by the names of ``run.json``."""
    from commsim.measure.gpu import gpus

    machine = {
        "world_size": ranks.world_size,
        "ranks_per_gpu": ranks.ranks_per_gpu,
        "gpu": gpus().properties(0).name,
    }
    version = gpus().nccl_version()
    return machine if version is None else machine | {"nccl": ".".join(map(str, version))}


def _report(folder: Path, faults: list[str], notes: list[str]) -> None:
    """Judges what is in the folder and writes the report and the zip."""
    from commsim.files import write_atomically
    from commsim.lab.findings import conclude, left_out_or_slowed, wrong_data
    from commsim.lab.folder import REPORT, pack
    from commsim.lab.page import lab_page, summary
    from commsim.report.page import html

    if not folder.is_dir():
        return
    faults += [f"{line}; --fresh measures anew" for line in wrong_data(folder)]
    for line in (noted := list(left_out_or_slowed(folder))):
        typer.echo(f"# {line}", err=True)
    notes += noted
    findings = conclude(folder, lambda text: typer.echo(f"# {text}"))
    write_atomically(folder / REPORT, html(lab_page(findings, findings.machine, faults, notes)))
    for line in summary(findings):
        typer.echo(line)
    for gap in findings.gaps:
        typer.echo(f"# not in the report: {gap}", err=True)
    aside(f"# wrote {folder / REPORT} and {pack(folder)}")
