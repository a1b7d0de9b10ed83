"""A root that is no rank is refused, whatever the library."""

from __future__ import annotations

import pytest

import commsim as cs
from commsim.errors import ScheduleError


@pytest.mark.parametrize("library", ["nccl", "none"])
def test_a_root_beyond_the_ranks_is_refused(library: str) -> None:
    work = {"collective": "broadcast", "root": 9, "sizes": ["1 MiB"]}
    scenario = {"name": "r", "topology": {"preset": "hgx-h100"}, "library": library, "workload": [work]}
    with pytest.raises(ScheduleError, match=r"root 9 is not one of the ranks 0\.\.7"):
        cs.run(scenario)
