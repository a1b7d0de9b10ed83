"""``key.path=value``: where it may go, how it is read, and that its faults name it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from commsim.document import apply_overrides, parse_documents, validate
from commsim.document.overrides import overridden
from commsim.errors import ScenarioError

(DOCUMENT,) = parse_documents("name: x\nplace: {nodes: 2}\nwork:\n  - {sizes: 8 B}\n", "f")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Place(Strict):
    nodes: int = Field(ge=1)


class Model(Strict):
    name: str
    place: Place
    work: list[dict[str, str]]


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("place.nodes=4", ("place", "nodes"), 4),
        ("work.0.sizes=8 B .. 8 GiB x2", ("work", 0, "sizes"), "8 B .. 8 GiB x2"),
        ("work.0={sizes: 1 MiB}", ("work", 0), {"sizes": "1 MiB"}),
        ("name=a=b", ("name",), "a=b"),
        ("new.key=true", ("new", "key"), True),
        ("name=", ("name",), None),
        ("place.tokens=300e9", ("place", "tokens"), 3e11),
        ("place.list=[a, b]", ("place", "list"), ["a", "b"]),
    ],
)
def test_set(override: str, path: tuple[str | int, ...], value: object) -> None:
    data = apply_overrides(DOCUMENT, [override]).data
    for key in path:
        data = data[key]
    assert data == value


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("foo", "override 'foo': found 'foo', expected key.path=value"),
        ("=3", "expected key.path=value"),
        ("a..b=3", "expected key.path=value"),
        ("name.x=1", "override 'name.x=1' name.x: found 'x' at name, expected a mapping to set 'x' in"),
        ("work.1.sizes=8 B", "found '1', expected an index 0..0 of work"),
        ("work.-1.sizes=8 B", "found '-1', expected an index 0..0 of work"),
        ("work.sizes=8 B", "found 'sizes', expected an index 0..0 of work"),
        ("place.nodes=[1e1]", "override 'place.nodes=[1e1]' place.nodes.0: found 1e1"),
        ("place=[1", "expected ',' or ']'"),
        ("name=*x", "name"),
        ("name=a\n--- b", "several documents"),
    ],
)
def test_refused(override: str, message: str) -> None:
    with pytest.raises(ScenarioError) as info:
        apply_overrides(DOCUMENT, [override])
    assert message in str(info.value)
    assert "override " in str(info.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("nmae=y", "override 'nmae=y' nmae: found the unknown key 'nmae', did you mean 'name'?"),
        ("plaec.nodes=3", "override 'plaec.nodes=3' plaec: found the unknown key 'plaec', did you mean 'place'?"),
        ("place.nodes=0", "override 'place.nodes=0' place.nodes: found 0, expected a whole number >= 1"),
        ("place={nodes: two}", "override 'place={nodes: two}' place.nodes: found 'two'"),
        ("place={}", "override 'place={}' place: found no key 'nodes'"),
    ],
)
def test_faults_name_the_override(override: str, message: str) -> None:
    with pytest.raises(ScenarioError) as info:
        validate(Model, apply_overrides(DOCUMENT, [override]))
    assert str(info.value).startswith(message)


def test_the_document_stays_as_it_is_and_the_last_override_counts() -> None:
    changed = apply_overrides(DOCUMENT, ["place.nodes=3", "place.nodes=5"])
    assert changed.data["place"]["nodes"] == 5
    assert DOCUMENT.data["place"]["nodes"] == 2


def test_all_faulty_overrides_at_once() -> None:
    with pytest.raises(ScenarioError) as info:
        apply_overrides(DOCUMENT, ["a", "b", "name.x=1"])
    assert len(info.value.faults) == 3


@given(st.text(max_size=40))
def test_any_text_is_applied_or_refused(text: str) -> None:
    for override in (text, f"name={text}", f"{text}=1", f"work.0.{text}"):
        try:
            apply_overrides(DOCUMENT, [override])
        except ScenarioError:
            continue


def test_a_command_has_no_override_twice() -> None:
    command = "commsim run all_reduce -n 4 'topology.faults=[{nic: [1, 3], failed: true}]' topology.nodes_per_leaf=1"
    assert overridden(command, "topology.faults=[]") == (
        "commsim run all_reduce -n 4 topology.nodes_per_leaf=1 topology.faults=[]"
    )
    assert overridden("commsim run FILE", "topology.nodes=2") == "commsim run FILE topology.nodes=2"
