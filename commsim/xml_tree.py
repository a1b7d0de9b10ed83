"""XML files of strangers as a small tree that knows its lines: bounded, and without document types or entities."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.handler import ContentHandler

from commsim.errors import Fault, LocatedError, TopologyError

MOST_BYTES = 4 << 20
MOST_ELEMENTS = 50_000
MOST_DEPTH = 64


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
        found, waiting = [], [self]
        while waiting:
            element = waiting.pop()
            found.append(element)
            waiting += reversed(element.children)
        return found


def read_xml(path: Path, *, error: type[LocatedError] = TopologyError) -> Element:
    """The root element of a file; `error` names the line of what is not well-formed, not allowed or too large."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise error([Fault(str(path), 0, 0, "", f"the file is larger than {MOST_BYTES >> 20} MiB")])
        data = path.read_bytes()
    except OSError as fault:
        raise error([Fault(str(path), 0, 0, "", f"cannot be read: {fault.strerror or fault}")]) from None
    return parse_xml(data, str(path), error=error)


def parse_xml(data: bytes, file: str, *, error: type[LocatedError] = TopologyError) -> Element:
    """The root element of a document in memory, as `read_xml`."""
    from xml.sax import SAXParseException

    from defusedxml.common import DefusedXmlException
    from defusedxml.expatreader import DefusedExpatParser

    parser = DefusedExpatParser(forbid_dtd=True)
    handler = _Tree(parser)
    parser.setContentHandler(handler)
    try:
        parser.feed(data)
        parser.close()
    except SAXParseException as fault:
        line, column = int(fault.getLineNumber() or 0), int(fault.getColumnNumber() or 0)
        raise error([Fault(file, line, column + 1, "", f"not well-formed XML: {fault.getMessage()}")]) from None
    except DefusedXmlException as fault:
        message = f"found a document type or entity ({type(fault).__name__}), expected elements only"
        raise error([Fault(file, handler.line(), 1, "", message)]) from None
    except _TooMuchError as fault:
        raise error([Fault(file, handler.line(), 1, "", str(fault))]) from None
    except (LookupError, ValueError) as fault:
        raise error([Fault(file, handler.line(), 1, "", f"unreadable text: {str(fault)[:80]}")]) from None
    if handler.root is None:
        raise error([Fault(file, 0, 0, "", "found no element")])
    return handler.root


class _TooMuchError(Exception):
    pass


class _Tree(ContentHandler):
    def __init__(self, locator: Any) -> None:
        super().__init__()
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0
        self._locator_of = locator

    def line(self) -> int:
        return int(self._locator_of.getLineNumber() or 0)

    def startElement(self, name: str, attrs: Any) -> None:
        self._count += 1
        if self._count > MOST_ELEMENTS:
            raise _TooMuchError(f"found more than {MOST_ELEMENTS} elements")
        if len(self._open) >= MOST_DEPTH:
            raise _TooMuchError(f"found elements nested deeper than {MOST_DEPTH}")
        element = Element(name, dict(attrs.items()), self.line())
        if self._open:
            self._open[-1].children.append(element)
        elif self.root is None:
            self.root = element
        self._open.append(element)

    def endElement(self, name: str) -> None:
        self._open.pop()
