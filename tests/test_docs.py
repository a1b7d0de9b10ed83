"""What the documentation says works: links, commands, options, scenario files, and every example."""

from __future__ import annotations

import doctest
import importlib
import json
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import console
import examples
import pytest
import typer.main

import commsim
from commsim.cli import app
from commsim.doctor.cluster_file import cluster_schema
from commsim.errors import ScenarioError
from commsim.planner.serving_question import plan_schema
from commsim.planner.sweep import read_sweep
from commsim.scenario.json_schema import scenario_schema, sweep_schema
from commsim.scenario.load import find_scenario, load_scenarios
from commsim.scenario.setting import build_topology

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
MODULES = sorted(m.name for m in pkgutil.walk_packages(commsim.__path__, "commsim.") if "__main__" not in m.name)
EXAMPLE_OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def _title(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _blocks(page: Path, *languages: str) -> Iterator[str]:
    for language, body in _FENCE.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield body


def _shell_lines(page: Path) -> Iterator[str]:
    """The lines of commands shown on a page, continued ones joined; of a console block those with a prompt alone."""
    for body in _blocks(page, "sh", "bash"):
        yield from body.replace("\\\n", " ").splitlines()
    for body in _blocks(page, "console"):
        for command in console.commands(body):
            yield command.script.replace("\\\n", " ").splitlines()[0]


def _commands(page: Path) -> Iterator[list[str]]:
    """The words of each shell command shown on a page, without comments and redirections."""
    for line in _shell_lines(page):
        words = shlex.split(line.removeprefix("$ "), comments=True)
        stop = next((i for i, w in enumerate(words) if w in {">", "|", ">>", "2>", "&&"}), len(words))
        if words:
            yield words[:stop]


@pytest.mark.parametrize("page", PAGES, ids=_title)
def test_relative_links_resolve(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in _LINK.findall(text):
        if re.match(r"[a-z]+:|#", target):
            continue
        assert (page.parent / target.split("#")[0]).exists(), f"{_title(page)} links to {target}"


_FOLDERS = "commsim|validation|tests|scenarios|topologies|benchmarks|docs"
_PATH = re.compile(
    rf"`((?:{_FOLDERS})/[\w./-]+|(?:{'|'.join(sorted({m.split('.')[1] for m in MODULES}))})/[\w/]+\.py)`"
)
_TO_BE_WRITTEN = {"commsim/collectives/leaders.py", "commsim/nccl/networks/omnipath.yaml"}
"""By who follows the guide on extending the program."""


@pytest.mark.parametrize("page", [*PAGES, ROOT / "validation" / "evidence.md"], ids=_title)
def test_files_named_exist(page: Path) -> None:
    named = {*_PATH.findall(page.read_text(encoding="utf-8"))} - _TO_BE_WRITTEN
    assert not [name for name in named if not any((base / name).exists() for base in (ROOT, ROOT / "commsim"))]


def _options(command: Any) -> set[str]:
    return {
        name
        for parameter in command.params
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
    }


def _check_command(words: list[str]) -> None:
    """Walk down the sub-commands and compare each option with those the command has."""
    command: Any = typer.main.get_command(app)  # typer carries its own copy of click, so no click types here
    rest = words[1:]
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"{' '.join(words)}: no command {rest[0]!r}"
        command, rest = command.commands[rest[0]], rest[1:]
    for word in rest:
        if word.startswith("-"):
            assert word.split("=")[0] in _options(command) | {"--help"}, f"{' '.join(words)}: no option {word!r}"
        elif word.startswith(("scenarios/", "topologies/", "validation/", "tests/")) and not re.search(
            r"[*?\[{]", word
        ):
            assert (ROOT / word).exists(), f"{' '.join(words)}: no file {word!r}"


@pytest.mark.parametrize("page", PAGES, ids=_title)
def test_commands_shown_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for words in _commands(page):
        if words[0] == "commsim" or words[0].endswith("/commsim"):
            _check_command(words)
        elif words[0] == "make":
            assert {w for w in words[1:] if "=" not in w} <= targets, " ".join(words)


@pytest.mark.parametrize("page", PAGES, ids=_title)
def test_sweeps_of_a_page_do_not_meet_in_a_folder(page: Path) -> None:
    sweeps = [words for words in _commands(page) if words[:2] == ["commsim", "sweep"] and "--dry-run" not in words]
    asked: dict[str, str] = {}
    for words in sweeps:
        out = words[words.index("--out") + 1] if "--out" in words else Path(words[2]).stem
        assert asked.setdefault(out, words[2]) == words[2], f"{_title(page)}: {out}"


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=_title)
def test_what_is_installed_is_installed_from_the_clone(page: Path) -> None:
    assert "pip install 'commsim" not in page.read_text(encoding="utf-8")


def test_the_readme_shows_its_two_commands() -> None:
    shown = list(_commands(ROOT / "README.md"))
    assert ["make", "run"] in shown
    assert ["make", "test"] in shown


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    for page in (ROOT / "docs").rglob("*.md"):
        assert page.relative_to(ROOT / "docs").as_posix() in navigation


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=EXAMPLE_OPTIONS)
    assert failed == 0


