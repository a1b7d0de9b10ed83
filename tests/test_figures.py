"""The pages on algorithms: every picture is there and shown, every scenario loads, figures are the program's."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from commsim.scenario.load import load_scenarios

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "background" / "algorithms").glob("*.md"))
SCENARIOS = sorted((ROOT / "scenarios" / "crossover").glob("*.yaml"))


def _figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["figures"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


FIGURES = _figures()


def test_every_picture_is_there_and_on_a_page() -> None:
    shown = {name for page in PAGES for name in re.findall(r"images/algorithms/([\w-]+)\.png", page.read_text())}
    assert shown == set(FIGURES.pictures())
    assert {path.stem for path in FIGURES.PICTURES.glob("*.png")} == shown


def test_every_block_between_markers_is_one_that_is_written() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("<!-- begin:") == len(FIGURES._BLOCK.findall(text)), page.name


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_every_crossover_scenario_loads_and_is_on_a_page(path: Path) -> None:
    assert load_scenarios(path)
    assert any(path.stem in family.machines for family in FIGURES.FAMILIES.values())


def test_a_picture_drawn_twice_is_the_same_file() -> None:
    diagram = next(d for d in FIGURES.DIAGRAMS if d.file == "recursive-doubling")
    assert FIGURES.small_png(diagram.figure()) == FIGURES.small_png(diagram.figure())


def test_a_torus_drawn_in_part_has_a_quarter_of_the_moves() -> None:
    from commsim.collectives.registry import build

    whole = build("all_reduce", "torus_2d", 8, 1 << 20)
    part = FIGURES._every(whole, 4)
    assert 4 * part.rows == whole.rows
    assert 4 * int(part.chunk_bytes.sum()) == 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("name", [path.stem for path in SCENARIOS if path.stem.endswith("8-h100")])
def test_the_pages_say_what_the_program_prints(name: str) -> None:
    printed = FIGURES.printed(name)
    assert any(f"<!-- begin: printed {name} -->\n{printed}\n" in page.read_text(encoding="utf-8") for page in PAGES)
