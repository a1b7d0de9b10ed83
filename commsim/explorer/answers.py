"""What the page asks of a worker: by the name of a question, the function that answers it from a state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.document import raise_faults
from commsim.document.types import Document
from commsim.errors import CommsimError
from commsim.explorer.state import Question, State
from commsim.scenario.load import check_document

if TYPE_CHECKING:
    from commsim.scenario.predictors import Cache
    from commsim.scenario.schema import Scenario

Say = Callable[[str, int, int], None]
"""(what, done, of): progress of long work."""

QUESTIONS = {
    "curve": "curve:curve_answer",
    "topology": "machine:machine_answer",
    "schedule": "animation:animation_answer",
    "step": "step:step_answer",
    "around": "step:around_answer",
    "plan": "plan:plan_answer",
    "log": "log:log_answer",
    "forms": "forms:forms_answer",
    "faults": "machine:faults_answer",
}
"""By name, the module of `commsim.explorer` and its function of (state, folder, cache)."""

LONG = frozenset({"plan", "log", "around"})
"""Those that say how far they are: their functions take `say` and `more` too."""


def answer(
    question: str, values: object, base_dir: Path, cache: Cache, say: Say, more: Mapping[str, Any] | None = None
) -> bytes:
    """The answer as JSON; ``{"error": ...}`` with the text of the command line where the input is at fault."""
    try:
        module, name = QUESTIONS[question].split(":")
        function = getattr(import_module(f"commsim.explorer.{module}"), name)
        state = State.of(values)
        made = (
            function(state, base_dir, cache, say, more or {}) if question in LONG else function(state, base_dir, cache)
        )
    except CommsimError as error:
        made = {"error": "\n".join(map(_placeless, str(error).splitlines()))}
    except MemoryError:
        made = {"error": "out of memory: the scenario is too large for this machine"}
    except Exception as error:  # the page says so, and its worker lives on
        made = {"error": f"internal error: {type(error).__name__}: {error} (a fault of commsim, not of your input)"}
    if "warnings" in made:
        made["warnings"] = list(map(_placeless, made["warnings"]))
    return json.dumps(made, separators=(",", ":"), allow_nan=False).encode()


def _placeless(line: str) -> str:
    """A message without the place in a file: the page has none."""
    return line.removeprefix(":1:1 ")


def scenario_of(state: State, question: Question, base_dir: Path) -> Scenario:
    """The scenario of a state; ScenarioError with every fault."""
    scenario, faults = check_document(Document("", state.document(question)), base_dir)
    if scenario is None or faults:
        raise_faults(faults)
    return scenario
