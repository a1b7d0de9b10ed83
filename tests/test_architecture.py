"""The architecture page is true: its picture is that of the import contract, its links lead to names that exist."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import architecture
import hooks
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [p for p in sorted((ROOT / "docs").rglob("*.md")) if hooks.CODE.search(p.read_text(encoding="utf-8"))]


def test_the_picture_is_current() -> None:
    """If this fails: make architecture."""
    assert architecture.PICTURE.read_text(encoding="utf-8") == architecture.drawn()


def test_every_part_of_the_package_is_in_the_picture() -> None:
    parts = {p.stem for p in (ROOT / "commsim").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert {*architecture.boxes()} == parts - {"__init__"}


def test_an_arrow_that_the_code_does_not_bear_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "FLOWS", (("Topology", "collectives", "document", 20.0),))
    with pytest.raises(SystemExit, match=r"defines no Topology\n.*document does not import it\n.*misses"):
        architecture.drawn()


def names_of(path: Path) -> set[str]:
    """What a module defines at its top level."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        names |= {getattr(target, "id", getattr(target, "name", "")) for target in targets}
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_into_the_code_lead_to_what_they_name(page: Path) -> None:
    for _, path, name in hooks.CODE.findall(page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), path
        assert name in names_of(ROOT / path), f"{path} has no {name}"


def test_the_site_has_words_in_place_of_links_into_the_code() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="design.md"), meta={})
    made = hooks.on_page_markdown('A [graph](../commsim/topology/graph.py "Topology") here.', page)
    assert made == 'A <abbr title="commsim/topology/graph.py: Topology">graph</abbr> here.'
