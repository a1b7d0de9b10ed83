"""Where the shipped data lies: inside the wheel as ``commsim/data``, or beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_root() -> Path:
    """The folder that holds ``topologies/``, ``scenarios/`` and ``validation/measured/``.

    A wheel carries them in ``commsim/data``; an editable install does not get that folder, so the checkout serves.
    """
    wheel = _PACKAGE / "data"
    return wheel if wheel.is_dir() else _PACKAGE.parent
