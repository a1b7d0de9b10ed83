"""``commsim synthesize``: the exact limit of a collective on a machine, and a proven schedule that reaches it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.options import Memory, OnlyJson, spread
from commsim.cli.pictures import form_of, write_picture
from commsim.cli.say import print_json, terminal_bar
from commsim.cli.synthesize_levels import GOOD, LEVELS_FROM, choice_of, nccl_beside, plan_of_levels, show_plan
from commsim.cli.topo import MachineChanges, load_machine
from commsim.errors import CommsimError, InfeasibleError, ScheduleError
from commsim.units import GIB

if TYPE_CHECKING:
    from commsim.report.synthesis import Beside
    from commsim.synthesis.network import FlowNetwork
    from commsim.synthesis.search import Synthesis
    from commsim.topology.graph import Topology

_LARGE, _SMALL = round(GIB), 8 << 10
_ELEMENT = 4
"""Bytes of an element where the size has whole ones; else bytes are cut."""
_MOST_RANKS = 1024
"""Ranks up to which trees are looked for."""
_ADDING = ("nvls", "collnet")
"""What NCCL calls the algorithms in which switches add."""
_PROVEN_SLOTS = 30_000_000
"""Slots up to which the whole schedule is proven; a larger one with fewer pieces of the same trees."""


@dataclass(frozen=True)
class Asked:
    """The collective, its size and its ranks."""

    collective: Annotated[
        str | None, typer.Option("--collective", "-c", help="Such as all_gather (all_reduce, or the scenario's).")
    ] = None
    nbytes: Annotated[
        str | None, typer.Option("--bytes", "-b", help="Size as nccl-tests has it: '1 GiB'; left out: see --for.")
    ] = None
    aim: Annotated[
        str, typer.Option("--for", help="latency (8 KiB), bandwidth (1 GiB) or both (1 KiB to 1 GiB), without --bytes.")
    ] = "both"
    ranks: Annotated[
        str | None, typer.Option("--ranks", help="Ranks that take part, such as 0-7,12 (all), in their order.")
    ] = None
    root: Annotated[int, typer.Option("--root", "-r", help="Of rooted collectives, counted among the ranks (0).")] = 0
    in_network: Annotated[
        bool, typer.Option("--in-network", help="Switches that can may copy and add (NVLS, SHARP).")
    ] = False
    budget: Annotated[float, typer.Option("--budget", min=0.1, help="Seconds of the processor to search for.")] = 60.0


@dataclass(frozen=True, eq=False)
class AskedNetwork:
    """What is asked of: the machine, or the network of a file. The machine's network is made when it is needed."""

    given: FlowNetwork | None
    topology: Topology | None
    collective: str
    ranks: list[int] | None
    in_network: bool

    @property
    def n(self) -> int:
        """Number of ranks."""
        if self.given is not None:
            return self.given.n
        assert self.topology is not None
        return self.topology.world_size if self.ranks is None else len(self.ranks)

    @cached_property
    def network(self) -> FlowNetwork:
        """The network of the ranks."""
        if self.given is not None:
            return self.given
        from commsim.synthesis.machine import machine_network

        assert self.topology is not None
        return machine_network(self.topology, self.ranks, in_network=self.in_network)


