"""The kinds of workload that a scenario may hold; only those that a file names are imported.

A new kind is a file here, a row in `WORK`, a view in `report`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Union

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError, ValidationInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from commsim.scenario.work import WorkItem

WORK = {
    "collective": ("items", "collective:CollectiveWork"),
    "jobs": ("jobs", "jobs:JobsWork"),
    "training": ("trainings", "training:TrainingWork"),
    "rl": ("rl", "rl:RlWork"),
    "claim": ("claims", "claim:ClaimWork"),
    "trace": ("traces", "trace:TraceWork"),
    "generation": ("generations", "generation:GenerationWork"),
}
"""By the key that tells a kind from others: its list in the JSON result, and the class of its items."""

KINDS = tuple(kind for kind, _ in WORK.values())
"""The lists of the JSON result, in its order."""


def work_of(key: str) -> type[WorkItem]:
    """The class of the items that a key of the file begins."""
    module, name = WORK[key][1].split(":")
    work: type[WorkItem] = getattr(import_module(f"commsim.scenario.workload.{module}"), name)
    return work


@cache
def _any() -> TypeAdapter[WorkItem]:
    return TypeAdapter(OneOfTheKinds().union)


class OneOfTheKinds:
    """An annotation for pydantic: the union of all kinds, of which one is imported when a file holds it."""

    @property
    def union(self) -> Any:
        """The union itself, with every kind imported."""
        return Union[tuple(work_of(key) for key in WORK)]  # noqa: UP007  (of a tuple known only now)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_item)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(_any().core_schema)


def _item(value: Any, info: ValidationInfo) -> WorkItem:
    """The item of the kind whose key stands there; what no kind or several could be is judged by the union of all."""
    if isinstance(value, WorkItem):
        return value
    keys = [key for key in WORK if key in value] if isinstance(value, dict) else []
    if info.mode == "python":
        return work_of(keys[0]).model_validate(value) if len(keys) == 1 else _any().validate_python(value)
    text = json.dumps(value)
    if len(keys) == 1:
        try:
            return work_of(keys[0]).model_validate_json(text, strict=True)
        except ValidationError:
            pass  # the union's faults say of each which kind it is of
    return _any().validate_json(text, strict=True)


AnyWork = Annotated[WorkItem, OneOfTheKinds()]
