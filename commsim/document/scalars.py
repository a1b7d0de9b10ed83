"""Plain YAML scalars, read only where every YAML reader agrees.

YAML 1.1 (PyYAML) reads ``no`` as false, ``1e6`` as text, ``12:30:45`` as 45045 and ``010`` as 8; YAML 1.2
does not. Such a value is refused with what to write instead: a file means the same to its writer and to us.
"""

from __future__ import annotations

import math
import re

from commsim.document.types import shorten

Scalar = str | int | float | bool | None

_NULL = {"", "~", "null"}
_BOOL = {"true": True, "false": False}
_BOOL_1_1 = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?", re.ASCII)
_EXPONENT = re.compile(r"([-+]?)([0-9]+)(?:\.([0-9]*))?[eE]([-+]?)([0-9]+)", re.ASCII)
_OCTAL = re.compile(r"[-+]?0[0-9]+", re.ASCII)
_RADIX = re.compile(r"[-+]?0(?:x[0-9a-fA-F_]+|o[0-7_]+|b[01_]+)", re.ASCII)
_UNDERSCORE = re.compile(r"[-+]?[0-9][0-9_]*_[0-9_]*(?:\.[0-9_]*)?", re.ASCII)
_BASE_60 = re.compile(r"[-+]?[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.?(?:inf|infinity)|\.?nan", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?", re.ASCII)
_MAX_DIGITS = 18  # whole numbers that fit an int64


class SurprisingScalarError(ValueError):
    """A plain scalar that YAML readers take for different things; the message says what to write."""


def exponent(text: str) -> float | None:
    """The number of a text such as ``300e9``, which is clear where no YAML reader but ours reads it; else None."""
    value = float(text) if _EXPONENT.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


def plain_value(text: str) -> Scalar:
    """The value of an unquoted scalar; SurprisingScalarError where readers of YAML disagree."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if len(text) < 10 and text.lower() == "null":
        raise SurprisingScalarError(f"found {text}, expected null in lower case, or quotes around a text")
    if len(text) < 10 and text.lower() in _BOOL_1_1 and text in {text.lower(), text.upper(), text.capitalize()}:
        reading = _BOOL_1_1[text.lower()]
        if text.lower() == reading:
            raise SurprisingScalarError(f"found {text}, expected {reading} in lower case, or quotes around a text")
        raise SurprisingScalarError(
            f"found {text}, which some YAML readers take for {reading}; expected true or false, or quotes around a text"
        )
    if text[0] in "+-.0123456789nNiI":
        return _number(text)
    return text


def _number(text: str) -> Scalar:
    if _INT.fullmatch(text):
        if len(text.lstrip("+-")) > _MAX_DIGITS:
            raise SurprisingScalarError(f"found a number of {len(text)} digits, expected at most {_MAX_DIGITS}")
        return int(text)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if not math.isfinite(value):
            raise SurprisingScalarError(f"found {shorten(text)}, expected a finite number")
        return value
    for pattern, reason in (
        (_OCTAL, "which some YAML readers take for an octal number; expected no leading zero, or quotes"),
        (_RADIX, "expected a decimal number, or quotes around a text"),
        (_UNDERSCORE, "expected a number without underscores, or quotes around a text"),
        (_BASE_60, "which some YAML readers take for a base-60 number; expected a plain number, or quotes"),
        (_NOT_FINITE, "expected a finite number, or quotes around a text"),
        (_DATE, "which some YAML readers take for a date; expected quotes around it"),
    ):
        if pattern.fullmatch(text):
            raise SurprisingScalarError(f"found {shorten(text)}, {reason}")
    match = _EXPONENT.fullmatch(text)
    if match:
        sign, whole, fraction, direction, power = match.groups()
        written = f"{sign}{whole}.{fraction or 0}e{direction or '+'}{power}"
        raise SurprisingScalarError(
            f"found {shorten(text)}, which some YAML readers take for text; expected {shorten(written)}, "
            "or a quantity with its unit"
        )
    return text