@spread
def synthesize(
    machine: Annotated[
        str,
        typer.Argument(metavar="TOPOLOGY|SCENARIO", help="A preset, a topology or network file, or a scenario."),
    ],
    asked: Asked,
    changes: MachineChanges,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Schedule to write: FILE.json, .xml (MSCCL) or .goal.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Picture of time over the limit by size: FILE.png or FILE.svg.")
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option("--draw", help="Pictures of the last size: FILE.png (links by load) and FILE-trees.png; or .svg."),
    ] = None,
    memory: Memory = None,
    json_output: OnlyJson = False,
) -> None:
    """Find the limit of a collective on a machine and a proven schedule that reaches it, with NCCL's time beside it."""
    del memory
    from commsim.report.synthesis import table, text, to_dict
    from commsim.synthesis.aim import Aim
    from commsim.synthesis.front import SIZES, front
    from commsim.synthesis.search import TreeSearch

    if asked.aim not in {"latency", "bandwidth", "both"}:
        raise CommsimError(f"--for: found {asked.aim!r}, expected latency, bandwidth or both")
    if out is not None and out.suffix.lower() not in {".json", ".xml", ".goal"}:
        raise CommsimError(f"{out}: found the ending {out.suffix!r}, expected .json, .xml or .goal")
    for picture in (plot, draw):
        if picture is not None:
            form_of(picture)
    place = _place(machine, asked, changes)
    size = _size(asked.nbytes) if asked.nbytes is not None else _SMALL if asked.aim == "latency" else _LARGE
    if out is not None and out.suffix.lower() == ".xml":
        _writable_for_msccl(out, place)
    reason, beside_trees, began = "", None, time.process_time()
    if place.topology is not None and place.n >= LEVELS_FROM and place.ranks is None and not asked.in_network:
        plan = plan_of_levels(place.topology, place.collective, size, asked.budget, json_output)
        if not isinstance(plan, str) and (plan.ratio <= GOOD or place.n > _MOST_RANKS):
            show_plan(plan, place.topology, out, json_output)
            _no_pictures(plot, draw)
            return
        if isinstance(plan, str):
            reason = f"; no plan by levels: {plan}"
        else:
            beside_trees = plan
    if place.n > _MOST_RANKS:
        raise InfeasibleError(f"found {place.n} ranks, expected at most {_MOST_RANKS} to look for trees{reason}")
    question = Aim(place.network, place.collective, size, asked.root, _itemsize(size, place.network.n))
    many = asked.nbytes is None and asked.aim == "both"
    budget = max(asked.budget - (time.process_time() - began), asked.budget / 3)  # what plans by levels have left
    with terminal_bar(json_output) as bar:
        task = bar.add_task("looking for trees", total=None) if bar else None

        def told(one: Synthesis) -> None:
            if bar is not None:
                bar.update(task, description=f"{one.ratio:.4g} of the limit")

        if many:
            schedules = front(replace(question, itemsize=_ELEMENT), SIZES, budget, told)
            cut_short = len(schedules) < len(SIZES)
        else:
            search = TreeSearch(question, budget)
            schedules = [search.run(told)]
            cut_short = search.interrupted
    spent = time.process_time() - began > asked.budget and max(one.ratio for one in schedules) > GOOD
    if cut_short:
        typer.echo("warning: interrupted: the best so far", err=True)
    elif spent:
        typer.echo(f"note: the search ended with its budget of {asked.budget:g} s: more may come nearer", err=True)
    better = beside_trees is not None and not many and beside_trees.seconds < schedules[0].seconds
    if better and beside_trees is not None and place.topology is not None:
        show_plan(beside_trees, place.topology, out, json_output)
        _no_pictures(plot, draw)
        return
    for one in schedules:
        prove(one)
    beside = [_beside(one, place) for one in schedules]
    best, its = schedules[-1], beside[-1]
    if json_output:
        document = {"topology": place.network.name} | to_dict(best, its) | {"proven": True, "budget_spent": spent}
        if many:
            document["front"] = [to_dict(one, other) for one, other in zip(schedules, beside, strict=True)]
        print_json(document)
    else:
        typer.echo(text(best, its))
        if many:
            typer.echo("\n" + table(list(zip(schedules, beside, strict=True))))
    if out is not None:
        _write(out, best)
    if plot is not None:
        from commsim.report.synthesis_plot import plot_front

        write_picture(plot, plot_front(list(zip(schedules, beside, strict=True))))
        typer.echo(f"wrote {plot}", err=True)
    if draw is not None:
        _draw(draw, best, place.topology)


def _no_pictures(plot: Path | None, draw: Path | None) -> None:
    """Says that a plan by levels has no pictures, where one was asked for."""
    for option, file in (("--plot", plot), ("--draw", draw)):
        if file is not None:
            typer.echo(
                f"warning: {option} {file}: nothing drawn, pictures are of trees and this is a plan by levels", err=True
            )


