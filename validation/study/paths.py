"""Where the study keeps its data and writes its pages: all of it lies in the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VALIDATION = ROOT / "validation"
DOCS = ROOT / "docs"
