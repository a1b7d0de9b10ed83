"""Which GPU a name means: what drivers print in logs (``NVIDIA H100 80GB HBM3``), and a description's ``H100 SXM5``."""

from __future__ import annotations

import re

_CHIP = re.compile(
    r"\b(GB\d{2,3}|GH\d{3}|MI\d{3}[A-Z]?|[ABHVLT]\d{1,3}S?|RTX (?:PRO )?A?\d{4}D?(?: Ti)?)\b", re.IGNORECASE
)
_FORM = re.compile(r"(SXM\d?|PCI-?E|NVL)\b", re.IGNORECASE)
_BOTH_FORMS = {"V100", "A100", "A800", "H100", "H800", "H200"}
"""Chips that are sold as cards for PCIe too; the driver then names the card, as in NVIDIA H100 PCIe or H200 NVL."""

_SXM_UNNAMED = {"H200", "H800", "A800", "H20", "B200", "B300"}
"""Modules for SXM of which the driver prints the chip alone."""


def gpu_name(text: str) -> tuple[str, str] | None:
    """Chip and form of a GPU: ("H100", "SXM"); the form is blank where it is not named; None where no chip is.

    >>> gpu_name("NVIDIA H100 80GB HBM3"), gpu_name("Tesla V100-SXM2-16GB"), gpu_name("NVIDIA Graphics Device")
    (('H100', 'SXM'), ('V100', 'SXM2'), None)
    """
    match = _CHIP.search(text.replace("_", " "))
    if match is None:
        return None
    chip = " ".join(match[1].upper().split())
    form = _FORM.search(text)
    if form is not None:
        named = form[1].upper().replace("-", "")
        if not named.startswith("SXM"):
            return chip, "PCIe" if named == "PCIE" else named
        if chip == "V100":  # the board of DGX-2 has another
            return chip, named
        return chip, "SXM 64 GB" if chip == "A100" and re.search(r"\b64 ?GB", text) else "SXM"
    return chip, "SXM" if "HBM" in text.upper() or chip in _SXM_UNNAMED else ""


def is_gpu(logged: str, described: str) -> bool:
    """Whether a GPU that a log names may be that of a description; False where either cannot be read.

    >>> is_gpu("NVIDIA A100-SXM4-40GB", "A100 SXM4"), is_gpu("NVIDIA A100 80GB PCIe", "A100 SXM4")
    (True, False)
    """
    one, other = gpu_name(logged), gpu_name(described)
    if one is None or other is None:
        return False
    return one[0] == other[0] and (one[1] == other[1] or one[0] not in _BOTH_FORMS or not one[1])
