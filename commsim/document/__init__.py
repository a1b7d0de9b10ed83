"""YAML files as data with places: read safely, override, validate; every fault at once, at its line."""

from __future__ import annotations

from commsim.document.overrides import apply_overrides, with_values
from commsim.document.reading import compose_documents, parse_documents, read_documents, read_text
from commsim.document.types import Document, KeyPath, raise_faults
from commsim.document.validation import failing, located, refuse, try_validate, validate

__all__ = [
    "Document",
    "KeyPath",
    "apply_overrides",
    "compose_documents",
    "failing",
    "located",
    "parse_documents",
    "raise_faults",
    "read_documents",
    "read_text",
    "refuse",
    "try_validate",
    "validate",
    "with_values",
]