def _draw(file: Path, best: Synthesis, topology: Topology | None) -> None:
    """The machine with its links by load, where there is a machine, and the trees, where they are the schedule."""
    from commsim.report.tree_plot import plot_load, plot_trees

    if topology is not None:
        typer.echo(f"wrote {write_picture(file, plot_load(topology, best))}", err=True)
    if best.known:
        typer.echo(f"no trees to draw: {best.laid.schedule.algorithm} is quicker at this size", err=True)
    else:
        trees = file.with_name(f"{file.stem}-trees{file.suffix}")
        typer.echo(f"wrote {write_picture(trees, plot_trees(best))}", err=True)


def _place(machine: str, asked: Asked, changes: MachineChanges) -> AskedNetwork:
    from commsim.document.reading import read_documents
    from commsim.errors import TopologyError
    from commsim.synthesis.network_file import is_network, load_network
    from commsim.topology.presets import preset_names

    path, collective = Path(machine), asked.collective
    topology: Topology | None = None
    ranks = None if asked.ranks is None else _ranks(asked.ranks)
    if machine not in preset_names() and path.is_file():
        document = read_documents(path, error=TopologyError)[0]
        if is_network(document):
            network = load_network(path)
            if changes != MachineChanges():
                raise CommsimError(f"{machine}: a network is all there is of it, found options that change a machine")
            return AskedNetwork(_part(network, ranks), None, collective or "all_reduce", ranks, asked.in_network)
        if isinstance(document.data, dict) and "workload" in document.data:
            topology, collective = _of_scenario(path, collective)
    elif machine not in preset_names() and (scenario := _shipped(machine)) is not None:
        topology, collective = _of_scenario(scenario, collective)
    if topology is None:
        topology = load_machine(machine, changes)
    return AskedNetwork(None, topology, collective or "all_reduce", ranks, asked.in_network)


def _shipped(name: str) -> Path | None:
    from commsim.scenario.load import find_scenario

    try:
        path = find_scenario(name)
    except CommsimError:
        return None
    return path if path.is_file() else None


def _of_scenario(path: Path, collective: str | None) -> tuple[Topology, str | None]:
    """The machine of a scenario, and the collective of its first item that has one."""
    from commsim.scenario.load import load_scenarios
    from commsim.scenario.run import prepare

    scenario = load_scenarios(path)[0]
    own = next((str(getattr(work, "collective")) for work in scenario.workload if hasattr(work, "collective")), None)  # noqa: B009
    return prepare(scenario).topology, collective or own


def _part(network: FlowNetwork, ranks: list[int] | None) -> FlowNetwork:
    """The network with some of its ranks; the others pass bytes on."""
    if ranks is None:
        return network
    if not ranks or max(ranks) >= network.n or len(set(ranks)) < len(ranks):
        raise CommsimError(f"--ranks: expected different ranks within 0..{network.n - 1}, found {ranks[:8]}")
    return replace(network, ranks=network.ranks[ranks])


def _ranks(text: str) -> list[int]:
    """'0-3,8' as numbers."""
    numbers: list[int] = []
    for part in text.replace("..", "-").split(","):
        ends = part.strip().split("-")
        if len(ends) > 2 or not all(end.isascii() and end.isdecimal() and len(end) <= 7 for end in ends):
            raise CommsimError(f"--ranks: found {part[:40]!r}, expected ranks such as 0-7,12")
        first, last = int(ends[0]), int(ends[-1])
        if last < first:
            raise CommsimError(f"--ranks: found {part[:40]!r}, expected a rising range")
        numbers += range(first, last + 1)
    return numbers


def _size(text: str) -> int:
    """Bytes, above zero; also said of a bare number that is not."""
    from commsim.units import nccl_bytes

    bare = text.strip().lstrip("+-").replace(".", "", 1)
    below = text.strip().startswith("-") or (bare.isascii() and bare.isdecimal() and not float(bare))
    size = 0 if below else nccl_bytes(text)
    if size < 1:
        raise CommsimError(f"--bytes: found {text!r}, expected a size above zero, such as '64 MiB'")
    return size


