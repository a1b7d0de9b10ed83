"""Where the shipped files lie, files that are either complete or not there, and cells of CSV that are no formulas."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from commsim.errors import CommsimError

MOST_CHARACTERS = 80
"""Of a name as that of a file."""

_PACKAGE = Path(__file__).resolve().parent


def write_atomically(path: Path, content: str | bytes) -> Path:
    """Write `content` to `path` under a temporary name in the same folder, then rename; returns `path`.

    Missing folders are made. A reader sees the old file or the new one, never half of it, and whatever
    interrupts the writing leaves no temporary file behind. A link stays and its target is written; a device or a pipe
    is written into. Raises CommsimError where the place cannot be written.
    """
    raw, temporary = content.encode() if isinstance(content, str) else content, None
    try:
        if _is_special(path):
            with path.open("wb") as stream:
                stream.write(raw)
            return path
        place = Path(os.path.realpath(path)) if path.is_symlink() else path
        if place.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        place.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{place.name[:80]}."
        descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=prefix, suffix=".part")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(raw)
            os.fchmod(stream.fileno(), 0o666 & ~_umask())  # mkstemp makes files that only the owner can read
        Path(temporary).replace(place)
        temporary = None
    except OSError as fault:
        raise CommsimError(f"{path}: cannot be written: {fault.strerror or fault}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return path


def _is_special(path: Path) -> bool:
    """Whether a path, or what it is a link to, is a device, a pipe or a socket: neither a file nor a folder."""
    return path.exists() and not path.is_file() and not path.is_dir()


def text_within(path: Path, most: int) -> str | None:
    """The text of a file or pipe, None where it has more than so many bytes; no more is read, of a device either.

    Bytes that are no UTF-8 become question marks; OSError as of `open`.
    """
    with path.open("rb") as stream:
        raw = stream.read(most + 1)
    return None if len(raw) > most else raw.decode("utf-8", "replace").replace("\r\n", "\n")


def safe_cell(cell: Any) -> Any:
    """A cell of CSV that no spreadsheet takes for a formula: text that could be one begins with an apostrophe.

    Other values and numbers in text stay; `plain_cell` undoes it. Source: OWASP, "CSV Injection".

    >>> safe_cell("=1+1"), safe_cell("-2.5"), safe_cell(7), safe_cell("all_reduce")
    ("'=1+1", '-2.5', 7, 'all_reduce')
    """
    if not isinstance(cell, str) or not _FORMULA.match(cell):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def plain_cell(text: str) -> str:
    """What `safe_cell` was given."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # apostrophes of its own too: what is written reads back
_MACHINE = re.compile(r" \[[\d,]+ x [^\]]*\]$")


def slug(name: str, unnamed: str) -> str:
    """A name as that of a file: lower case, words joined by ``-``; ``unnamed`` where nothing is left of it.

    A long one ends in a digest of all of it, so that two that begin alike are two. The machine behind a title, such as
    ``[128 x A100 SXM4]``, is left out: it follows from the rest.
    """
    name = _MACHINE.sub("", name)
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if len(words) > MOST_CHARACTERS:
        words = f"{words[: MOST_CHARACTERS - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return words or unnamed


def check_writable(path: Path) -> None:
    """CommsimError where `write_atomically` would find no place for a file; before work that takes minutes."""
    if path.is_dir():
        raise CommsimError(f"{path}: cannot be written: it is a folder")
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise CommsimError(f"{path}: cannot be written: no permission")
        return
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise CommsimError(f"{path}: cannot be written: {nearest} is no folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise CommsimError(f"{path}: cannot be written: no permission in {nearest}")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def data_root() -> Path:
    """The folder that holds ``topologies/``, ``scenarios/`` and ``validation/measured/``.

    A wheel carries them in ``commsim/data``; an editable install does not get that folder, so the checkout serves.
    """
    wheel = _PACKAGE / "data"
    return wheel if wheel.is_dir() else _PACKAGE.parent