# Pages of `make examples` have a test of their own.
CODE = [p for p in PAGES if any(_blocks(p, "python", "pycon")) and p not in examples.EXECUTED]


@pytest.mark.parametrize("page", CODE, ids=_title)
def test_page_examples_run(page: Path) -> None:
    source = "\n".join(_blocks(page, "python", "pycon"))
    example = doctest.DocTestParser().get_doctest(source, {}, _title(page), str(page), 0)
    assert doctest.DocTestRunner(optionflags=EXAMPLE_OPTIONS).run(example).failed == 0


SCRIPTS = [
    pytest.param(body, id=f"{_title(page)}-{i}")
    for page in PAGES
    for i, body in enumerate(_blocks(page, "python"))
    if "import " in body and ">>>" not in body
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_shown_run(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(script, "<page>", "exec"), {})


def _shipped(name: str) -> Path | None:
    """The file of a shipped scenario, None for one of the reader's own."""
    try:
        path = find_scenario(name)
    except ScenarioError:
        return None
    return path if path.is_file() else None


ASKED = sorted(
    {
        (words[2], *(w for w in words[3:] if "=" in w and not w.startswith(("-", "params="))))
        for page in PAGES
        for words in _commands(page)
        if words[:2] in (["commsim", "run"], ["commsim", "explain"]) and _shipped(words[2])
    }
)


@pytest.mark.parametrize("words", ASKED, ids=" ".join)
def test_scenarios_shown_load_with_their_changes(words: tuple[str, ...]) -> None:
    path = _shipped(words[0])
    assert path is not None
    for scenario in load_scenarios(path, words[1:]):
        build_topology(scenario)


def _yaml_scenarios(page: Path) -> Iterator[str]:
    for body in _blocks(page, "yaml"):
        if re.search(r"^workload:", body, re.MULTILINE) and re.search(r"^topology:", body, re.MULTILINE):
            yield body


@pytest.mark.parametrize("page", [p for p in PAGES if any(_yaml_scenarios(p))], ids=_title)
def test_scenarios_shown_load(page: Path, tmp_path: Path) -> None:
    """A scenario printed on a page is a scenario that loads."""
    folder = tmp_path / "scenarios"  # a `compare:` path is relative to the file
    folder.mkdir()
    (tmp_path / "validation").symlink_to(ROOT / "validation")
    for body in _blocks(page, "yaml"):
        console.write_file(body, folder)  # a topology of the reader's own, beside the scenario
    for number, body in enumerate(_yaml_scenarios(page)):
        path = folder / f"shown-{number}.yaml"
        path.write_text(body, encoding="utf-8")
        if re.search(r"^sweep:", body, re.MULTILINE):
            assert list(read_sweep(path).points())
        else:
            assert load_scenarios(path, [])


def test_the_schemas_are_current() -> None:
    """If this fails: make schema."""
    makers = {"scenario": scenario_schema, "sweep": sweep_schema, "plan": plan_schema, "cluster": cluster_schema}
    for name, maker in makers.items():
        text = (ROOT / "docs" / "reference" / f"{name}.schema.json").read_text(encoding="utf-8")
        assert json.loads(text) == maker(), "run `make schema`"
