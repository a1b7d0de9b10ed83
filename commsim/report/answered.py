"""What all answers of ``import commsim`` share: they print as sentences, and a notebook shows table and picture."""

from __future__ import annotations

from collections.abc import Container
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from commsim.errors import CommsimError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from commsim.report.page import Page
    from commsim.report.saved import Saved

MOST_SHOWN = 60  # rows of a table in a notebook


class Answered:
    """An answer: its sentences, its rows, its pictures."""

    first_picture: ClassVar[str] = ""
    """The kind of picture that is shown where none is named; empty for the first that there is."""

    @property
    def answer(self) -> tuple[str, ...]:
        """The answer in sentences."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """All rows as a data frame, units in the column names."""
        raise NotImplementedError

    def page(self) -> Page:
        """The page of `write_report`; CommsimError where there is none."""
        raise CommsimError(f"answer: found {type(self).__name__}, which has no page, expected the answer to a question")

    def saved(self) -> Saved:
        """For pictures."""
        raise NotImplementedError

    def plot(self, kind: str = "", item: int = 0, path: str = "") -> Figure:
        """A picture; CommsimError names the kinds that there are."""
        from commsim.report.kinds import kinds_of, pictures
        from commsim.report.view import PictureChoice

        saved = self.saved()
        wanted = kind or self.first_picture or next(iter(kinds_of(saved)), "")
        choice = PictureChoice(item + 1 if saved.sort == "run" else None, path or None)
        return pictures(saved, wanted, choice)[0][1]

    def __repr__(self) -> str:
        return "\n".join(self.answer) or f"{len(self.to_frame())} rows: to_frame() has them"

    def _shown_frame(self) -> pd.DataFrame:
        """The rows that a notebook shows."""
        return self.to_frame().dropna(axis=1, how="all")

    def _repr_html_(self) -> str:
        """The sentences, the picture where there is one, and the table."""
        frame = self._shown_frame()
        rows = frame.to_html(index=False, max_rows=MOST_SHOWN, float_format=lambda v: f"{v:.4g}") if len(frame) else ""
        return "".join(f"<p>{escape(line)}</p>" for line in self._head()) + self._picture() + str(rows)

    def _head(self) -> tuple[str, ...]:
        """The lines above picture and table."""
        return self.answer

    def _picture(self) -> str:
        from commsim.report.page import picture

        try:
            drawn = picture(self.plot(), "")
        except CommsimError:  # an answer in words alone
            return ""
        return f'<div style="max-width: {drawn.width_rem}rem; background: #fff">{drawn.svg}</div>'

    def _repr_mimebundle_(self, include: Container[str] | None = None, exclude: Container[str] = ()) -> dict[str, Any]:
        """The answer as plain text and as HTML, for a notebook to choose from."""
        forms = {"text/plain": self.__repr__, "text/html": self._repr_html_}
        return {
            name: form()
            for name, form in forms.items()
            if (include is None or name in include) and name not in (exclude or ())
        }


class OnePicture(Answered):
    """An answer with a single picture, of a kind of its own."""

    def draw(self) -> Figure:
        """The picture."""
        raise NotImplementedError

    def plot(self, kind: str = "", item: int = 0, path: str = "") -> Figure:
        """The picture; CommsimError where another one is asked for."""
        if kind or item or path:
            raise CommsimError(f"found {kind or path or item!r}, expected nothing: this answer has one picture")
        return self.draw()
