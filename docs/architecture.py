"""Writes docs/images/architecture.svg, the parts and the data between them: `python docs/architecture.py`.

Rows and boxes are the layers of the import contract (pyproject.toml), their words the docstrings of the parts. An
arrow is a name that one part defines and another imports; a picture that the code does not bear out is refused.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from commsim.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "architecture.svg"

UNIT, ROW, BOX = 84, 88, 58  # pixels: a column, a row with the gap above it, a box
LETTER = 6.0  # pixels of a letter at 11 pixels

PLACES = {
    "__main__": (0.2, 2.9),
    "api": (9.0, 11.8),
    "integrations": (4.2, 7.9),
    "cli": (0.2, 11.8),
    "explorer": (6.2, 8.6),
    "lab": (9.1, 11.8),
    "report": (2.4, 8.9),
    "planner": (1.2, 4.2),
    "doctor": (4.4, 5.8),
    "accuracy": (7.0, 11.8),
    "scenario": (0.2, 10.9),
    "chakra": (3.2, 6.4),
    "fitting": (7.2, 9.15),
    "dumps": (9.7, 11.35),
    "rl": (3.0, 5.6),
    "generation": (3.0, 5.6),
    "measure": (8.8, 11.8),
    "kernels": (2.6, 5.2),
    "training": (2.9, 7.8),
    "synthesis": (8.0, 10.4),
    "nccl": (1.9, 6.1),
    "gloo": (6.9, 9.6),
    "engine": (3.0, 9.0),
    "bounds": (5.0, 7.2),
    "topology": (1.2, 6.4),
    "collectives": (7.4, 11.8),
    "document": (0.2, 4.4),
    "xml_tree": (5.0, 8.4),
}
"""First and last column of a box. Parts that are not listed share their row evenly."""

FLOWS = (
    ("Document", "document", "scenario", 0.5),
    ("Document", "document", "topology", 2.6),
    ("Element", "xml_tree", "topology", 5.7),
    ("Topology", "topology", "nccl", 2.3),
    ("Topology", "topology", "engine", 3.9),
    ("LinkKind", "topology", "bounds", 5.6),
    ("Schedule", "collectives", "engine", 8.2),
    ("Schedule", "collectives", "gloo", 9.3),
    ("Schedule", "collectives", "measure", 10.6),
    ("Program", "engine", "nccl", 4.8),
    ("Timeline", "engine", "training", 6.4),
    ("Program", "engine", "gloo", 8.0),
    ("Predictor", "nccl", "scenario", 2.3),
    ("Predictor", "nccl", "training", 4.4),
    ("GlooPredictor", "gloo", "training", 7.2),
    ("GroupCalls", "training", "chakra", 5.8),
    ("GroupCalls", "training", "scenario", 6.8),
    ("Accelerator", "training", "kernels", 3.6),
    ("KernelCall", "kernels", "scenario", 2.8),
    ("KernelCall", "kernels", "generation", 4.2),
    ("Replica", "generation", "rl", 4.2),
    ("RlStep", "rl", "scenario", 3.1),
    ("Curve", "measure", "fitting", 8.95),
    ("Curve", "measure", "scenario", 9.42),
    ("Calibration", "fitting", "scenario", 8.2),
    ("Curve", "measure", "accuracy", 11.6),
    ("DumpedJob", "dumps", "accuracy", 11.1),
    ("Scenario", "scenario", "cli", 0.5),
    ("Result", "scenario", "planner", 2.9),
    ("Result", "scenario", "report", 6.0),
    ("Prepared", "scenario", "accuracy", 9.4),
    ("Explanation", "planner", "cli", 1.6),
    ("PlanAnswer", "planner", "report", 3.8),
    ("Diagnosis", "doctor", "report", 5.0),
    ("Comparison", "accuracy", "report", 7.8),
    ("Verdict", "accuracy", "lab", 10.6),
    ("figure_bytes", "report", "cli", 5.0),
    ("Chart", "report", "explorer", 7.0),
    ("State", "explorer", "cli", 7.4),
    ("Session", "lab", "cli", 10.4),
    ("main", "cli", "__main__", 1.2),
)
"""(name, from, to, column): a part's data, and who takes it."""


