"""The reference is what the code says: `make reference` writes it, and nothing in it lacks a meaning."""

from __future__ import annotations

import re
from typing import Any

import pytest
import reference_pages
from pydantic import Field, create_model

from commsim.cli.complete import NAMES
from commsim.explorer.state import KEYS

PAGES = reference_pages.pages()
SCRIPTS = reference_pages.ROOT / "commsim" / "explorer" / "static"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_is_current(page: Any) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page], "run `make reference`"


@pytest.mark.parametrize("name", reference_pages.commands())
def test_every_option_has_its_help_and_every_command_its_block(name: str) -> None:
    command = reference_pages.commands()[name]
    assert command.help
    assert [p.name for p in command.params if not p.help] == [], f"commsim {name}: give these a help text"
    page = PAGES[reference_pages.COMMANDS_PAGE]
    shown = page[page.index(f"<!-- begin: command {name} -->") : page.index(f"<!-- end: command {name} -->")]
    options = [
        o
        for p in command.params
        if p.param_type_name == "option" and p.expose_value
        for o in (*p.opts, *p.secondary_opts)
    ]
    assert [o for o in options if f"`{o}" not in shown] == []


@pytest.mark.parametrize("name", reference_pages.models())
def test_every_field_has_a_description(name: str) -> None:
    fields = reference_pages.models()[name].model_fields
    missing = [key for key, field in fields.items() if not field.description]
    assert missing == [], f"{name}: give these a Field(description=...)"


def test_every_block_of_a_file_is_on_a_page() -> None:
    """A field whose block has neither a table nor rows of its own would say ``block`` only."""
    for page, text in PAGES.items():
        assert not re.search(r"^\|[^|]*\| [^|]*\bblock\b", text, re.MULTILINE), page.name
    every = "".join(PAGES.values())
    for name, kind in reference_pages.models().items():
        for key in kind.model_fields:
            assert re.search(rf"^\| `(\w+\.)*{key}[`.]", every, re.MULTILINE), f"{name}.{key}"


def test_a_new_command_gets_a_place() -> None:
    page = PAGES[reference_pages.COMMANDS_PAGE]
    start = page.index("## `commsim merge`")
    without = page[:start] + page[page.index("## ", start + 3) :]
    again = reference_pages.with_blocks(reference_pages.with_places(without))
    assert again.endswith("<!-- end: command merge -->\n")
    assert "`commsim merge [OPTIONS] FOLDER`" in again


def test_a_changed_field_changes_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above could not fail if the tables did not follow the models."""
    made = create_model("Report", share=(float, Field(default=0.5, ge=0, le=1, description="how much")))
    monkeypatch.setitem(reference_pages.models(), "Report", made)
    assert reference_pages.fields_block("Report").splitlines()[-1] == (
        "| `share` | number from 0 to 1 | `0.5` | how much |"
    )


def test_the_names_that_shells_complete_are_those_of_the_code() -> None:
    assert NAMES.read_text(encoding="utf-8") == reference_pages.names(), "run `make reference`"


def test_the_page_of_the_explorer_asks_with_keys_that_it_knows() -> None:
    scripts = "".join(path.read_text(encoding="utf-8") for path in sorted(SCRIPTS.glob("*.js")))
    keys = set(re.findall(r'\{key: "(\w+)"|state\.get\("(\w+)"\)|state\.set\(\{(\w+):', scripts))
    asked = {key for groups in keys for key in groups if key}
    assert {"on", "collective", "model"} <= asked
    assert asked <= KEYS
