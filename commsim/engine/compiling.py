"""Says that the event loops are being compiled: after an install the first use of each takes seconds."""

from __future__ import annotations

import logging

from numba.core import event


class Notice(event.Listener):  # type: ignore[misc]  # numba has no types
    """Logs the first compilation of a function of commsim; what numba's cache holds is not compiled."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._given = log, False

    def on_start(self, compilation: event.Event) -> None:
        """A function begins to be compiled."""
        if not self._given and compilation.data["dispatcher"].py_func.__module__.startswith("commsim."):
            self._given = True
            self._log.warning(
                "commsim: compiling the event loops that this run uses, once after an install: some seconds"
            )

    def on_end(self, compilation: event.Event) -> None:
        """It is compiled."""


def announce() -> None:
    """From now on a compilation is logged as a warning, which Python prints on stderr unless told otherwise."""
    event.register("numba:compile", Notice(logging.getLogger("commsim")))
