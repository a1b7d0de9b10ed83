"""``commsim measure``: the collectives of a scenario on real ranks."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.options import Port, changes
from commsim.errors import CommsimError, MeasurementError, ScenarioError
from commsim.scenario.load import find_scenario

if TYPE_CHECKING:
    from commsim.measure.rendezvous import Place
    from commsim.measure.run import Run
    from commsim.measure.wiring import WiringPlan
    from commsim.scenario.measured import RunOptions
    from commsim.scenario.schema import Scenario


def measure(
    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or the name of a shipped one (such as 'gloo-quickstart').")
    ],
    overrides: Annotated[
        list[str] | None, changes("Changes as key.path=value, such as workload.0.dtype=float64.")
    ] = None,
    backend: Annotated[str, typer.Option(help="nccl, gloo, or auto: nccl where there is a GPU.")] = "auto",
    nproc: Annotated[
        int | None, typer.Option("--nproc", "-n", help="Ranks to start here (default: as the topology has).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for measured.csv and run.json (default: out/<name>-measured)."),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Drop the rows of an earlier run in that folder; without it they are not measured again."
        ),
    ] = False,
    iterations: Annotated[int, typer.Option("--iterations", "-i", min=1, help="Timed calls of each row.")] = 20,
    warmup: Annotated[int, typer.Option("--warmup", "-w", min=0, help="Calls before the timed ones.")] = 5,
    repeats: Annotated[
        int, typer.Option(min=1, help="How often to go through all rows; more than once gives the curve a band.")
    ] = 1,
    check: Annotated[bool, typer.Option(help="Compare every element of the results with what it must be.")] = True,
    arrival: Annotated[float, typer.Option(min=1, help="Seconds that ranks wait for each other to come.")] = 300.0,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Seconds that a rank waits for an answer; with NCCL all calls of a row together (default: gloo 15, "
            "NCCL 600).",
        ),
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="Run this schedule of ours instead of the library's collective: a name, .xml or .json.",
        ),
    ] = "",
    runner: Annotated[
        str, typer.Option(help="What calls NCCL: libnccl (as nccl-tests does), torch, nccl-tests, or auto: libnccl.")
    ] = "auto",
    nccl_tests: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Where the programs of nccl-tests lie, for that runner (default: on PATH)."
        ),
    ] = None,
    graph: Annotated[
        int, typer.Option("--graph", "-G", min=0, help="Launch all calls as one CUDA graph, so many times (libnccl).")
    ] = 0,
    register: Annotated[
        str,
        typer.Option("--register", "-R", help="Register the buffers with NCCL: none, buffer, or window (symmetric)."),
    ] = "none",
    split: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="Split the ranks into communicators that work at once: 'div 4', 'mod 4', 'and 0x4' or 'or 0x3'.",
        ),
    ] = "",
    ranks_per_gpu: Annotated[
        int, typer.Option(min=1, help="Ranks that share each GPU (NCCL); times then mean little.")
    ] = 1,
    capture_choices: Annotated[
        bool,
        typer.Option(
            "--capture-choices",
            help="Before the run, untimed: NCCL's topology, graphs, tuning table and choices (nccl_choices.json).",
        ),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Of a file with several scenarios, those with this in their name."),
    ] = None,
    emit_sbatch: Annotated[
        bool, typer.Option("--emit-sbatch", help="Print a SLURM batch script for this command, and do nothing else.")
    ] = False,
    testbed: Annotated[
        str | None,
        typer.Option(
            metavar="TOPOLOGY",
            help="Build this network here first: a preset, a file, or 'scenario'; removed at the end. Linux, root.",
        ),
    ] = None,
    port: Port = None,
) -> None:
    """Run the collectives of a scenario on real ranks, here or as one rank of torchrun or srun."""
    from commsim.measure.launcher import require_torch
    from commsim.measure.rendezvous import place_from
    from commsim.measure.run import ARRIVAL_S
    from commsim.measure.run_folder import discard
    from commsim.measure.table import heading
    from commsim.scenario.load import load_scenarios
    from commsim.scenario.measured import RunOptions, run_of

    place = place_from(os.environ)
    options = RunOptions(
        backend=backend,
        world_size=nproc if place is None else place.world_size,
        iterations=iterations,
        warmup=warmup,
        repeats=repeats,
        check=check,
        schedule=schedule,
        ranks_per_gpu=ranks_per_gpu,
        capture_choices=capture_choices,
        arrival_s=arrival,
        timeout_s=timeout,
        runner=runner,
        graph=graph,
        register=register,
        split=split,
    )
    if nccl_tests is not None and runner != "nccl-tests":
        raise CommsimError("--nccl-tests has no effect without --runner nccl-tests")
    if runner == "nccl-tests":
        of_ranks = {"--port": port is not None, "--testbed": testbed is not None, "--arrival": arrival != ARRIVAL_S}
        if names := [name for name, given in of_ranks.items() if given]:
            raise CommsimError(
                f"{', '.join(names)} has no effect with --runner nccl-tests, which starts threads of its own"
            )
    scenarios = _chosen(load_scenarios(find_scenario(scenario), overrides or []), only, place is not None, backend)
    if emit_sbatch:
        _print_sbatch(scenarios[0], options)
        return
    beds = [_wiring(one, testbed, nproc) for one in scenarios]
    runs = [
        run_of(one, options if bed is None else replace(options, world_size=bed.world_size))
        for one, bed in zip(scenarios, beds, strict=True)
    ]
    if place is None:
        from commsim.measure.launcher import check_memory
        from commsim.measure.seat import check_gpus_here

        for run in runs:
            check_memory(run)
            check_gpus_here(run)
    for one, run, bed in zip(scenarios, runs, beds, strict=True):
        folder = Path("out") / f"{one.slug}-measured" if out is None else out / one.slug if len(runs) > 1 else out
        if run.runner == "nccl-tests" and place is not None:
            raise MeasurementError("nccl-tests starts its own threads: run this command once, without torchrun or srun")
        if place is None or place.rank == 0:
            require_torch()
            if fresh:
                discard(folder)
        placed = replace(run, out=str(folder.absolute()))
        if run.runner == "nccl-tests":
            from commsim.measure.nccl_tests import measure as by_nccl_tests

            typer.echo(heading(placed))
            by_nccl_tests(placed, str(nccl_tests or ""), typer.echo)
            typer.echo(_written(folder))
        else:
            _by_ranks(placed, place, folder, port, bed)


def _chosen(scenarios: list[Scenario], only: str | None, as_rank: bool, backend: str) -> list[Scenario]:
    """The scenarios to measure; ScenarioError where that is not one machine, or not one run for a rank."""
    from commsim.scenario.measured import backend_of
    from commsim.scenario.setting import build_topology

    names = ", ".join(repr(one.name) for one in scenarios)
    chosen = [one for one in scenarios if only is None or only.lower() in one.name.lower()]
    if not chosen:
        raise ScenarioError(f"found no scenario with --only {only!r} in its name, expected one of {names}")
    if len(chosen) == 1:
        return chosen
    if as_rank:
        raise ScenarioError(f"found {len(chosen)} scenarios, expected one for a rank: name it with --only ({names})")
    if any(backend_of(backend, one) == "nccl" for one in chosen):
        machines = {(t.name, t.nodes, t.world_size) for t in map(build_topology, chosen)}
        if len(machines) > 1:
            raise ScenarioError(
                f"found scenarios of {len(machines)} machines, and this is one: name those of this one with --only "
                f"({names})"
            )
    return chosen


def _print_sbatch(scenario: Scenario, options: RunOptions) -> None:
    """The batch script for the words of this command line."""
    from commsim.measure.sbatch import sbatch
    from commsim.scenario.setting import build_topology

    topology = build_topology(scenario)
    has_gpus = topology.gpu.generation != "cpu" and options.backend != "gloo"
    per_node = topology.ranks_per_node * (options.ranks_per_gpu if has_gpus else 1)
    words = [word for word in sys.argv[2:] if word != "--emit-sbatch"]
    script = sbatch(
        words,
        world_size=options.world_size or topology.nodes * per_node,
        ranks_per_node=per_node,
        gpus_per_node=topology.ranks_per_node if has_gpus else 0,
    )
    typer.echo(script, nl=False)


def _wiring(scenario: Scenario, named: str | None, nproc: int | None) -> WiringPlan | None:
    """The testbed to build, None for none; where none can stand, a warning says why."""
    if named is None:
        return None
    from commsim.measure.testbed import obstacle
    from commsim.measure.wiring import wiring
    from commsim.scenario.measured import testbed_topology

    plan = wiring(testbed_topology(scenario, named, nproc))
    reason = obstacle()
    if reason is None:
        return plan
    typer.echo(f"warning: {reason}; measuring over loopback", err=True)
    return None


def _by_ranks(run: Run, place: Place | None, folder: Path, port: int | None, bed: WiringPlan | None) -> None:
    """Measures one scenario with ranks of ours; prints the table where rank 0 runs."""
    from commsim.measure.launcher import capture_beside, capture_here, interrupts, launch, require_torch
    from commsim.measure.rank_environment import log_level
    from commsim.measure.table import heading

    if bed is not None:
        run = replace(run, network=f"testbed {bed.name}", conditions={"testbed": bed.description()})
    if run.capture_choices and run.tasks:
        if place is None:
            capture_here(run, typer.echo, port=port)
        else:
            capture_beside(run, place, typer.echo)
    if place is None or place.rank == 0:
        typer.echo(heading(run))
    if place is None and bed is not None:
        from commsim.measure.testbed import standing_testbed
        from commsim.measure.wiring import address

        with interrupts(), standing_testbed(bed) as hosts:
            launch(run, typer.echo, hosts=hosts, address=address(0), port=port)
    elif place is None:
        launch(run, typer.echo, port=port)
    else:
        require_torch()
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", log_level(run))  # before torch is imported
        before = time.monotonic()
        from commsim.measure.rank_end import end_process
        from commsim.measure.torch_runner import run_rank  # takes seconds, as it brings torch

        run_rank(run, place, time.monotonic() - before)
        if place.rank == 0:
            typer.echo(_written(folder))
        end_process(0)
    typer.echo(_written(folder))


def _written(folder: Path) -> str:
    from commsim.measure.capture import CHOICES, FOLDER

    captured = f", NCCL's choices in {CHOICES} and {FOLDER}" if (folder / CHOICES).is_file() else ""
    return f"# wrote measured.csv and run.json in {folder}{captured}"
