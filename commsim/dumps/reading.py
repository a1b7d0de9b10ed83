"""Files of any kind as dumps: the kind is told by what is in them, never by their names."""

from __future__ import annotations

import gzip
import io
import stat
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from commsim.dumps.call import Dump, fault
from commsim.dumps.flight_recorder import read_flight_json, read_flight_pickle
from commsim.dumps.inspector import read_inspector
from commsim.dumps.kineto import read_kineto
from commsim.dumps.nsys import read_nsys
from commsim.dumps.ras import read_ras_json, read_ras_text
from commsim.errors import Fault, LogFormatError

_HEAD = 1 << 20
_MOST_PIPE = 64 << 20
_MOST_BINARY = 64 << 20
_MOST_FILES = 4096
KINDS = "PyTorch's flight recorder, a Kineto trace, NCCL's inspector, ncclras, or an export of nsys"


class UnknownKindError(LogFormatError):
    """A file that is none of the kinds that are read."""


def dumps_of(paths: Sequence[Path], progress: Callable[[int], None] = lambda count: None) -> list[Dump]:
    """The dumps of files and of those in folders, where other files may lie; LogFormatError with every one that cannot
    be read."""
    if not paths:
        raise LogFormatError(f"found no file, expected {KINDS}")
    dumps: list[Dump] = []
    others: list[str] = []
    given = set(paths)
    faults: list[Fault] = []
    texts: list[str] = []
    files = _files(paths)
    for count, path in enumerate(files):
        progress(count)
        try:
            dumps.append(read_dump(path))
        except UnknownKindError as error:
            if path in given:
                texts.append(str(error))
                faults += error.faults
            others.append(path.name)
        except LogFormatError as error:
            faults += error.faults
            texts.append(str(error))
    if texts:
        raise LogFormatError(faults) if faults else LogFormatError("\n".join(texts))
    if not dumps:
        raise fault(paths[0], f"found {len(others)} files in folders, expected among them {KINDS}")
    if others:
        shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
        dumps[0] = replace(dumps[0], notes=(*dumps[0].notes, f"no dumps among the files: {len(others)}, {shown}"))
    return dumps


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        try:
            inside = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".") if path.is_dir() else [path]
        except OSError as error:
            raise fault(path, f"cannot be read: {error.strerror or error}") from None
        if not inside:
            raise fault(path, f"found no file in the folder, expected dumps: {KINDS}")
        files += inside
        if len(files) > _MOST_FILES:
            raise fault(path, f"found more than {_MOST_FILES:,} files, expected one for every rank")
    return list(dict.fromkeys(files))


def read_dump(path: Path) -> Dump:
    """The dump of one file, gzipped or not; LogFormatError says what was found and expected."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            with path.open("rb") as stream:
                return _read(stream, path)
        if stat.S_ISFIFO(mode):
            with path.open("rb") as stream:
                return _read(io.BytesIO(_limited(stream, _MOST_PIPE, path)), path)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        raise fault(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    raise fault(path, f"is no file, expected one of {KINDS}")


def _limited(stream: BinaryIO, most: int, path: Path) -> bytes:
    data = stream.read(most + 1)
    if len(data) > most:
        raise fault(path, f"found more than {most >> 20} MiB")
    return data


def _read(stream: BinaryIO, path: Path) -> Dump:
    try:
        if stream.read(2) == b"\x1f\x8b":
            stream.seek(0)
            stream, packed = cast("BinaryIO", gzip.GzipFile(fileobj=stream)), True
        else:
            stream.seek(0)
            packed = False
        head = stream.read(_HEAD)
        stream.seek(0)
        return _by_head(head, stream, path, packed=packed)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise fault(path, f"found a broken gzip file: {error}") from None


def _by_head(head: bytes, stream: BinaryIO, path: Path, *, packed: bool) -> Dump:
    if head.startswith(b"SQLite format 3\0"):
        if packed:
            raise fault(path, "found a gzipped SQLite file, expected it unpacked")
        return read_nsys(path)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return read_flight_pickle(_limited(stream, _MOST_BINARY, path), path)
    if head.startswith(b"PK\x03\x04"):
        raise fault(path, "found a zip archive, expected the files in it")
    reader = _text_reader(head)
    if reader is None:
        raise UnknownKindError(fault(path, f"found {_shown(head)}, expected one of {KINDS}").faults)
    with io.TextIOWrapper(stream, encoding="utf-8-sig", errors="replace") as text:
        return reader(text, path)


def _text_reader(head: bytes) -> Callable[[TextIO, Path], Dump] | None:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    first = text.split(b"\n", 1)[0]
    if text[:1] == b"{":
        if b'"coll_perf"' in first or b'"p2p_perf"' in first:
            return read_inspector
        if b'"traceEvents"' in text:
            return read_kineto
        if b'"communicators"' in text and b'"nccl_version"' in text:
            return read_ras_json
        if b'"entries"' in text:
            return read_flight_json
    if text[:1] == b"[" and b'"ph"' in text:
        return lambda stream, path: read_kineto(stream, path, bare=True)
    if b"Communicators..." in text and b"Group" in text:
        return read_ras_text
    return None


def _shown(head: bytes) -> str:
    if not head:
        return "an empty file"
    text = head[:60].decode("utf-8", "replace")[:24]
    if "\ufffd" not in text and all(c.isprintable() or c in "\r\n\t" for c in text):
        return f"a file that begins with {text!r}"
    return f"a file that begins with the bytes {head[:12].hex(' ')}"