def _writable_for_msccl(out: Path, place: AskedNetwork) -> None:
    """Refuses, before a search, what MSCCL cannot express: a rank all of whose links lead to switches that act."""
    if place.n > _MOST_RANKS or (place.given is None and not place.in_network):
        return
    import numpy as np

    from commsim.collectives.semantics import DIVIDED, PAIRWISE, ROOTED

    over_paths = place.collective in PAIRWISE | ROOTED & DIVIDED  # there switches pass on
    network = place.network
    acts = network.copies | network.adds
    into_acting = acts[network.head][np.isin(network.tail, network.ranks)]
    if not over_paths and into_acting.size and into_acting.all():
        raise ScheduleError(f"{out}: MSCCL has no switches that copy or add, as all ranks are joined by here")


def _itemsize(size: int, ranks: int) -> int:
    return _ELEMENT if size % _ELEMENT == 0 and size >= _ELEMENT * 64 * ranks else 1


def prove(one: Synthesis) -> None:
    """Proves a schedule by replay; one of very many pieces by the same trees in fewer."""
    from commsim.collectives.check import check
    from commsim.synthesis.search import laid_out

    if one.known:
        check(one.laid.schedule)
        return
    count, laid = one.pieces, one.laid
    trees = max(len(places) for places in _by_block(one).values())
    while laid.schedule.endpoints * 3 * laid.schedule.chunk_bytes.size > _PROVEN_SLOTS and count // 2 >= trees:
        count //= 2
        laid = laid_out(one.question, one.forest, count)
    check(laid.schedule)


def _by_block(one: Synthesis) -> dict[Any, list[int]]:
    from commsim.synthesis.aim import WHOLE_ARRAY

    blocks: dict[Any, list[int]] = {}
    for k, tree in enumerate(one.forest.out or one.forest.into):
        blocks.setdefault(0 if one.question.collective in WHOLE_ARRAY else tree.root, []).append(k)
    return blocks


def _beside(one: Synthesis, place: AskedNetwork) -> Beside:
    """NCCL's own time for the size on the whole machine, where its model has one."""
    from commsim.report.synthesis import Beside, RawBound
    from commsim.synthesis.bound import BoundQuestion
    from commsim.synthesis.library import library_best

    topology, ranks = place.topology, None if place.ranks is None else tuple(place.ranks)
    if topology is None:
        return Beside()
    q = one.question
    asked = BoundQuestion(q.collective, q.root, ranks, place.in_network)
    bound = RawBound.of(topology, asked, q.size, one.limit_s)
    known = nccl_beside(topology, place.collective, q.size, ranks)
    if known is None:
        return Beside(bound=bound)
    model, answer = known
    return Beside(
        answer.time_s,
        choice_of(answer),
        library_best(one, topology, model, place.ranks),
        _adding_limit_s(one, place) if answer.algorithm.startswith(_ADDING) and not place.in_network else None,
        bound,
    )


def _adding_limit_s(one: Synthesis, place: AskedNetwork) -> float:
    """The limit where switches add too: by cuts, in milliseconds."""
    from commsim.synthesis.limit import limit_of

    network, q = replace(place, in_network=True).network, one.question
    return limit_of(network, q.collective, root=q.root, effort="flow").seconds(q.size)


def _write(out: Path, best: Synthesis) -> None:
    from commsim.collectives.goal import goal_text
    from commsim.collectives.json_table import json_text
    from commsim.files import write_atomically
    from commsim.synthesis.export import for_msccl

    if out.suffix.lower() == ".xml":
        try:
            one, text = for_msccl(best)
        except ScheduleError as error:
            raise ScheduleError(f"{out}: {error}") from None
        note = f" in {one.pieces} pieces, {one.ratio:.4g} of the limit on ideal links"
    else:
        text, note = (json_text if out.suffix.lower() == ".json" else goal_text)(best.laid.schedule), ""
    write_atomically(out, text)
    typer.echo(f"wrote {out}{note}", err=True)
