"""A measured log of a folder: its case and its curve; why it cannot be read where it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from commsim.errors import CommsimError, ScenarioError
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve
from commsim.nccl.operation import Operation
from study.case import Case
from study.cases import load_cases

Float64 = npt.NDArray[np.float64]

LEAST_ROWS = 4
"""A log with fewer sizes is not scored."""


@dataclass(frozen=True, eq=False)
class Log:
    """A measured curve: its `time_s` are scored, its `undisturbed_s` (`Curve.undisturbed_s`) fitted to."""

    case: Case
    nbytes: tuple[int, ...]
    time_s: Float64
    undisturbed_s: Float64

    @cached_property
    def size(self) -> npt.NDArray[np.int64]:
        """The sizes in bytes."""
        return np.array(self.nbytes, np.int64)

    def curve(self, rows: Sequence[int] | None = None) -> Curve:
        """What a fit sees of the log, or of some of its sizes."""
        some = np.arange(self.size.size) if rows is None else np.asarray(rows)
        case = self.case
        return Curve(
            case.slug,
            case.collective,
            case.n_ranks,
            "measured",
            self.size[some],
            self.undisturbed_s[some],
            dtype=str(case.operation),
        )


@dataclass(frozen=True, eq=False)
class Entry:
    """A case that is listed, with its log, or the reason why it has none that can be scored."""

    case: Case
    log: Log | None
    reason: str = ""


def read_entries(folders: Sequence[Path], case_files: Sequence[Path] = ()) -> list[Entry]:
    """The logs of some folders, and why those that cannot be read cannot."""
    return read_cases(load_cases(folders, case_files))


def read_cases(cases: Iterable[Case]) -> list[Entry]:
    """The logs of some cases, and why those that cannot be read cannot."""
    return [_read(case) for case in cases]


def read_logs(folders: Sequence[Path], only: Sequence[str] | None = None) -> list[Log]:
    """The logs of folders that can be read, of slugs that match one of the patterns where there are any."""
    return [entry.log for entry in read_cases(chosen(load_cases(folders), folders, only)) if entry.log is not None]


def chosen(cases: Iterable[Case], folders: Sequence[Path], only: Sequence[str] | None) -> list[Case]:
    """Those whose slugs match one of the patterns, all without patterns; ScenarioError where none does."""
    some = [case for case in cases if only is None or any(fnmatchcase(case.slug, pattern) for pattern in only)]
    if only is not None and not some:
        raise ScenarioError(f"no log of {', '.join(map(str, folders))} matches {', '.join(only)}")
    return some


def _read(case: Case) -> Entry:
    if case.fault:
        return Entry(case, None, case.fault)
    try:
        curve = next((c for c in read_measured(case.path, collective=case.collective, n_ranks=case.n_ranks)), None)
    except CommsimError as error:
        return Entry(case, None, str(error).splitlines()[0])
    if curve is None or len(curve) < LEAST_ROWS:
        return Entry(case, None, f"fewer than {LEAST_ROWS} sizes")
    of_curve = replace(case, operation=Operation.named(curve.dtype, curve.redop))
    sizes = tuple(int(n) for n in curve.size_bytes)
    return Entry(of_curve, Log(of_curve, sizes, curve.time_s, curve.undisturbed_s()))
