"""Characters that the font of pictures lacks, such as those of Chinese names, and an installed font that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT = "DejaVu Sans"

_UNASSIGNED = "\u0378"
"""A font that has it is of last resort: it draws a box for every character."""


def lend_fonts(figure: Figure) -> str:
    """Gives texts of a figure a second font where `FONT` lacks characters; returns those that no installed font has."""
    from matplotlib import font_manager
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and not text.get_text().isascii()]
    shown = {c for text in texts for c in text.get_text() if not c.isspace()}
    lacking = shown - _characters(font_manager.findfont(FONT))
    if not lacking:
        return ""
    font, left = _best(lacking)
    for text in texts:
        text.set_fontfamily([FONT, font] if font else FONT)
    return "".join(sorted(left))


def _best(wanted: set[str]) -> tuple[str, set[str]]:
    """The installed font that has most of some characters, blank where none has one, and those that it lacks."""
    from matplotlib import font_manager

    best, left = "", wanted
    for entry in sorted(font_manager.fontManager.ttflist, key=lambda entry: entry.name):
        if entry.style != "normal" or not entry.name.replace(" ", "").isalnum():
            continue
        characters = _characters(entry.fname)
        without = wanted - characters
        if _UNASSIGNED not in characters and len(without) < len(left):
            best, left = entry.name, without
    return best, left


def _characters(file: str) -> set[str]:
    from matplotlib import font_manager

    return {chr(code) for code in font_manager.get_font(file).get_charmap()}