@dataclass(frozen=True)
class Box:
    """A part of the package at its place, in pixels."""

    part: str
    left: float
    right: float
    top: float

    @property
    def bottom(self) -> float:
        """Pixels from the top of the picture."""
        return self.top + BOX


def layers() -> list[list[str]]:
    """The parts from the command line down to the errors, a row for each layer of the contract."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[part.strip() for part in row.split("|")] for row in rows]


def files_of(part: str) -> list[Path]:
    """The modules of a part."""
    folder = ROOT / "commsim" / part
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def purpose(part: str) -> str:
    """The first sentence of a part's docstring."""
    text = ast.get_docstring(ast.parse(files_of(part)[0].read_text(encoding="utf-8")))
    assert text, f"{part} has no docstring"
    return text.split("\n\n")[0].replace("\n", " ").replace("``", "").split(". ")[0].rstrip(".") + "."


def defines(part: str, name: str) -> bool:
    """Whether a part has a class, a function or an alias of that name."""
    for path in files_of(part):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if getattr(node, "name", None) == name or any(getattr(t, "id", None) == name for t in targets):
                return True
    return False


def imports(part: str, source: str, name: str) -> bool:
    """Whether a part imports the name from another part."""
    for path in files_of(part):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(f"commsim.{source}"):
                continue
            if any(alias.name == name for alias in node.names):
                return True
    return False


def boxes() -> dict[str, Box]:
    """Every part of the contract at its place."""
    placed = {}
    for number, row in enumerate(layers()):
        for i, part in enumerate(row):
            width = 11.6 / len(row)
            left, right = PLACES.get(part, (0.2 + i * width, 0.2 + (i + 1) * width - 0.15 * (len(row) > 1)))
            placed[part] = Box(part, left * UNIT, right * UNIT, 10 + number * ROW)
    return placed


def wrong(placed: dict[str, Box]) -> Iterable[str]:
    """What the code or the other boxes have against an arrow."""
    for name, source, target, column in FLOWS:
        x, flow = column * UNIT, f"{name} from {source} to {target}"
        if not defines(source, name):
            yield f"{flow}: {source} defines no {name}"
        if not imports(target, source, name):
            yield f"{flow}: {target} does not import it"
        below, above = placed[source], placed[target]
        for box in placed.values():
            ends = box in (below, above)
            between = above.top < box.top < below.top
            if (ends or between) and (box.left < x < box.right) != ends:
                yield f"{flow}: column {column} {'misses' if ends else 'crosses'} {box.part}"


def drawn() -> str:
    """The picture as SVG."""
    placed = boxes()
    if faults := list(wrong(placed)):
        raise SystemExit("\n".join(faults))
    width, height = 12 * UNIT, max(box.bottom for box in placed.values()) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" font-family="sans-serif"'
        ' font-size="11">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#35618f"/></marker></defs>',
        f'<rect width="{width}" height="{height:g}" fill="#ffffff"/>',
    ]
    for name, source, target, column in FLOWS:
        x, start, end = column * UNIT, placed[source].top, placed[target].bottom
        lines += [
            f'<path d="M{x:g} {start:g} V{end:g}" stroke="#35618f" stroke-width="1.3" marker-end="url(#tip)"/>',
            f'<text x="{x + 4:g}" y="{start - 9:g}" fill="#35618f">{escape(name)}</text>',
        ]
    for box in placed.values():
        lines += _drawn_box(box)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _drawn_box(box: Box) -> Iterable[str]:
    wide = box.right - box.left
    place = f'x="{box.left:g}" y="{box.top:g}" width="{wide:g}" height="{BOX}"'
    yield f'<rect {place} rx="5" fill="#eef3f8" stroke="#8aa4bf"/>'
    x = box.left + 8
    yield f'<text x="{x:g}" y="{box.top + 16:g}" font-size="13" font-weight="bold" fill="#16324f">{box.part}</text>'
    lines = textwrap.wrap(purpose(box.part), int((wide - 14) / LETTER), max_lines=3, placeholder=" ...")
    for i, line in enumerate(lines):
        yield f'<text x="{x:g}" y="{box.top + 30 + 12 * i:g}" fill="#333333">{escape(line)}</text>'


if __name__ == "__main__":
    write_atomically(PICTURE, drawn())
