"""How the loops are compiled: without the interpreter's lock, and kept on disk.

numba keeps compiled code beside its source, else in the user's cache folder; NUMBA_CACHE_DIR names another one. It
compiles a function anew when the function's own file changes, not when a callee in another file does. So functions are
kept under names with a digest of all files that they can call or take constants from.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import caching, event
from numba.core.runtime import rtsys

_FOLDER = Path(__file__).parent
_SOURCES = sorted([*_FOLDER.glob("*.py"), _FOLDER.parent / "program.py"])

u = np.uintp
"""The type of an index that cannot be negative: it spares the test whether it counts from the end, a third of a run."""


def digest(sources: list[Path]) -> str:
    """Short name of the contents of files; those that do not exist, as in a zip file, count as empty."""
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources if p.exists())).hexdigest()[:12]


class Notice(event.Listener):  # type: ignore[misc]  # numba has no types
    """Logs the first compilation of a function of commsim; what numba's cache holds is not compiled."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._given = log, False

    def on_start(self, compilation: event.Event) -> None:
        """A function begins to be compiled."""
        if not self._given and compilation.data["dispatcher"].py_func.__module__.startswith("commsim."):
            self._given = True
            self._log.warning(
                "commsim: compiling the event loops that this run uses, once after an install: some seconds",
                extra={"once": True},
            )

    def on_end(self, compilation: event.Event) -> None:
        """It is compiled."""


@lru_cache
def _digest_beside(file: str) -> str:
    """The digest of what a function of a file can call or take constants from."""
    return digest(_SOURCES if Path(file) in _SOURCES else [*_SOURCES, Path(file)])


event.register("numba:compile", Notice(logging.getLogger("commsim")))  # a warning, so Python prints it on stderr


# Wrappers for callers that are not compiled would take half of the time of compiling.
_PART = {"forceinline": True, "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Callable[..., Any]) -> Any:
    """The function as numba compiles it at its first call: what Python calls."""
    return _jit(function, {})


def inlined(function: Callable[..., Any]) -> Any:
    """As `compiled`, and copied into each caller: a part of a loop. It makes no arrays.

    So it needs no counts of references, which numba would raise and lower for every column of its arguments: the
    loops would take twice as long.
    """
    return _jit(function, _PART)


class _Kept(caching.FunctionCache):  # type: ignore[misc]  # numba has no types
    """numba's cache, which loads all that a compilation may call (scipy too) before it looks for compiled code."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled function of a signature, None if there is none; compiled code calls nothing but the runtime."""
        rtsys.initialize(target_context)
        try:
            return self._load_overload(sig, target_context)
        except AttributeError:  # another release of numba
            return super().load_overload(sig, target_context)


def _jit(function: Callable[..., Any], options: dict[str, bool]) -> Any:
    function.__qualname__ = f"{function.__name__}_{_digest_beside(function.__code__.co_filename)}"
    made = numba.njit(nogil=True, **options)(function)
    with suppress(RuntimeError):  # numba: "no locator available", no folder can be written
        made._cache = _Kept(function)
    return made
