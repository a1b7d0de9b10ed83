"""The compiled loop lays the channels that the search without it lays, in as many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from commsim.nccl import laying, laying_loop, laying_tables
from commsim.nccl.laying import Laying
from commsim.nccl.paths import SYS
from commsim.nccl.search import search
from commsim.nccl.system import Solution
from commsim.nccl.version import Version
from commsim.nccl.view import NodeView, view_of
from commsim.topology.presets import load_preset

MACHINES = (
    ("hgx-h100-ndr400", 2), ("hgx-h100-ndr400", 1), ("dgx-1v", 1), ("dgx-1v-edr100", 2), ("dgx-2-edr100", 2),
    ("aws-p3dn", 2), ("a100-pcie", 1), ("hgx-a100-4-hdr200", 2), ("v100-pcie-8", 1), ("rtx4090", 1),
)  # fmt: skip
VERSIONS: tuple[Version, ...] = ((2, 18, 5), (2, 24, 3), (2, 27, 3), (2, 28, 3))
PATTERNS = ("RING", "BALANCED_TREE", "TREE")
GBPS = (48.0, 20.0)


def filled(view: NodeView, version: Version, now: Solution) -> tuple[dict[str, Any], int, int, list[int]]:
    """The best, the steps and what is left of the search's own after one search, and the links as they are then."""
    one = Laying(view, version, Solution(now.pattern, now.least, now.most, now.cross_nic, now.same))
    before, left = one.steps, one.fill(now.copy())
    return asdict(one.best), before - one.steps, left, one._left


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_loop_takes_the_same_steps(pattern: str, version: Version, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare(MACHINES, pattern, version, monkeypatch) > 5


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_domain_of_72_gpus(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare([("oci-gb200", 2)], pattern, (2, 27, 3), monkeypatch)


def compare(
    machines: Sequence[tuple[str, int]], pattern: str, version: Version, monkeypatch: pytest.MonkeyPatch
) -> int:  # fmt: skip
    """How many searches laid channels, all with the loop as without."""
    monkeypatch.setattr(laying_loop, "is_kept", lambda: True)
    laid = 0
    for name, nodes in machines:
        view = view_of(load_preset(name, **({"nodes": nodes} if nodes > 1 else {})), version, {})
        for gbps in GBPS:
            for cross in {0, 2 if pattern == "RING" else 0, int(view.nets > 1)}:
                now = Solution(pattern, 1, 6, cross, False, gbps, gbps, SYS, SYS)
                compiled = filled(view, version, now)
                with monkeypatch.context() as patch:
                    patch.setattr(Laying, "_compiled", lambda *_: False)
                    assert compiled == filled(view, version, now), (name, gbps, cross)
                laid += compiled[0]["channels"] > 0
    return laid


def test_a_search_goes_over_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many steps; the solution is that of a search that does not."""
    version, ran = (2, 26, 2), []
    view = view_of(load_preset("hgx-h100-ndr400", nodes=2), version, {})
    alone = search(view, "RING", version, least=1, most=8, cross_nic=2)
    fill = laying_tables.Tables.fill

    def counted(*given: Any, **named: Any) -> Any:
        ran.append(given)
        return fill(*given, **named)

    monkeypatch.setattr(laying_tables.Tables, "fill", counted)
    monkeypatch.setattr(laying, "_WORTH_LOADING", 1)
    monkeypatch.setattr(laying, "_WORTH_COMPILING", 1)
    assert asdict(search(view, "RING", version, least=1, most=8, cross_nic=2)) == asdict(alone)
    assert ran
