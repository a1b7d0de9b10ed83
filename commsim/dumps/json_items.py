"""JSON documents with one long array, read item by item: a trace of 200 MiB never stands in memory whole."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from commsim.dumps.call import fault

MOST_CHARACTERS = 256 << 20
MOST_ITEM = 4 << 20
MOST_REST = 16 << 20
_PIECE = 1 << 20
_GAP = re.compile(r"[\s,]*")


class JsonItems:
    """The objects of the array under one key of the outermost object, then `rest`: the document without them.

    Without a key the document itself is the array. LogFormatError names the line of what is broken or too long.
    """

    def __init__(self, stream: TextIO, key: str, path: Path) -> None:
        self._stream, self._path = stream, path
        self._start = re.compile(rf'"{key}"\s*:\s*\[' if key else r"\s*\[")
        self._text, self._at, self._line, self._read = "", 0, 1, 0
        self._key = key
        self.rest: dict[str, Any] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        decode = json.JSONDecoder().raw_decode
        before = self._before()
        while True:
            self._gap()
            if self._text.startswith("]", self._at):
                break
            try:
                item, end = decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                long = len(self._text) - self._at > MOST_ITEM
                if isinstance(error, RecursionError) or long or not self._more():
                    raise self._fault(f"found no JSON value in {self._name}, or the file ends within it") from None
                continue
            self._at = end
            if isinstance(item, dict):
                yield item
            if self._at > _PIECE:
                self._forget()
        self._at += 1
        self._rest(before)

    @property
    def _name(self) -> str:
        return f"the list {self._key!r}" if self._key else "the list"

    def _before(self) -> str:
        """The text before the array's items."""
        while (opened := self._start.search(self._text)) is None:
            if len(self._text) > MOST_REST or not self._more():
                raise self._fault(f"found no {self._name} within the first {MOST_REST >> 20} MiB")
        self._at = opened.end()
        return self._text[: self._at]

    def _rest(self, before: str) -> None:
        if not self._key:
            return
        after = self._text[self._at :]
        while len(after) <= MOST_REST and (piece := self._piece()):
            after += piece
        try:
            rest = json.loads(before + "]" + after)
        except (ValueError, RecursionError):
            raise self._fault("found a document that is no JSON around its list") from None
        self.rest = rest if isinstance(rest, dict) else {}

    def _gap(self) -> None:
        begun = self._read
        while True:
            gap = _GAP.match(self._text, self._at)
            assert gap is not None
            self._at = gap.end()
            if self._at < len(self._text):
                return
            if self._read - begun > MOST_ITEM:
                raise self._fault(f"found more than {MOST_ITEM >> 20} MiB of nothing in {self._name}")
            if not self._more():
                raise self._fault(f"the file ends within {self._name}")

    def _more(self) -> bool:
        """Whether more could be read behind what is left."""
        self._forget()
        piece = self._piece()
        self._text += piece
        return bool(piece)

    def _piece(self) -> str:
        try:
            piece = self._stream.read(_PIECE)
        except (OSError, EOFError, zlib.error) as error:
            raise self._fault(f"cannot be read on: {error}") from None
        self._read += len(piece)
        if self._read > MOST_CHARACTERS:
            raise self._fault(f"found more than {MOST_CHARACTERS >> 20} MiB; record fewer steps, or cut the file")
        return piece

    def _forget(self) -> None:
        if self._at:
            self._line += self._text.count("\n", 0, self._at)
            self._text, self._at = self._text[self._at :], 0

    def _fault(self, message: str) -> Exception:
        return fault(self._path, message, self._line + self._text.count("\n", 0, self._at))
