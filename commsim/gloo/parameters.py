"""The physical parameters of the gloo model: what a call, a message and a byte cost a process and its cores."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from commsim.document import read_documents, validate
from commsim.fields import Bandwidth, Seconds

_SHIPPED = Path(__file__).with_name("parameters.yaml")


class GlooParameters(BaseModel):
    """Costs of one process; all but `wake` occupy a core.

    `call`: a collective from Python to gloo's thread and back. `message`: sending one, and receiving one (system calls,
    and the notice that a receiver gives first). `wake`: until a thread that waits for a message runs again.
    `copy_rate`: bytes/s of one core between a process and its socket, each way. `reduce_rate`: of one core that adds a
    segment to another. `memory_rate`: of a plain copy in memory (torch copies inputs and results of some collectives).
    `goodput`: payload share of a link's rate (headers of TCP, IP and Ethernet).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    provenance: str
    call: Seconds = Field(gt=0)
    message: Seconds = Field(gt=0)
    wake: Seconds = Field(gt=0)
    copy_rate: Bandwidth = Field(gt=0)
    reduce_rate: Bandwidth = Field(gt=0)
    memory_rate: Bandwidth = Field(gt=0)
    goodput: float = Field(gt=0, le=1)

    def scaled(self, latency: float = 1.0, launch: float = 1.0) -> GlooParameters:
        """The same with what a message costs and a call costs taking so many times as long; rates stay."""
        update = {"message": latency * self.message, "wake": latency * self.wake, "call": launch * self.call}
        return self.model_copy(update=update)


@lru_cache(maxsize=1)
def shipped_parameters() -> GlooParameters:
    """The shipped parameters; their file says where they were measured."""
    return validate(GlooParameters, read_documents(_SHIPPED)[0])
