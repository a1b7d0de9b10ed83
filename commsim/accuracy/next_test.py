"""The measurement that tells two causes apart: of a few tests, the one whose predicted times differ most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING

from commsim.accuracy.causes import WhatIf
from commsim.accuracy.whatif import predicted_curve
from commsim.collectives.semantics import NCCL_TESTS, ROOTED
from commsim.errors import CommsimError
from commsim.measure.nccl_tests import PROGRAMS
from commsim.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from commsim.scenario.schema import Scenario

SIZES = tuple(parse_bytes(size) for size in ("8 B", "1 MiB", "1 GiB"))
COLLECTIVES = tuple(name for name in NCCL_TESTS if name not in ROOTED)

TELLS = 1.3
"""Least ratio of two predicted times by which a test is worth running: beyond what healthy machines differ by."""


@dataclass(frozen=True)
class TellingTest:
    """A test of nccl-tests, and by how much one of two causes takes longer in it than the other."""

    collective: str
    nbytes: int
    where: str
    ratio: float

    def words(self) -> str:
        """The test as a person would run it."""
        size = format_bytes(self.nbytes).replace(" ", "").removesuffix("iB").removesuffix("B")
        return (
            f"{PROGRAMS[self.collective]} -b {size} -e {size} {self.where} "
            f"(predicted times differ by x{self.ratio:.2g})"
        )


def next_test(scenario: Scenario, one: WhatIf, other: WhatIf) -> TellingTest | None:
    """The test that tells two causes apart best; None where none of a few does."""
    tests = []
    for where, base in _places(scenario):
        for collective in COLLECTIVES:
            times = [_times(cause.change(base), collective) for cause in (one, other)]
            for i, nbytes in enumerate(SIZES):
                if all(times):
                    ratio = exp(abs(log(times[0][i] / times[1][i])))
                    tests.append(TellingTest(collective, nbytes, where, ratio))
    best = max(tests, key=lambda test: test.ratio, default=None)
    return best if best is not None and best.ratio >= TELLS else None


def _places(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """Where a test may run: on all GPUs as before, on one node, with one GPU of each node."""
    yield "on the same GPUs", scenario
    spec = scenario.topology
    if spec.groups is not None or spec.faults or spec.nodes < 2:
        return
    for words, update in (("within one node", {"nodes": 1}), ("with one GPU per node", {"gpus_per_node": 1})):
        other = scenario.model_copy(update={"topology": spec.model_copy(update=update)})
        other._document, other._base_dir = scenario.document, scenario.base_dir
        yield words, other


def _times(scenario: Scenario, collective: str) -> Sequence[float]:
    """Predicted seconds at `SIZES`; nothing where such a job cannot be predicted."""
    (first, *_) = scenario.collectives
    work = first.model_copy(update={"collective": collective, "root": None})
    one = scenario.model_copy(update={"workload": (work,)})
    one._document, one._base_dir = scenario.document, scenario.base_dir
    try:
        return [float(t) for t in predicted_curve(one, collective, SIZES).seconds_at(list(SIZES))]
    except CommsimError:
        return ()
