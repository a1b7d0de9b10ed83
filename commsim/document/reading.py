"""YAML text to Documents: safe (no tags, anchors, merges), bounded (size, depth, values), with places.

Built on PyYAML's event stream, not its constructors: the stream is a state machine, so ten thousand ``[``
cost a message and not a stack, and a duplicate key is seen before it is lost.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from commsim.document.scalars import SurprisingScalarError, plain_value
from commsim.document.types import (
    Document,
    FaultyError,
    KeyPath,
    Mark,
    printable,
    raise_faults,
    shorten,
    show_path,
)
from commsim.errors import Fault, ScenarioError

MAX_BYTES = 2**20
MAX_DEPTH = 32
MAX_VALUES = 100_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where PyYAML was built with it
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"


def read_documents(path: Path, *, error: FaultyError = ScenarioError) -> list[Document]:
    """The documents of a YAML file that are not empty, at least one; every fault of the file at once."""
    return parse_documents(read_text(path, error=error), str(path), error=error)


def parse_documents(text: str, file: str, *, error: FaultyError = ScenarioError) -> list[Document]:
    """Like `read_documents` for text at hand; ``file`` is the name shown in messages."""
    documents, faults = compose_documents(text, file)
    if faults:
        raise_faults(faults, error)
    return documents


def read_text(path: Path, *, error: FaultyError = ScenarioError, limit: int = MAX_BYTES) -> str:
    """The text of a UTF-8 file of at most `limit` bytes, 1 MiB; larger files are refused without being read."""

    def refuse(message: str, name: str = str(path)) -> NoReturn:
        raise_faults([Fault(name, 0, 0, "", message)], error)

    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            refuse("found a folder, expected a file")
        if not stat.S_ISREG(status.st_mode):
            refuse("found a device or pipe, expected a file")
        raw = b""
        if status.st_size <= limit:
            with path.open("rb") as stream:
                raw = stream.read(limit + 1)
        if max(status.st_size, len(raw)) > limit:
            size = f"found {max(status.st_size, len(raw)):,} bytes"
            refuse(f"{size}, expected a text file of at most {limit // 2**20} MiB")
    except FileNotFoundError:
        refuse(f"found no such file{_near_file(path)}")
    except (OSError, ValueError) as exc:  # ValueError: a NUL in the name
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        refuse(f"cannot be read: {reason}", printable(str(path)))
    return _decode(raw, str(path), error)


def _near_file(path: Path) -> str:
    """``, did you mean ...?`` from the files beside the one that is missing."""
    try:
        with os.scandir(path.parent) as entries:
            names = [e.name for _, e in zip(range(1000), entries, strict=False)]
    except OSError:
        return f"; the folder {str(path.parent)!r} does not exist either"
    close = difflib.get_close_matches(path.name, sorted(names), n=1)
    return f", did you mean {str(path.parent / close[0])!r}?" if close else ""


def _decode(raw: bytes, file: str, error: FaultyError) -> str:
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise_faults([Fault(file, 1, 1, "", "found UTF-16 text, expected UTF-8; save the file as UTF-8")], error)
    nul = raw.find(b"\0")
    if nul >= 0:
        message = f"found a NUL byte at offset {nul}: a binary file, expected YAML text"
        raise_faults([Fault(file, *_place(raw, nul), "", message)], error)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        message = f"found the byte 0x{raw[exc.start]:02x} at offset {exc.start}, expected UTF-8 text"
        raise_faults([Fault(file, *_place(raw, exc.start), "", message)], error)
    raise AssertionError  # utf-8-sig and utf-8 refuse the same bytes


def _place(raw: bytes, offset: int) -> Mark:
    start = raw.rfind(b"\n", 0, offset) + 1
    return raw.count(b"\n", 0, offset) + 1, len(raw[start:offset].decode("utf-8", "replace")) + 1


def compose_documents(text: str, file: str) -> tuple[list[Document], list[Fault]]:
    """The documents and every fault of the text; a value that was refused is None in ``data``.

    Callers that validate as well can so report both kinds of faults in one go. After a syntax fault the list
    of documents is empty.
    """
    if len(text) > MAX_BYTES:
        return [], [Fault(file, 0, 0, "", f"found {len(text):,} characters, expected at most 1 MiB")]
    bad = _FORBIDDEN.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        column = bad.start() - text.rfind("\n", 0, bad.start())
        return [], [
            Fault(file, line, column, "", f"found the control character U+{ord(bad[0]):04X}, expected YAML text")
        ]
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.feed(event)
            if builder.stopped:
                break
    except yaml.YAMLError as exc:
        builder.faults.append(_syntax_fault(exc, text, file))
        builder.stopped = True
    documents = [d for d in builder.documents if d.data is not None or d.key_marks]
    if not documents and not builder.faults:
        content = "only comments" if text.strip() else "an empty file"
        builder.faults.append(Fault(file, 1, 1, "", f"found {content}, expected a mapping such as 'name: ...'"))
    return ([] if builder.stopped else documents), builder.faults


@dataclass
class _Frame:
    """A mapping or list under construction; ``key`` is the key whose value comes next, None before a key."""

    container: dict[str, Any] | list[Any]
    path: KeyPath
    key: str | None = None
    dropped: bool = False  # the value that comes next belongs to a refused key
    is_key: bool = False  # the container itself stands where a key should


class _Builder:
    """Data and marks from a stream of YAML events."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.documents: list[Document] = []
        self.faults: list[Fault] = []
        self.stopped = False
        self._frames: list[_Frame] = []
        self._document = Document(file, None)
        self._root: Any = None
        self._values = 0

    def feed(self, event: Any) -> None:
        if isinstance(event, yaml.DocumentStartEvent):
            self._document, self._root = Document(self.file, None), None
        elif isinstance(event, yaml.DocumentEndEvent):
            d = self._document
            self.documents.append(Document(self.file, self._root, d.marks, d.key_marks))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._node(event, {} if isinstance(event, yaml.MappingStartEvent) else [])
        elif isinstance(event, yaml.CollectionEndEvent):
            frame = self._frames.pop()
            if frame.is_key:
                self._frames[-1].key, self._frames[-1].dropped = "?", True
        elif isinstance(event, yaml.NodeEvent):
            self._node(event, None)

    def _refuse(self, event: Any, path: KeyPath, message: str) -> None:
        mark = event.start_mark
        self.faults.append(Fault(self.file, mark.line + 1, mark.column + 1, show_path(path), printable(message)))

    def _node(self, event: Any, container: dict[str, Any] | list[Any] | None) -> None:
        self._values += 1
        frame = self._frames[-1] if self._frames else None
        if frame is not None and isinstance(frame.container, dict) and frame.key is None:
            if isinstance(event, yaml.ScalarEvent):
                self._key(event, frame)
                return
            if container is None:
                self._refuse(event, frame.path, f"found the alias *{shorten(str(event.anchor))}, expected a key")
                frame.key, frame.dropped = "?", True
                return
            if not any(f.is_key for f in self._frames):
                self._refuse(event, frame.path, "found a mapping or list as a key, expected a word")
            self._push(event, _Frame(container, (*frame.path, "?"), is_key=True))
            return
        path = self._child_path(frame)
        value = container if container is not None else self._scalar(event, path)
        self._marks_of_node(event, path)
        self._store(frame, path, event, value)
        if container is not None:
            self._push(event, _Frame(container, path))
        if self._values > MAX_VALUES:
            self._refuse(event, path, f"found more than {MAX_VALUES:,} values in one file, expected fewer")
            self.stopped = True

    def _push(self, event: Any, frame: _Frame) -> None:
        if len(self._frames) >= MAX_DEPTH:
            message = f"found values nested more than {MAX_DEPTH} deep, expected fewer levels"
            self._refuse(event, frame.path[:6], message)
            self.stopped = True
        self._frames.append(frame)

    @staticmethod
    def _child_path(frame: _Frame | None) -> KeyPath:
        if frame is None:
            return ()
        if isinstance(frame.container, list):
            return (*frame.path, len(frame.container))
        return (*frame.path, frame.key or "")

    def _store(self, frame: _Frame | None, path: KeyPath, event: Any, value: Any) -> None:
        if frame is not None and frame.dropped:
            frame.key, frame.dropped = None, False
            return
        self._document.marks[path] = (event.start_mark.line + 1, event.start_mark.column + 1)
        if frame is None:
            self._root = value
        elif isinstance(frame.container, list):
            frame.container.append(value)
        elif frame.key is not None:
            frame.container[frame.key] = value
            frame.key = None

    def _marks_of_node(self, event: Any, path: KeyPath) -> None:
        """Refuse what makes a node more than its value: tags and anchors."""
        if isinstance(event, yaml.AliasEvent):
            return
        if event.tag is not None:
            name = event.tag.replace(_TAG, "!!", 1)
            self._refuse(event, path, f"found the tag {shorten(name)}, expected a plain value without a tag")
        if event.anchor is not None:
            self._refuse(event, path, f"found the anchor &{shorten(str(event.anchor))}, expected the value written out")

    def _key(self, event: Any, frame: _Frame) -> None:
        key: str = event.value
        path = (*frame.path, key)
        mark = (event.start_mark.line + 1, event.start_mark.column + 1)
        self._marks_of_node(event, path)
        frame.key = key
        if not key:
            self._refuse(event, frame.path, "found an empty key, expected a word before ':'")
        elif key == "<<" and not event.style:
            self._refuse(event, frame.path, "found the merge key <<, expected the keys written out")
        elif _CONTROL.search(key):
            self._refuse(event, frame.path, f"found the key {shorten(key)!r}, expected a word")
        elif path in self._document.key_marks:
            first = self._document.key_marks[path][0]
            self._refuse(event, path, f"found the key {shorten(key)!r} twice (first on line {first}), expected one")
        else:
            self._document.key_marks[path] = mark
            return
        frame.dropped = True

    def _scalar(self, event: Any, path: KeyPath) -> Any:
        if isinstance(event, yaml.AliasEvent):
            self._refuse(event, path, f"found the alias *{shorten(str(event.anchor))}, expected the value written out")
            return None
        text: str = event.value
        if _CONTROL.search(text):
            self._refuse(event, path, f"found the text {shorten(text)!r}, expected no control characters")
            return None
        if event.style in ("'", '"', "|", ">"):
            return text
        try:
            return plain_value(text)
        except SurprisingScalarError as exc:
            self._refuse(event, path, str(exc))
            return None


