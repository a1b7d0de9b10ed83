"""What the wheel carries and what the project promises about its own installation."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import commsim
from commsim.files import data_root

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SHIPPED: dict[str, str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
SCENARIOS = sorted((ROOT / "scenarios").rglob("*.yaml"))


def _compared(path: Path) -> Iterator[Path]:
    """The measured curves that a scenario file compares with, as paths relative to the checkout."""
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        named = document.get("compare") or []
        for entry in [named] if isinstance(named, str) else named:
            yield (path.parent / entry).resolve().relative_to(ROOT)


def _is_shipped(path: Path) -> bool:
    return any(str(folder) in SHIPPED for folder in (path, *path.parents))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.stem)
def test_every_curve_of_a_shipped_scenario_is_shipped(path: Path) -> None:
    for curve in _compared(path):
        assert (ROOT / curve).is_file(), f"{curve} is not in the checkout"
        assert _is_shipped(curve), f"{curve} is missing from force-include in pyproject.toml"


def test_scenarios_are_shipped_and_some_compare() -> None:
    assert SCENARIOS
    assert any(list(_compared(path)) for path in SCENARIOS)


def test_the_wheel_mirrors_the_checkout() -> None:
    for source, target in SHIPPED.items():
        assert target == f"commsim/data/{source}"
        assert (ROOT / source).exists(), f"{source} is named in pyproject.toml but not in the checkout"


def test_shipped_curves_have_their_index_row() -> None:
    folder = ROOT / "validation" / "measured"
    indexed = {
        line.split(",", 1)[0]
        for index in folder.glob("INDEX*.csv")
        if str(index.relative_to(ROOT)) in SHIPPED
        for line in index.read_text(encoding="utf-8").splitlines()
    }
    measured = [Path(s) for s in SHIPPED if s.startswith("validation/measured/")]
    curves = {path.stem for path in measured if "INDEX" not in path.name}
    assert curves
    assert curves <= indexed


def test_data_root_serves_a_checkout_and_a_wheel_alike() -> None:
    assert (data_root() / "scenarios" / "quickstart.yaml").is_file()
    assert any((data_root() / "topologies").glob("*.yaml"))


def test_version_stands_in_one_value() -> None:
    assert PROJECT["project"]["version"] == commsim.__version__


def test_the_changelog_has_a_short_line_for_each_change() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("## ")] == ["## 0.2.0 (unreleased)"]
    assert [line for line in lines if line.startswith("### ")] == ["### Added", "### Changed", "### Fixed"]
    assert not [line for line in lines if line.startswith("- ") and len(line.split()) > 26]  # the dash and 25 words
    assert not [line for line in lines if line.startswith(" ")]


def test_package_is_typed() -> None:
    assert (ROOT / "commsim" / "py.typed").is_file()


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def test_constraints_pin_everything_the_tests_install() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {_name(name) for name in pins}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *extras["dev"], *extras["docs"], *extras["measure"]]
    assert {_name(w) for w in wanted} - {"commsim"} <= pinned
    assert pins["torch"] == "2.13.0"
    assert not [name for name, version in pins.items() if "+" in version]
