"""How the ranks of a rehearsal hand data to each other: one file per rank and step, in a folder of all.

Paths are text here: a run looks for some hundred thousand files.
"""

# ruff: noqa: PTH104, PTH108, PTH110, PTH123

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np


class Exchange:
    """The steps of one communicator; a rank posts, sees when all have posted, and reads what it needs."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self.folder, self.rank, self.size = folder, rank, size
        self.step = 0
        self._open: dict[int, tuple[int, int]] = {}  # by rank, of this step: the descriptor and where its data begin
        self._awaited = 0  # the first rank that has not been seen at this step
        self._at = str(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def post(self, said: dict[str, Any], data: Any = b"") -> None:
        """Gives the others words and bytes for the next step; the step before last is read by none any more."""
        self.step += 1
        self._awaited = 0
        for descriptor, _ in self._open.values():
            os.close(descriptor)
        self._open.clear()
        words = json.dumps(said).encode()
        path = self._path(self.rank)
        with open(f"{path}.part", "wb") as stream:
            stream.write(len(words).to_bytes(8, "little") + words)
            stream.write(data)
        os.rename(f"{path}.part", path)
        with suppress(FileNotFoundError):
            os.unlink(f"{self._at}/{self.step - 2}.{self.rank}")

    def all_posted(self) -> bool:
        """Whether every rank has come to this step."""
        while self._awaited < self.size and os.path.exists(self._path(self._awaited)):
            self._awaited += 1
        return self._awaited == self.size

    def words(self, rank: int) -> dict[str, Any]:
        """What a rank said at this step."""
        descriptor, begin = self._posted(rank)
        return dict(json.loads(os.pread(descriptor, begin - 8, 8)))

    def data(self, rank: int, first: int, length: int) -> Any:
        """Some bytes of what a rank gave at this step, as an array that may be written to."""
        descriptor, begin = self._posted(rank)
        values: Any = np.empty(length, np.uint8)
        at = 0
        while at < length:
            at += os.preadv(descriptor, [values[at:]], begin + first + at)
        return values

    def _posted(self, rank: int) -> tuple[int, int]:
        if rank not in self._open:
            descriptor = os.open(self._path(rank), os.O_RDONLY)
            self._open[rank] = descriptor, 8 + int.from_bytes(os.pread(descriptor, 8, 0), "little")
        return self._open[rank]

    def _path(self, rank: int) -> str:
        return f"{self._at}/{self.step}.{rank}"