# What libyaml and PyYAML say, and what a person can do about it. First match counts.
_PLAIN_WORDS = (
    ("mapping values are not allowed", "found ': ' inside a value, expected one 'key: value' a line; quote such text"),
    ("could not find expected ':'", "found a line without ':', expected 'key: value'"),
    ("expected ',' or ']'", "found the end of a value, expected ',' or ']' to close the list"),
    ("expected ',' or '}'", "found the end of a value, expected ',' or '}' to close the mapping"),
    ("expected key", "found other text, expected a key with the indentation of its neighbours"),
    ("expected <block end>", "found other indentation, expected that of the neighbouring lines"),
    ("expected '-' indicator", "found other text, expected another '- item' with the indentation of its neighbours"),
    ("unexpected end of stream", "found the end of the file inside quotes, expected the closing quote"),
    ("block sequence entries are not allowed", "found '- ' inside a value, expected the list on its own lines"),
    ("expected <document start>", "found text after the document, expected '---' or nothing"),
    ("did not find expected node content", "found no value, expected one; is a bracket left open?"),
    ("expected the node content", "found no value, expected one; is a bracket left open?"),
    ("undefined alias", "found an alias without an anchor, expected the value written out"),
)


def _syntax_fault(exc: yaml.YAMLError, text: str, file: str) -> Fault:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    opened = getattr(exc, "context_mark", None)
    if mark is None:
        return Fault(file, 1, 1, "", printable(f"found text that is not YAML: {getattr(exc, 'reason', exc)}"))
    problem = str(getattr(exc, "problem", "") or "")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    words = next((plain for known, plain in _PLAIN_WORDS if known in problem), "")
    if "\t" in line[: len(line) - len(line.lstrip())]:
        words = "found a tab in the indentation, expected spaces"
    elif "cannot start any token" in problem:
        words = f"found the character {line[mark.column : mark.column + 1]!r}, expected it inside quotes"
    elif not words:
        words = f"found text that is not YAML: {problem or 'cannot be read'}"
    if opened is not None and opened.line != mark.line:
        words += f" (it begins on line {opened.line + 1})"
    return Fault(file, mark.line + 1, mark.column + 1, "", printable(words))
