"""The kinds of workload that a scenario may hold; a new one is a file here, a name in `AnyWork`, a view in `report`."""

from __future__ import annotations

from typing import get_args

from commsim.scenario.workload.claim import ClaimWork
from commsim.scenario.workload.collective import CollectiveWork
from commsim.scenario.workload.jobs import JobsWork
from commsim.scenario.workload.trace import TraceWork
from commsim.scenario.workload.training import TrainingWork
from commsim.scenario.workload.work import WorkItem

AnyWork = CollectiveWork | JobsWork | TrainingWork | ClaimWork | TraceWork

KINDS: dict[str, type[WorkItem]] = {work.kind: work for work in get_args(AnyWork)}
"""By their lists in the JSON result, in its order."""
