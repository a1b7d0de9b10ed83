"""The answer to `commsim explain` as a notebook takes it: sentences, the picture of the run, every change tried."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commsim.planner.explain import Explanation
from commsim.report.answered import Answered
from commsim.report.explain import result_page, text, to_dict
from commsim.report.ran import Ran
from commsim.report.run_files import compared

if TYPE_CHECKING:
    import pandas as pd

    from commsim.report.page import Page
    from commsim.report.saved import Saved


@dataclass(frozen=True, eq=False, repr=False)
class Explained(Answered):
    """What bounds a result, and what every single change gives; `command` asks it again on the command line."""

    result: Ran
    reasons: Sequence[Explanation]
    command: str

    @property
    def answer(self) -> tuple[str, ...]:
        """What `commsim explain` prints."""
        return tuple(text(self.result, self.reasons, self.command).splitlines())

    def to_frame(self) -> pd.DataFrame:
        """A row for every change of every size or step, best first: time and what it saves in microseconds.

        ``overrides`` are what `run` takes to repeat it.
        """
        import pandas as pd

        said = [to_dict(reason) for reason in self.reasons]
        rows = [{"title": one["title"], **change} for one in said for change in one["changes"]]
        return pd.DataFrame([row | {"overrides": tuple(shlex.split(row["overrides"]))} for row in rows])

    def saved(self) -> Saved:
        """For pictures: those of the result."""
        return self.result.saved()

    def page(self) -> Page:
        """The page that `commsim run --html` writes."""
        return result_page(self.result, compared(self.result).comparisons, self.reasons)
