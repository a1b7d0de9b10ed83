"""The page's question to copy: as YAML, as a command and as a call of Python."""

from __future__ import annotations

import shlex
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any

from commsim.explorer.animation import command_words
from commsim.explorer.plan import question as plan_question
from commsim.scenario.load import plain_yaml
from commsim.scenario.question_command import command_of, question_of

if TYPE_CHECKING:
    from commsim.explorer.state import Question, State
    from commsim.scenario.predictors import Cache

_FILE = "  # a file with what 'copy as YAML' gives"


def forms_answer(state: State, base_dir: Path, cache: Cache) -> dict[str, Any]:
    """The state as YAML, as a command and as Python, as the tab asks it."""
    del base_dir, cache
    if state["tab"] == "plan":
        plan = plan_question(state)
        call = f"import commsim as cs\n\nresult = cs.plan({pformat(plan, sort_dicts=False, width=100)})\n"
        return {"yaml": plain_yaml(plan), "command": f"commsim plan plan.yaml{_FILE}\n", "python": call}
    question: Question = "training" if state["tab"] == "step" else "collective"
    document = state.document(question)
    text = plain_yaml(document)
    asked = question_of(document)
    command = command_of(asked) if asked is not None else f"commsim run question.yaml{_FILE}"
    if state["tab"] == "schedule":
        command = shlex.join(command_words(state))
    return {
        "yaml": text,
        "command": f"{command}\n",
        "python": state.python(question),
    }
