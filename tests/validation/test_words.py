"""Accuracy pages say what their words mean before their first table, and what they say is what the reports write."""

from __future__ import annotations

from pathlib import Path

import pytest

from study.words import WORDS, words_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", sorted(DOCS.glob("accuracy*.md")), ids=lambda page: page.stem)
def test_a_page_defines_its_words_above_its_first_table(page: Path) -> None:
    head = page.read_text(encoding="utf-8").split("\n|")[0]
    assert words_of(page.stem) in head


@pytest.mark.parametrize("page", sorted(WORDS))
def test_a_word_that_is_defined_is_on_the_page(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8").replace(words_of(page), "").lower()
    defined = {part.rstrip("s") for part in words_of(page).replace("**Words.**", "").lower().split("*")[1::2]}
    assert not {word for word in defined if word not in text}
