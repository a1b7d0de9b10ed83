"""Writes the pictures and figures of docs/background/algorithms: `python docs/figures.py` (or `make figures`).

Pictures go to docs/images/algorithms. Figures go between markers on the pages, `<!-- begin: x -->` and
`<!-- end: x -->`: `printed NAME` is what `commsim run scenarios/crossover/NAME.yaml` says about the winners, and
`behind FAMILY` how far the algorithms of a family are behind them.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from commsim.collectives import registry
from commsim.files import write_atomically
from commsim.report.crossover import crossover_lines, plot_crossover
from commsim.report.plots import figure_bytes
from commsim.report.schedule_plot import plot_schedule
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run
from commsim.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.collectives.schedule import Schedule
    from commsim.scenario.item import Item, Row

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "background" / "algorithms"
PICTURES = ROOT / "docs" / "images" / "algorithms"
SCENARIOS = ROOT / "scenarios" / "crossover"
COLUMNS = tuple(1 << e for e in (10, 15, 20, 25, 30))  # 1 KiB, 32 KiB, 1 MiB, 32 MiB, 1 GiB

_BLOCK = re.compile(r"<!-- begin: (\w+) ([\w-]+) -->\n.*?<!-- end: \1 \2 -->", re.DOTALL)


@dataclass(frozen=True)
class Diagram:
    """A space-time picture of 8 ranks."""

    file: str
    collective: str
    algorithm: str
    chunks: int = 1
    node: int | None = None
    part: int | None = None  # every so many-th chunk only

    def figure(self) -> Figure:
        """The picture of 1 MiB."""
        schedule = registry.build(
            self.collective, self.algorithm, 8, 1 << 20, chunks=self.chunks, ranks_per_node=self.node
        )
        where = f" in {8 // self.node} nodes" if self.node and self.node > 1 else ""
        if self.part:
            schedule = _every(schedule, self.part)
            where += f", one of {self.part} parts"
        title = f"{self.algorithm.replace('_', ' ')} {self.collective}, 8 ranks{where}"
        return plot_schedule(schedule, title, width_in=9.0)


def _every(schedule: Schedule, part: int) -> Schedule:
    """The moves of chunks 0, part, 2 part, ... alone."""
    keep = schedule.src_chunk % part == 0
    columns = ("op", "src", "dst", "src_buffer", "dst_buffer", "step", "channel")
    kept = {name: getattr(schedule, name)[keep] for name in columns}
    kept |= {name: getattr(schedule, name)[keep] // part for name in ("src_chunk", "dst_chunk")}
    sizes = schedule.chunk_bytes[::part]
    return replace(schedule, **kept, chunk_bytes=sizes, known_dependencies=None)


@dataclass(frozen=True)
class Family:
    """The algorithms of one page, and the crossovers on it."""

    algorithms: tuple[str, ...]
    machines: tuple[str, ...]


DIAGRAMS = (
    Diagram("ring", "all_reduce", "ring"),
    Diagram("double-tree", "all_reduce", "tree", chunks=2, node=1),
    Diagram("reduce-broadcast", "all_reduce", "reduce_broadcast"),
    Diagram("recursive-doubling", "all_reduce", "recursive_doubling"),
    Diagram("rabenseifner", "all_reduce", "rabenseifner"),
    Diagram("bruck", "all_gather", "bruck"),
    Diagram("one-shot", "all_reduce", "direct_one_shot"),
    Diagram("two-shot", "all_reduce", "direct_two_shot"),
    Diagram("parameter-server", "all_reduce", "parameter_server"),
    Diagram("hierarchical", "all_reduce", "hierarchical", node=4),
    Diagram("torus", "all_reduce", "torus_2d", part=4),
    Diagram("swing", "all_reduce", "swing"),
    Diagram("nvls", "all_reduce", "nvls"),
    Diagram("nvls-tree", "all_reduce", "nvls_tree", node=4),
    Diagram("pat", "all_gather", "pat"),
    Diagram("pairwise", "all_to_all", "pairwise"),
    Diagram("bruck-all-to-all", "all_to_all", "bruck"),
    Diagram("rails", "all_to_all", "hierarchical", node=4),
    Diagram("binomial", "broadcast", "binomial"),
    Diagram("chain", "broadcast", "chain", chunks=4),
    Diagram("scatter-all-gather", "broadcast", "scatter_all_gather"),
)

_REDUCE = ("all-reduce-8-h100", "all-reduce-64-nodes")
FAMILIES = {
    "ring": Family(("ring",), (*_REDUCE, "all-reduce-512-gpus")),
    "trees": Family(("tree", "reduce_broadcast", "knomial", "chain"), (*_REDUCE, "all-reduce-512-gpus")),
    "recursive": Family(("recursive_doubling", "rabenseifner"), _REDUCE),
    "bruck": Family(
        ("bruck",), ("all-gather-8-h100", "all-gather-64-nodes", "reduce-scatter-8-h100", "reduce-scatter-64-nodes")
    ),
    "direct": Family(("direct_one_shot", "direct_two_shot", "flat"), _REDUCE),
    "hierarchical": Family(("hierarchical", "hierarchical_3"), ("all-reduce-8-nodes", "all-reduce-512-gpus")),
    "torus": Family(("torus_2d", "torus_3d"), (*_REDUCE, "all-reduce-8-nodes")),
    "swing": Family(("swing", "swing_latency"), _REDUCE),
    "in-network": Family(
        ("ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "sharp", "parameter_server"),
        (
            "all-reduce-8-h100",
            "all-reduce-512-gpus",
            "all-reduce-512-gpus-sharp",
            "in-network-8-h100",
            "in-network-64-nodes",
        ),
    ),
    "pat": Family(("pat",), ("all-gather-64-nodes", "reduce-scatter-64-nodes")),
    "all-to-all": Family(
        ("pairwise", "direct", "ring", "bruck", "hierarchical"),
        ("all-to-all-8-h100", "all-to-all-64-nodes", "all-to-all-8-nodes"),
    ),
    "rooted": Family(
        ("chain", "binomial", "knomial", "double_binary_tree", "flat", "scatter_all_gather"),
        ("broadcast-8-h100", "broadcast-64-nodes"),
    ),
}


@cache
def crossover(name: str) -> tuple[Item, str]:
    """The rows of a scenario file with all candidates, and its title; several documents are put side by side."""
    results = [run(scenario) for scenario in load_scenarios(SCENARIOS / f"{name}.yaml")]
    items = [result.items[0] for result in results]
    if len(items) == 1:
        return items[0], results[0].name
    rows = [_side_by_side(same_size) for same_size in zip(*(item.rows for item in items), strict=True)]
    return replace(items[0], rows=rows), results[0].name.rpartition(",")[0]


def _side_by_side(rows: Sequence[Row]) -> Row:
    """The quickest of several rows of one size, with all of them as candidates."""
    ordered = sorted(rows, key=lambda row: row.time_s)
    candidates = tuple((row.algorithm, row.time_s) for row in ordered)
    return replace(ordered[0], runner_up=candidates[1][0], runner_up_s=candidates[1][1], candidates=candidates)


def behind(family: str) -> str:
    """A table: the time of every algorithm of a family over that of the quickest, at a few sizes."""
    sizes = [format_bytes(size) for size in COLUMNS]
    lines = [f"| machine | algorithm | {' | '.join(sizes)} |", "|---|---|" + "--:|" * len(sizes)]
    for machine in FAMILIES[family].machines:
        item, title = crossover(machine)
        rows = {row.size_bytes: row for row in item.rows}
        for algorithm in FAMILIES[family].algorithms:
            cells = [_times_slower(rows[size], algorithm) for size in COLUMNS]
            if "" not in cells:
                lines.append(f"| {title} | `{algorithm}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _times_slower(row: Row, algorithm: str) -> str:
    """Its time over that of the quickest, or the least it can be where it was not simulated; "" where it is not run."""
    known, least = dict(row.candidates), dict(row.left_out)
    if algorithm in known:
        return f"{known[algorithm] / row.time_s:.3g} x"
    return f"over {least[algorithm] / row.time_s:.3g} x" if algorithm in least else ""


def printed(name: str) -> str:
    """The winners as `commsim run` prints them."""
    return "\n".join(["```text", *(line.removeprefix("# ") for line in crossover_lines(crossover(name)[0])), "```"])


def with_figures(text: str) -> str:
    """A page with what stands between its markers anew."""
    kinds = {"behind": behind, "printed": printed}

    def block(found: re.Match[str]) -> str:
        kind, name = found.groups()
        return f"<!-- begin: {kind} {name} -->\n{kinds[kind](name)}\n<!-- end: {kind} {name} -->"

    return _BLOCK.sub(block, text)


def small_png(figure: Figure) -> bytes:
    """The figure as a PNG of at most 128 colours: a third of the bytes, and no difference to be seen."""
    from PIL import Image

    with Image.open(io.BytesIO(figure_bytes(figure, "png"))) as image:
        few = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    few.save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def pictures() -> list[str]:
    """The names of all pictures, without ending."""
    return [d.file for d in DIAGRAMS] + [f"{f}-{m}" for f, family in FAMILIES.items() for m in family.machines]


def main() -> int:
    """Write the pictures, then the figures on the pages."""
    for diagram in DIAGRAMS:
        write_atomically(PICTURES / f"{diagram.file}.png", small_png(diagram.figure()))
    for name, family in FAMILIES.items():
        for machine in family.machines:
            item, title = crossover(machine)
            figure = plot_crossover(item, title, always=family.algorithms)
            write_atomically(PICTURES / f"{name}-{machine}.png", small_png(figure))
    for page in sorted(PAGES.glob("*.md")):
        write_atomically(page, with_figures(page.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
