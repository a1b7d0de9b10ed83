"""Pictures that commands write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commsim.cli.say import aside
from commsim.errors import CommsimError
from commsim.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def form_of(file: Path) -> str:
    """``png`` or ``svg``, by the ending; a CommsimError for another one."""
    form = file.suffix.lower().lstrip(".")
    if form not in {"png", "svg"}:
        raise CommsimError(f"{file}: found the ending {file.suffix!r}, expected .png or .svg")
    return form


def write_picture(file: Path, figure: Figure) -> Path:
    """Write a figure in the form that the ending says."""
    from commsim.report.plots import figure_bytes

    return write_atomically(file, figure_bytes(figure, form_of(file)))


def write_both(stem: Path, figure: Figure) -> list[Path]:
    """Write a figure as ``stem``.png and .svg."""
    from commsim.report.fonts import lend_fonts

    if lacking := lend_fonts(figure):
        aside(f"# pictures have boxes for {lacking}: no installed font has such characters")
    return [write_picture(stem.with_name(f"{stem.name}.{form}"), figure) for form in ("png", "svg")]
