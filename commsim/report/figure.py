"""A figure that a notebook shows, also where pyplot, which teaches notebooks to, was never imported."""

from __future__ import annotations

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A matplotlib Figure with its picture."""

    def _repr_png_(self) -> bytes:
        from commsim.report.plots import figure_bytes

        return figure_bytes(self, "png")
