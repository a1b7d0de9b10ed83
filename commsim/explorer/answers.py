"""What the page asks of a worker: by the name of a question, the function that answers it from a state."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any

from commsim.document import raise_faults
from commsim.document.types import Document
from commsim.errors import CommsimError
from commsim.explorer.state import Question, State
from commsim.scenario.load import check_document, plain_yaml
from commsim.scenario.question_command import command_of, question_of

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
    "forms": "answers:forms_answer",
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


_FILE = "  # a file with what 'copy as YAML' gives"


def forms_answer(state: State, base_dir: Path, cache: Cache) -> dict[str, Any]:
    """The state as YAML, as a command and as Python."""
    del base_dir, cache
    if state["tab"] == "plan":
        from commsim.explorer.plan import question as plan_question

        plan = plan_question(state)
        call = f"import commsim as cs\n\nresult = cs.plan({pformat(plan, sort_dicts=False, width=100)})\n"
        return {"yaml": plain_yaml(plan), "command": f"commsim plan plan.yaml{_FILE}\n", "python": call}
    question: Question = "training" if state["tab"] == "step" else "collective"
    document = state.document(question)
    text = plain_yaml(document)
    asked = question_of(document)
    command = command_of(asked) if asked is not None else f"commsim run question.yaml{_FILE}"
    if state["tab"] == "schedule":
        from commsim.explorer.animation import command_words

        command = shlex.join(command_words(state))
    return {
        "yaml": text,
        "command": f"{command}\n",
        "python": state.python(question),
    }
