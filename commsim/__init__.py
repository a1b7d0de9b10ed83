"""commsim: simulates and prices collective communication.

>>> import commsim as cs                                            # doctest: +SKIP
>>> cs.run("scenarios/allreduce-8-h100.yaml").to_frame()            # doctest: +SKIP
"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The names of `commsim.api`, imported when first used: ``import commsim`` itself stays quick."""
    if name.startswith("_"):
        raise AttributeError(name)
    from importlib import import_module

    api = import_module("commsim.api")
    if name not in api.__all__:
        raise AttributeError(f"module 'commsim' has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    """The functions and answers of `commsim.api`, for completion."""
    from importlib import import_module

    return sorted((*import_module("commsim.api").__all__, "__version__"))
