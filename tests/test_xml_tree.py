"""XML of strangers: what is bounded, what is refused, and on which line."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from commsim.errors import TopologyError
from commsim.xml_tree import MOST_BYTES, MOST_DEPTH, MOST_ELEMENTS, read_xml


def _file(folder: Path, text: str) -> Path:
    path = folder / "a.xml"
    path.write_text(text, encoding="utf-8")
    return path


def test_elements_know_their_lines_and_come_in_order(tmp_path: Path) -> None:
    root = read_xml(_file(tmp_path, '<a x="1">\n<b/>\n<c>\n<b y="2"/></c></a>'))
    assert [(e.name, e.line) for e in root.walk()] == [("a", 1), ("b", 2), ("c", 3), ("b", 4)]
    assert [e.name for e in root.each("b")] == ["b"]
    assert root.children[1].children[0].attributes == {"y": "2"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<a>\n<b></a>", ":2:6: not well-formed XML: mismatched tag"),
        ('<!DOCTYPE a [\n<!ENTITY b "c">]>\n<a>&b;</a>', r":1:1: found a document type or entity \(DTDForbidden\)"),
        ("<a>\n" * (MOST_DEPTH + 1), f":{MOST_DEPTH + 1}:1: found elements nested deeper than {MOST_DEPTH}"),
        ("<a>" + "\n<b/>" * MOST_ELEMENTS, f":{MOST_ELEMENTS + 1}:1: found more than {MOST_ELEMENTS} elements"),
        ('<?xml version="1.0" encoding="klingon"?><a/>', "klingon|unknown encoding"),
        ("<a>" + " " * MOST_BYTES + "</a>", "a.xml: larger than 4 MiB"),
        ("", "a.xml: found no element"),
    ],
)
def test_what_is_refused_says_where(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        read_xml(_file(tmp_path, text))


def test_a_pipe_is_read_as_far_as_it_may_be(tmp_path: Path) -> None:
    """Its size is not known before."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for text, expected in (("<a><b/></a>", None), (" " * (MOST_BYTES + 1), "larger than 4 MiB")):
        writer = threading.Thread(target=_write, args=(path, text))
        writer.start()
        if expected is None:
            assert read_xml(path).children[0].name == "b"
        else:
            with pytest.raises(TopologyError, match=expected):
                read_xml(path)
        writer.join()


def _write(path: Path, text: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        path.write_text(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"absent.xml: cannot be read: No such file"):
        read_xml(tmp_path / "absent.xml")
