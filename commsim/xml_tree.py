"""XML files of strangers, bounded and without document types or entities: as events, or as a small tree that knows its
lines."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from xml.sax.handler import ContentHandler

from commsim.errors import Fault, LocatedError, TopologyError

MOST_BYTES = 4 << 20
MOST_ELEMENTS = 50_000
MOST_DEPTH = 64
_PIECE = 8 << 20  # expat reads an unfinished comment again with every piece


class XmlFaultError(Exception):
    """What is not well-formed, not allowed or too large, and where; line 0 is the whole file."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.line, self.column = line, column


class XmlHandler(ContentHandler):
    """What becomes of elements; ``line`` is where the current one starts."""

    locator: Any = None

    @property
    def line(self) -> int:
        """Line of the file, from 1; 0 before it is read."""
        return int(self.locator.getLineNumber() or 0)


def read_events(stream: BinaryIO, handler: XmlHandler, most_bytes: int = MOST_BYTES) -> None:
    """Give the elements of a file to a handler, piece by piece; an XmlFaultError ends the reading."""
    from xml.sax import SAXParseException

    from defusedxml.common import DefusedXmlException
    from defusedxml.expatreader import DefusedExpatParser

    size, read = 0, 0
    if stream.seekable():
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
    parser = DefusedExpatParser(forbid_dtd=True)
    handler.locator = parser  # fed in pieces, the parser hands over no locator but is one
    parser.setContentHandler(handler)
    try:
        while size <= most_bytes and (piece := stream.read(_PIECE)):
            parser.feed(piece)
            read += len(piece)
            size = max(size, read)
        if size > most_bytes:
            raise XmlFaultError(f"larger than {most_bytes >> 20} MiB")
        parser.close()
    except SAXParseException as fault:
        line, column = int(fault.getLineNumber() or 0), int(fault.getColumnNumber() or 0)
        raise XmlFaultError(f"not well-formed XML: {fault.getMessage()}", line, column + 1) from None
    except DefusedXmlException as fault:
        message = f"found a document type or entity ({type(fault).__name__}), expected elements only"
        raise XmlFaultError(message, handler.line, 1) from None
    except (LookupError, ValueError) as fault:  # an encoding that Python does not know or that does not fit
        raise XmlFaultError(f"unreadable text: {str(fault)[:80]}", handler.line, 1) from None


@dataclass
class Element:
    """One element: its name, attributes, children in order and the line on which it starts."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def each(self, name: str) -> list[Element]:
        """The children of one name."""
        return [child for child in self.children if child.name == name]

    def walk(self) -> list[Element]:
        """This element and all below it, in the order of the file."""
        elements, waiting = [], [self]
        while waiting:
            element = waiting.pop()
            elements.append(element)
            waiting += reversed(element.children)
        return elements


def read_xml(path: Path, *, error: type[LocatedError] = TopologyError) -> Element:
    """The root element of a file; `error` names the line of what is not well-formed, not allowed or too large."""
    tree = _Tree()
    try:
        with path.open("rb") as stream:
            read_events(stream, tree)
    except OSError as fault:
        raise error([Fault(str(path), 0, 0, "", f"cannot be read: {fault.strerror or fault}")]) from None
    except XmlFaultError as fault:
        raise error([Fault(str(path), fault.line, fault.column, "", str(fault))]) from None
    if tree.root is None:
        raise error([Fault(str(path), 0, 0, "", "found no element")])
    return tree.root


class _Tree(XmlHandler):
    def __init__(self) -> None:
        super().__init__()
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0

    def startElement(self, name: str, attrs: Any) -> None:
        self._count += 1
        if self._count > MOST_ELEMENTS:
            raise XmlFaultError(f"found more than {MOST_ELEMENTS} elements", self.line, 1)
        if len(self._open) >= MOST_DEPTH:
            raise XmlFaultError(f"found elements nested deeper than {MOST_DEPTH}", self.line, 1)
        element = Element(name, dict(attrs.items()), self.line)
        if self._open:
            self._open[-1].children.append(element)
        elif self.root is None:
            self.root = element
        self._open.append(element)

    def endElement(self, name: str) -> None:
        self._open.pop()
