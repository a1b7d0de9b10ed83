"""The link between two sockets by the processor's maker and model, as NCCL rates it."""

from __future__ import annotations

import re

BROADWELL = re.compile(r"broadwell|E[57]-\d+ ?v4|family 6 model (?:[1-7]?\d|8[0-4])\b", re.I)
"""Intel's before Skylake, by name or number."""

SKYLAKE = 0x55

_INTEL = ((0xCF, 40.0), (0x8F, 22.0), (SKYLAKE, 10.0), (0, 6.0))
"""From a model number of family 6 on: Emerald Rapids, Sapphire Rapids, Skylake, older (NCCL 2.26.2 src/graph/topo.h and
topo.cc, ncclTopoGetInterCpuBw)."""

_OTHERS = {"amd": 16.0, "ibm": 32.0, "arm": 6.0, "zhaoxin": 6.0}
"""The same of other makers (src/graph/topo.h)."""

_YONGFENG = (7, 0x5B), 9.0
"""Zhaoxin's newer processor."""

_WORDS = (
    (re.compile(r"emerald|8592|8558", re.I), 0xCF),
    (re.compile(r"sapphire|84", re.I), 0x8F),
    (BROADWELL, 0x4F),
)
"""Model numbers of family 6 by words of a model's name."""

_NUMBERS = re.compile(r"family (\d+) model (\d+)")


def model_text(family: int, model: int) -> str:
    """Family and model number as a description holds them."""
    return f"family {family} model {model}"


def socket_gb_per_s(vendor: str, model: str = "", *, newest: int = 0xFFFF) -> float:
    """GB/s between two sockets, of Intel's by the model's numbers or name: of Skylake where it says neither.

    `newest` is the last model number of Intel's that is told apart.
    """
    numbers = _NUMBERS.search(model)
    family, number = (int(numbers[1]), int(numbers[2])) if numbers else (6, _by_name(model))
    if vendor == "zhaoxin" and (family, number) == _YONGFENG[0]:
        return _YONGFENG[1]
    if vendor != "intel":
        return _OTHERS.get(vendor, 10.0)
    number = min(number, newest) if family == 6 else 0
    return next(rate for least, rate in _INTEL if number >= least)


def _by_name(model: str) -> int:
    return next((number for word, number in _WORDS if word.search(model)), SKYLAKE)
