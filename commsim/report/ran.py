"""The answer to one scenario as a notebook takes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from commsim.report.answered import Answered
from commsim.report.view import Shown
from commsim.scenario.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from commsim.report.page import Page
    from commsim.report.saved import Saved


@dataclass(frozen=True, eq=False, repr=False)
class Ran(Answered, Result):
    """A `Result` with its sentences and pictures; it prints as its table."""

    @classmethod
    def of(cls, result: Result) -> Ran:
        """The same result."""
        return result if isinstance(result, cls) else cls(**vars(result))

    @property
    def answer(self) -> tuple[str, ...]:
        """What stands at the head of the page."""
        shown = Shown(self)
        return tuple(line for view, answers in shown.runs() for line in view.sentences(shown, answers))

    def to_frame(self) -> pd.DataFrame:
        """All rows as a data frame, units in the column names."""
        return Result.to_frame(self)

    def saved(self) -> Saved:
        """For pictures."""
        from commsim.report.read_saved import saved_of

        return saved_of(self)

    def page(self) -> Page:
        """The page that `commsim run --html` writes, without what-ifs."""
        from commsim.report.explain import result_page
        from commsim.report.run_files import compared

        return result_page(self, compared(self).comparisons)

    def __repr__(self) -> str:
        return Result.__repr__(self)

    def _head(self) -> tuple[str, ...]:
        return (self.name, *self.answer, *self.warnings)

    def _shown_frame(self) -> pd.DataFrame:
        return self.full_columns()
