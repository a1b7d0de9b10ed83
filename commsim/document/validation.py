"""A pydantic model from a Document; every fault at its line, in the words of the file and not of pydantic.

Values are validated strictly, in pydantic's JSON sense: text becomes an enum or a path, an int a float, and
nothing else is converted, so ``nodes: '8'`` and ``nodes: true`` are faults.
"""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticCustomError

from commsim.document.types import LOCATED, Document, FaultyError, KeyFaults, KeyPath, raise_faults
from commsim.errors import Fault, ScenarioError

M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], document: Document, *, at: KeyPath = (), error: FaultyError = ScenarioError) -> M:
    """The model built from the document's value at ``at``; raises ``error`` with every fault."""
    instance, faults = try_validate(model, document, at=at)
    if instance is None:
        raise_faults(faults, error)
    return instance


def try_validate(model: type[M], document: Document, *, at: KeyPath = ()) -> tuple[M | None, list[Fault]]:
    """The model and no faults, or None and at least one fault."""
    try:
        return model.model_validate_json(json.dumps(document.value(at)), strict=True), []
    except ValidationError as exc:
        from commsim.document.faults import faults_of

        return None, faults_of(exc.errors(include_url=False), model, document, at)


def failing(*checks: tuple[object, KeyPath, str]) -> KeyFaults:
    """The path and message of each (whether it is a fault, path, message) that is one."""
    return [(path, message) for wrong, path, message in checks if wrong]


def refuse(*checks: tuple[object, KeyPath, str]) -> None:
    """For a validator: raises `located` with those of `failing`, if there are any."""
    if faults := failing(*checks):
        raise located(*faults)


def located(*faults: tuple[KeyPath, str]) -> PydanticCustomError:
    """The exception for a validator to raise when its faults sit below the model, at the paths given."""
    listed = [{"at": list(path), "message": message} for path, message in faults]
    text = "; ".join(message for _, message in faults)
    return PydanticCustomError(LOCATED, "{text}", {"text": text, "faults": listed})
