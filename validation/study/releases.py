"""The NCCL release that was current on a day: what a log without a version is taken to have run.

Dates: the packages nvidia-nccl-cu11 and nvidia-nccl-cu12 of the Python package index (from 2.16.2 on), the release
notes of docs.nvidia.com/deeplearning/nccl/archives and the tags of github.com/NVIDIA/nccl before.
"""

from __future__ import annotations

import re
from datetime import date

from commsim.nccl.version import Version, parse_version

_RELEASED = """
2.4.2 2019-01-29   2.4.7 2019-06-25   2.4.8 2019-08-01   2.5.6 2019-11-19   2.6.4 2020-03-20   2.7.3 2020-06-08
2.7.8 2020-07-27   2.8.3 2020-11-17   2.8.4 2021-02-09   2.9.6 2021-04-12   2.9.8 2021-05-10   2.9.9 2021-06-04
2.10.3 2021-07-08  2.11.4 2021-09-09  2.12.7 2022-03-02  2.12.10 2022-03-30 2.12.12 2022-05-13 2.13.4 2022-07-11
2.14.3 2022-08-18  2.15.1 2022-09-27  2.15.5 2022-10-25  2.16.2 2022-12-09  2.16.5 2023-02-02  2.17.1 2023-03-31
2.18.1 2023-05-04  2.18.3 2023-06-13  2.18.5 2023-09-05  2.19.3 2023-10-24  2.20.3 2024-02-13  2.20.5 2024-03-06
2.21.5 2024-04-03  2.22.3 2024-06-19  2.23.4 2024-09-11  2.24.3 2025-01-07  2.25.1 2025-01-24  2.26.2 2025-03-13
2.26.5 2025-05-02  2.27.3 2025-06-03  2.27.5 2025-06-26  2.27.6 2025-07-15  2.27.7 2025-08-04  2.28.3 2025-09-06
2.28.7 2025-10-21  2.28.9 2025-11-18  2.29.2 2026-01-07  2.29.3 2026-02-03  2.29.7 2026-03-03  2.30.3 2026-04-20
2.30.4 2026-04-23  2.30.7 2026-06-09
"""

RELEASES: tuple[tuple[date, Version], ...] = tuple(
    (date.fromisoformat(day), parse_version(version))
    for version, day in zip(_RELEASED.split()[::2], _RELEASED.split()[1::2], strict=True)
)
"""(day, release) in order of time."""

_DATE = re.compile(r"(20\d\d)(?:-(0[1-9]|1[0-2])(?:-(0[1-9]|[12]\d|3[01]))?)?(?!\d)")


def log_date(text: str) -> date | None:
    """The day that a text begins with; 1 July where only a year, the first of the month where no day is named.

    >>> log_date("2025-02 (repository of 2025-02-07)")
    datetime.date(2025, 2, 1)
    """
    match = _DATE.match(text)
    if match is None:
        return None
    try:
        return date(int(match[1]), int(match[2] or 7), int(match[3] or 1))
    except ValueError:
        return None


def current_release(day: date) -> Version:
    """The newest release of `RELEASES` on a day; the oldest where the day lies before all of them."""
    return max((version for released, version in RELEASES if released <= day), default=RELEASES[0][1])


def release_day(version: Version) -> date:
    """The day of a release, or of the one before it in `RELEASES`.

    >>> release_day((2, 21, 5)), release_day((2, 22, 0))
    (datetime.date(2024, 4, 3), datetime.date(2024, 4, 3))
    """
    return max((day for day, release in RELEASES if release <= version), default=RELEASES[0][0])
