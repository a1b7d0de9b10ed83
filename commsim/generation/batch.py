"""What one step of an engine works at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """One step over the whole replica: sequences that decode a token each, and a chunk of prompts beside them.

    ``cached``: mean tokens in the cache of each decoding sequence. ``prompt_cached``: mean tokens of those prompts that
    earlier chunks had done.
    """

    sequences: int
    cached: float
    prompt_tokens: int = 0
    prompt_sequences: int = 0
    prompt_cached: float = 0.0
