"""Makes the gallery: `python docs/gallery.py [NAME ...]` (or `make gallery`) runs its commands and writes its page.

Each entry is a picture with the commands that made it. Pictures go to docs/images/gallery/ as PNG files of few colours,
the page is docs/gallery.md; `tests/test_gallery.py` fails where they are not what this file says.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from commsim.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "images" / "gallery"
_WIDEST = 1100  # pixels


@dataclass(frozen=True)
class Entry:
    """A picture: its name, what it answers, the commands, and the file that the last of them writes."""

    name: str
    answers: str
    commands: tuple[str, ...]
    file: str


_STEP = "commsim run training/gpt3-175b-1024-a100 --out out/step"
_REQUESTS = "commsim run generation/llama-3-70b-8-h100 --out out/requests"
_TAIL = "commsim run generation/long-tail --out out/tail"
_RL = "commsim run rl/grpo-llama-3.1-8b-16-h100 --out out/rl"
_CURVE = "validation/measured/h100x8_together_all_reduce_ring.csv"
_LATE = " ".join(f"tests/data/dumps/gloo-late/trace_rank{rank}.json.gz" for rank in range(4))
_MISSING = " ".join(f"tests/data/dumps/gloo-missing/flight_rank_{rank}.json" for rank in range(4))

SHELVES: dict[str, tuple[Entry, ...]] = {
    "Collectives": (
        Entry(
            "bandwidth",
            "How quick is a collective at every size? The band holds eight of ten published measurements of the kind, "
            "the dashed line is what no algorithm beats, and marks stand where NCCL changes algorithm or protocol.",
            ("commsim run allreduce-64-nodes --plot --out out/bandwidth",),
            "out/bandwidth/bandwidth.png",
        ),
        Entry(
            "accuracy",
            "How far off is the prediction? Measured points beside the curve, the error of every size below.",
            (f"commsim compare allreduce-8-h100 {_CURVE} --out out/accuracy",),
            "out/accuracy/comparison.png",
        ),
        Entry(
            "crossover",
            "Which algorithm is quickest at which size, and how far behind are the others?",
            ("commsim run crossover/all-reduce-8-nodes --out out/crossover",),
            "out/crossover/crossover.png",
        ),
        Entry(
            "map",
            "What does NCCL choose, by size and number of ranks? A colour for each algorithm, paler for LL and LL128.",
            ("commsim plot allreduce-2-nodes-a100 --kind crossover --nodes 1,2,4,8,16,32 --out out/map.png",),
            "out/map.png",
        ),
        Entry(
            "nodes",
            "How long does a collective take on more and more nodes? A line for each size, its bus bandwidth below.",
            (
                "commsim sweep all_reduce --on hgx-h100-ndr400 -b 64K -e 1G -f 4 topology.nodes='1..64 x2' -o out/n",
                "commsim plot out/n --kind nodes --out out/nodes.png",
            ),
            "out/nodes.png",
        ),
        Entry(
            "kernels",
            "From which size is NCCL quicker than the kernels of a serving framework?",
            ("commsim tune custom-all-reduce --kernels --plot out/kernels.png --out out/kernels.json",),
            "out/kernels.png",
        ),
    ),
    "Machines": (
        Entry(
            "machine",
            "What does a machine look like, and what does each link carry?",
            ("commsim topo draw hgx-h100-ndr400 --nodes 64 --out out/machine.png",),
            "out/machine.png",
        ),
        Entry(
            "links",
            "Which links are busy, which is the busiest, and where is the machine slower than it should be?",
            (
                "commsim run faults/slow-node library.name=none 'workload.0.sizes=[64 MiB]' --out out/links",
                "commsim plot out/links --kind links --out out/links.png",
            ),
            "out/links.png",
        ),
        Entry(
            "bound",
            "Which links can no schedule get round?",
            (
                "commsim run allreduce-2-nodes-a100 --out out/bound",
                "commsim plot out/bound --kind bound --item 1 --out out/bound.png",
            ),
            "out/bound.png",
        ),
    ),
    "Schedules": (
        Entry(
            "schedule",
            "Who sends which chunk in which step?",
            ("commsim schedule draw ring --collective all_reduce --ranks 4 --out out/schedule.png",),
            "out/schedule.png",
        ),
        Entry(
            "trees",
            "Along which trees does a schedule at the limit of the links go?",
            ("commsim synthesize dgx-1v -c all_gather --bytes 1GiB --draw out/load.png",),
            "out/load-trees.png",
        ),
        Entry(
            "load",
            "How full are the links of such a schedule?",
            ("commsim synthesize dgx-1v -c all_gather --bytes 1GiB --draw out/load.png",),
            "out/load.png",
        ),
    ),
    "Training": (
        Entry(
            "breakdown",
            "Where does the time of a step go?",
            (_STEP, "commsim plot out/step --kind breakdown --out out/breakdown.png"),
            "out/breakdown.png",
        ),
        Entry(
            "pipeline",
            "What does every stage do over the step? Below its passes, gradients and sends.",
            (_STEP, "commsim plot out/step --kind pipeline --out out/pipeline.png"),
            "out/pipeline.png",
        ),
        Entry(
            "memory",
            "What fills the memory of every stage?",
            (_STEP, "commsim plot out/step --kind memory --out out/memory.png"),
            "out/memory.png",
        ),
        Entry(
            "scaling",
            "How does a step scale with the machine?",
            (
                "commsim sweep sweep/step-scaling --out out/scaling",
                "commsim plot out/scaling -k scaling -o out/scaling.png",
            ),
            "out/scaling.png",
        ),
        Entry(
            "knees",
            "From where on does more bring nothing?",
            (
                "commsim sweep sweep/how-much-fabric --out out/knees",
                "commsim plot out/knees --kind knees --path topology.nic_bandwidth --out out/knees.png",
            ),
            "out/knees.png",
        ),
        Entry(
            "pareto",
            "Which configurations are worth a choice? Those that no other beats in time, memory, GPUs "
            "and money are named.",
            (
                "commsim plan plan/gpt3-175b-1024-a100 plan.best=40 --out out/plan",
                "commsim plot out/plan --kind pareto --out out/pareto.png",
            ),
            "out/pareto.png",
        ),
    ),
    "Requests": (
        Entry(
            "requests",
            "What does a user get against what a GPU gives, and what do users wait for?",
            (_REQUESTS, "commsim plot out/requests --kind load --item 1 --out out/requests.png"),
            "out/requests.png",
        ),
        Entry(
            "waits",
            "Which share of requests waits how long?",
            (_REQUESTS, "commsim plot out/requests --kind waits --item 1 --out out/waits.png"),
            "out/waits.png",
        ),
        Entry(
            "token",
            "Where does the time of engines go?",
            (_REQUESTS, "commsim plot out/requests --kind token --item 1 --out out/token.png"),
            "out/token.png",
        ),
        Entry(
            "queue",
            "What is under way over a run? Most answers of this rollout end early, a few keep the machine.",
            (_TAIL, "commsim plot out/tail --kind queue --out out/queue.png"),
            "out/queue.png",
        ),
        Entry(
            "front",
            "How should a model be served? Each cut over its loads, and the best of all.",
            ("commsim plan serve/llama-3-70b --out out/serve",),
            "out/serve/front.png",
        ),
    ),
    "Reinforcement learning": (
        Entry(
            "rl-step",
            "Who works when over a step?",
            (_RL, "commsim plot out/rl --kind rl-step --out out/rl-step.png"),
            "out/rl-step.png",
        ),
        Entry(
            "rollout",
            "How do the answers of a rollout end?",
            (_RL, "commsim plot out/rl --kind rollout --out out/rollout.png"),
            "out/rollout.png",
        ),
    ),
    "What was measured": (
        Entry(
            "dump",
            "Who waited for whom in a job?",
            (f"commsim dump {_LATE} --out out/late",),
            "out/late/dump.png",
        ),
        Entry(
            "missing",
            "Which rank never came into a call that the others wait in?",
            (f"commsim dump {_MISSING} --out out/missing",),
            "out/missing/dump.png",
        ),
        Entry(
            "suspects",
            "Which host, and which part of it, is slow? How probable it is, from tests of pairs of hosts.",
            ("commsim doctor tests/data/doctor/pairs.csv --out out/doctor",),
            "out/doctor/suspects.png",
        ),
        Entry(
            "steps",
            "How far off are predictions of published training steps? Those inside the band are within 10 %.",
            (
                "commsim validate training --engine closed_form --json out/steps.json",
                "commsim plot out/steps.json --kind accuracy --out out/steps.png",
            ),
            "out/steps.png",
        ),
    ),
}
"""Entries by shelf, as they stand on the page."""


def entries() -> list[Entry]:
    """All of them, in the order of the page."""
    return [entry for shelf in SHELVES.values() for entry in shelf]


def page() -> str:
    """The text of docs/gallery.md."""
    lines = [
        "# Gallery",
        "",
        "*What pictures are there, and how do I get one?* Each stands below the commands that made it. `commsim plot "
        "RESULT` says which of them a result can show ([Draw a result](guides/plot.md)); `--html` puts those "
        "of curves, bars and time into a page where they zoom, say their values and hide what you do not want to see.",
        "",
        "The same thing has the same colour in every picture: predicted blue and measured orange, an algorithm, a "
        "collective, forward, backward and each kind of communication. Values in an order go from dark to light.",
    ]
    for shelf, shown in SHELVES.items():
        lines += ["", f"## {shelf}"]
        for entry in shown:
            lines += ["", f"### {entry.name.capitalize().replace('Rl', 'RL')}", "", entry.answers, "", "```sh"]
            lines += [*entry.commands, "```", "", f"![{entry.answers.split('?')[0]}](images/gallery/{entry.name}.png)"]
    return "\n".join(lines) + "\n"


def _ran(commands: list[str], folder: Path) -> None:
    """Runs each command once, in a folder in which the checkout's files seem to lie."""
    from typer.testing import CliRunner

    from commsim.cli import app

    for name in ("tests", "validation", "scenarios", "topologies"):
        (folder / name).symlink_to(ROOT / name)
    before = Path.cwd()
    os.chdir(folder)
    (folder / "out").mkdir()
    try:
        for command in dict.fromkeys(commands):
            result = CliRunner().invoke(app, shlex.split(command)[1:], catch_exceptions=False)
            if result.exit_code > 1:
                raise SystemExit(f"{command}: {result.output}")
    finally:
        os.chdir(before)


def few_colours(picture: bytes) -> bytes:
    """A PNG of at most 256 colours and `_WIDEST` pixels: a third of the bytes, and no difference to be seen."""
    from PIL import Image

    with Image.open(io.BytesIO(picture)) as image:
        plain = image.convert("RGB")
        if plain.width > _WIDEST:
            plain = plain.resize((_WIDEST, round(plain.height * _WIDEST / plain.width)), Image.Resampling.LANCZOS)
        few = plain.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    few.save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def main(names: list[str]) -> int:
    """Write the pictures (those named, or all), then the page."""
    wanted = [entry for entry in entries() if not names or entry.name in names]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        _ran([command for entry in wanted for command in entry.commands], folder)
        PICTURES.mkdir(parents=True, exist_ok=True)
        for entry in wanted:
            write_atomically(PICTURES / f"{entry.name}.png", few_colours((folder / entry.file).read_bytes()))
    write_atomically(PAGE, page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
