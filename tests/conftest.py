"""What all tests share: the path of the checkout, no display, the same random examples everywhere."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["browsing"]

os.environ["MPLBACKEND"] = "Agg"  # before anything imports matplotlib: a test machine has no display

os.environ.pop("COLUMNS", None)  # nor do tables depend on the terminal, or on what pytest-xdist says of it

# A shell starts background jobs with SIGINT ignored, and so would every program be that tests start and interrupt.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Test workers that share two cores make a single example slow now and then: no deadline per example.
# The examples are drawn from a fixed seed, so that a run on another machine meets the same ones.
settings.register_profile(
    "commsim", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("commsim")


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the checkout: the folder that holds ``commsim/``, ``scenarios/`` and ``docs/``."""
    return Path(__file__).resolve().parent.parent
