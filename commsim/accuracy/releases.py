"""The NCCL release that was current on a day: what a log without a version is taken to have run.

Dates: the packages nvidia-nccl-cu11 and nvidia-nccl-cu12 of the Python package index (from 2.16.2 on), the release
notes of docs.nvidia.com/deeplearning/nccl/archives and the tags of github.com/NVIDIA/nccl before.
"""

from __future__ import annotations

import re
from datetime import date, timedelta

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

_TORCH = {
    (2, 0): "2.14.3", (2, 1): "2.18.1", (2, 2): "2.19.3", (2, 3): "2.20.5", (2, 4): "2.20.5", (2, 5): "2.21.5",
    (2, 6): "2.21.5", (2, 7): "2.26.2", (2, 8): "2.27.3", (2, 9): "2.27.5", (2, 11): "2.28.9", (2, 13): "2.29.7",
}  # fmt: skip
"""NCCL that the wheels of PyTorch require (their metadata in the package index, which has none of 2.10 and 2.12)."""

_MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_NAMES = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS)
_DATES = (
    re.compile(r"(?<!\d)(?P<y>20\d\d)[-/_.](?P<m>\d\d)(?:[-/_.](?P<d>\d\d))?(?!\d)"),
    re.compile(r"(?<!\d)(?P<d>\d\d)\.(?P<m>\d\d)\.(?P<y>20\d\d)(?!\d)"),
    re.compile(r"(?<!\d)(?P<y>20\d\d)(?P<m>0[1-9]|1[0-2])(?P<d>[0-3]\d)(?!\d)"),
    re.compile(rf"\b(?P<name>{_NAMES})\.?,?[ -](?:(?P<d>\d\d?)(?:st|nd|rd|th)?,? )?(?P<y>20\d\d)\b", re.I),
    re.compile(rf"\b(?P<d>\d\d?)(?:st|nd|rd|th|\.)? (?P<name>{_NAMES})\.?,? (?P<y>20\d\d)\b", re.I),
    re.compile(r"\b(?P<y>20\d\d)\b(?!-\d\d-\d\d)"),
)
_VERSION = re.compile(r"(?<![\d.])2[._](\d{1,2})(?:[._](\d{1,2}))?(?![\d])")
_CODE = re.compile(r"(?<![\d.])2(\d\d)(\d\d)(?![\d.])")
_IN_NOTES = re.compile(r"\bNCCL (?:version )?v?2\.(\d{1,2})\.(\d{1,2})\b", re.I)
_OF_TORCH = re.compile(r"torch(?:(?!nccl)[^\d,;]){0,16}(\d)\.(\d{1,2})(?:\.\d+)?", re.I)
_CONTAINER = re.compile(
    r"(?:\bNGC\b[^\d,;]{0,12}|(?:pytorch|tensorflow|nemo):)(2\d)\.(0[1-9]|1[0-2])\b"
    r"|(?<![\d.])(2\d)\.(0[1-9]|1[0-2])-py3\b",
    re.I,
)


def log_date(text: str) -> date | None:
    """The first date that a text names; 1 July where only a year, the first of the month where no day is named.

    >>> log_date("2025-02 (repo HEAD 2025-02-07)")
    datetime.date(2025, 2, 1)
    """
    found = [match for match in (pattern.search(text) for pattern in _DATES) if match]
    for match in sorted(found, key=lambda match: match.start()):
        parts = match.groupdict()
        name = (parts.get("name") or "")[:3].title()
        named = (number for number, month in enumerate(_MONTHS, 1) if month[:3] == name)
        month = next(named, None) or int(parts.get("m") or 7)
        try:
            return date(int(parts["y"]), month, int(parts.get("d") or 1))
        except ValueError:
            continue
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


def stated_version(text: str) -> Version | None:
    """The NCCL release that a text names, or None: ``2.22.3+cuda12.6``, ``2.18 (directory)``, the code ``22203``."""
    text = _OF_TORCH.sub(" ", _CONTAINER.sub(" ", text))
    match = _VERSION.search(text) or _CODE.search(text)
    return parse_version(f"2.{int(match[1])}.{int(match[2] or 0)}") if match else None


def brought_version(text: str) -> tuple[Version, str] | None:
    """The NCCL of the PyTorch or of NVIDIA's container that a text names, and a note; None where it names neither.

    A container is taken to hold the release that was current at the end of its month.
    """
    if (match := _OF_TORCH.search(text)) and (torch := (int(match[1]), int(match[2]))) in _TORCH:
        return parse_version(_TORCH[torch]), f"version not stated: that of PyTorch {torch[0]}.{torch[1]}"
    if match := _CONTAINER.search(text):
        year, month = match[1] or match[3], match[2] or match[4]
        end = date(2000 + int(year), int(month), 28) + timedelta(days=3)
        return current_release(end), f"version not stated: that of the container {year}.{month}"
    return None


def version_of(text: str, day: str, notes: str = "") -> tuple[Version | None, str]:
    """The release of a log, and a note where it is not stated.

    Notes may state it as well ("NCCL 2.18.5"). Else it is that of the PyTorch or the container that version or notes
    name, else the one that was current on the log's date, if any.
    """
    version = stated_version(text)
    if version is None and (match := _IN_NOTES.search(notes)):
        version = parse_version(f"2.{int(match[1])}.{int(match[2])}")
    if version is not None:
        return version, ""
    brought = brought_version(text) or brought_version(notes)
    if brought is not None:
        return brought
    when = log_date(day)
    if when is None:
        return None, "neither version nor date stated"
    return current_release(when), f"version not stated: the release current on {when.isoformat()}"
