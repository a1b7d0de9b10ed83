"""The plan of a question in one line: `commsim plan llama-33b --on dgx-a100-hdr200 -n 8`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commsim.document import Document, KeyPath
from commsim.errors import ScenarioError
from commsim.planner.question import PlanFile, judged
from commsim.scenario.asked import OneLine, kind_of
from commsim.scenario.question import document_of, place_of

_ITEM: KeyPath = ("workload", 0, "training")
_CLUSTER: KeyPath = ("plan", "clusters", 0, "topology")


def asked_plan(question: OneLine, overrides: Sequence[str] = ()) -> tuple[PlanFile, Document]:
    """The plan of a model on one machine, and its document, whose places are the options that gave the values.

    The batch is that of `commsim run` where none is given: 4 sequences for each GPU. Raises ScenarioError.
    """
    kind = kind_of(question)
    if kind != "training":
        wanted = "a model and a framework that trains it, such as llama-3-8b; a plan file asks how to serve"
        what = question.subject if kind == "collective" else f"{question.subject} with {question.framework}"
        raise ScenarioError(f"found {what!r:.80}, expected {wanted}")
    if question.subject.endswith(".json"):
        raise ScenarioError(f"found the file {question.subject!r:.80}, expected a model by name, such as llama-3-8b")
    asked = document_of(question)
    item, places = asked.data["workload"][0]["training"], {}
    plan: dict[str, Any] = {"model": item["model"], "clusters": [{"topology": asked.data["topology"]}]}
    for key in ("global_batch_size", "seq_len", "precision", "framework"):
        if key in item:
            plan[key] = item[key]
    if question.tokens is not None:
        plan["tokens"] = question.tokens
    for path, text in asked.overrides.items():
        if path[:1] == ("topology",):
            places[*_CLUSTER, *path[1:]] = text
        elif path[:3] == _ITEM and path[3:]:
            places["plan", *(path[4:] if path[3] == "task" else path[3:])] = text
    data = {"name": f"Plan of {asked.data['name']}", "plan": plan}
    return judged(Document(place_of(question), data, {(): (0, 0)}, {}, places), overrides)
