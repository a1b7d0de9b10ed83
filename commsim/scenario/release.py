"""The `version` of a scenario's library: whose release it is, and what it may look like."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from commsim.document.types import show
from commsim.nccl.version import ASSUMED, format_version

if TYPE_CHECKING:
    from commsim.kernels.choice import Framework

_RELEASE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){1,2}", re.ASCII)


def version_of(value: Any, library: str | None, framework: Framework | None) -> str:
    """The three numbers of a framework's release, whose last may be left out: it is 0.

    ValueError for what is none, and with NCCL, whose version has three numbers.
    """
    if library != "custom_all_reduce":
        what = f"{show(value)},"
        if isinstance(value, float) and len(repr(value).rpartition(".")[2]) == 1:  # 2.30 is read as 2.3
            what = f"the number {value!r}, which {value!r}0 would be, too;"
        raise ValueError(f"found {what} expected an NCCL version of three numbers, such as {format_version(ASSUMED)}")
    text = repr(value) if isinstance(value, float) else value
    whole = isinstance(text, str) and _RELEASE.fullmatch(text)
    if not whole:
        of = framework or "the framework"
        raise ValueError(
            f"found {show(value)}, expected a release of {of} of two or three numbers{_example(framework)}"
        )
    if isinstance(value, float) and framework is not None and not _one_reading(text, framework):
        raise ValueError(
            f"found the number {text}, which {text}0 would be, too: expected a release of {framework} of three "
            f"numbers, such as {text}.0 or {text}0.0"
        )
    return text if text.count(".") == 2 else f"{text}.0"


def _known(framework: Framework) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    from commsim.kernels.choice import RULE_RELEASES

    return RULE_RELEASES[framework]


def _example(framework: Framework | None) -> str:
    return "" if framework is None else f", such as {'.'.join(map(str, _known(framework)[1]))}"


def _one_reading(text: str, framework: Framework) -> bool:
    """Whether a number without its last zeros is one release: by two digits, or by those that are known."""
    major, minor = text.split(".")
    first, last = _known(framework)
    return len(minor) > 1 or first[:2] <= (int(major), int(minor)) <= last[:2]
