"""The compiled loops as the Python functions that they are."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from commsim.engine import loops

# All before any is changed: a module imported later would keep the Python functions of the others.
_MODULES = [
    importlib.import_module(f"{loops.__name__}.{source.name}") for source in pkgutil.iter_modules(loops.__path__)
]


def interpret(patch: pytest.MonkeyPatch) -> None:
    """Put the Python function in place of every compiled one, wherever a loop knows it by name."""
    for module in _MODULES:
        for name, value in list(vars(module).items()):
            # With NUMBA_DISABLE_JIT=1 there is nothing but the Python function.
            if hasattr(value, "py_func"):
                patch.setattr(module, name, value.py_func)
