"""Characters that the font of pictures lacks."""

from __future__ import annotations

import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure

from commsim.report.fonts import FONT, lend_fonts


def test_what_no_installed_font_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [entry for entry in font_manager.fontManager.ttflist if entry.name == FONT]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", usual)
    figure = Figure()
    text = figure.text(0.5, 0.5, "x2 \N{MULTIPLICATION SIGN} \u673a")
    assert lend_fonts(figure) == "\u673a"
    assert text.get_fontfamily() == [FONT]


def test_what_the_font_has_needs_no_other() -> None:
    figure = Figure()
    figure.text(0.5, 0.5, "x2 \N{MULTIPLICATION SIGN}")
    assert lend_fonts(figure) == ""
