"""The curves that no fit has seen, and the page about them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from study.cases import load_cases


def test_no_curve_outside_is_one_of_those_that_were_fitted(checkout: Path) -> None:
    folders = [checkout / "validation" / name for name in ("outside", "measured")]
    outside, measured = ({case.slug: case for case in load_cases([folder])} for folder in folders)
    assert len(outside) == 63
    assert not outside.keys() & measured.keys()
    tables = {(case.path.read_bytes()) for case in measured.values()}
    assert not [slug for slug, case in outside.items() if case.path.read_bytes() in tables]
    assert all(case.row["source_url"].startswith("https://") for case in outside.values())


def test_the_silicon_curves_stand_apart_with_their_source(checkout: Path) -> None:
    """One system per machine, threads, releases stated; none of them is among the curves that are fitted or scored."""
    cases = {case.slug: case for case in load_cases([checkout / "validation" / "silicon"])}
    others = load_cases([checkout / "validation" / name for name in ("outside", "measured")])
    assert not cases.keys() & {case.slug for case in others}
    assert not {case.system for case in cases.values()} & {case.system for case in others}
    assert len({case.system for case in cases.values()}) == len({case.row["machine"] for case in cases.values()}) == 4
    assert all("aiconfigurator-core 0.12.0" in case.row["source_url"] for case in cases.values())
    assert all(case.version and case.version >= (2, 27, 3) for case in cases.values())
    assert {(case.launch, case.row["launch"]) for case in cases.values()} == {("process_per_gpu", "thread_per_gpu")}


@pytest.mark.slow
def test_the_page_is_what_the_command_writes(checkout: Path) -> None:
    spec = importlib.util.spec_from_file_location("outside", checkout / "validation" / "outside.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page(module.measured()) == module.PAGE.read_text(encoding="utf-8")
