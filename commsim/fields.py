"""Pydantic field types for quantities: a scenario's ``64 MiB`` arrives in a model as a float or int in SI units."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from commsim.units import parse_bandwidth, parse_bytes, parse_time

Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(lambda v: f"{v} B", return_type=str),
    WithJsonSchema({"type": "string", "examples": ["64 MiB", "8 B"]}),
]
Bandwidth = Annotated[
    float,
    BeforeValidator(parse_bandwidth),
    PlainSerializer(lambda v: f"{v!r} B/s", return_type=str),
    WithJsonSchema({"type": "string", "examples": ["400 Gb/s", "50 GB/s"]}),
]
Seconds = Annotated[
    float,
    BeforeValidator(parse_time),
    PlainSerializer(lambda v: f"{v!r} s", return_type=str),
    WithJsonSchema({"type": "string", "examples": ["2 us", "1.5 ms"]}),
]
