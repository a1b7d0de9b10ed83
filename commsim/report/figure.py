"""A figure that a notebook shows, also where pyplot, which teaches notebooks to, was never imported."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

DOTS = 110  # per inch: the width of a notebook's column


class ShownFigure(Figure):
    """A matplotlib Figure with its picture."""

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=DOTS)
        return stream.getvalue()
