"""A device has no end: every command that takes a file refuses one, in bounded memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

_MOST = 4 << 30
"""Bytes of address space: far less than what reading on would take."""

LOG = Path(__file__).parent.parent / "data" / "logs" / "all_reduce_one_process.log"


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", str(LOG), "--on", "/dev/zero"),
        ("plot", "/dev/zero"),
        ("run", "/dev/zero"),
        ("doctor", "/dev/zero"),
        ("schedule", "show", "/dev/zero"),
        ("synthesize", "/dev/zero"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_device_is_refused(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "commsim", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_MOST, _MOST)),
    )
    assert done.returncode == 2, done.stderr
    assert "/dev/zero" in done.stderr
    assert "memory" not in done.stderr
    assert "Traceback" not in done.stderr
