"""Models from documents: places, suggestions, unions and strictness."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from commsim.document import located, parse_documents, validate
from commsim.errors import ScenarioError
from commsim.fields import Bandwidth


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Preset(Strict):
    preset: str
    nodes: int = Field(1, ge=1)
    rate: Bandwidth = 1.0


class File(Strict):
    path: str


class Cat(Strict):
    kind: Literal["cat"]
    lives: int


class Dog(Strict):
    kind: Literal["dog"]
    legs: int


class Item(Strict):
    what: Literal["all_reduce", "all_gather"]
    sizes: str | list[str] = "x"


class Tune(Strict):
    kind: Literal["lora", "qlora"] = Field(description="`lora` or `qlora` (a 4-bit base); of the ranks")


class Model(Strict):
    name: str
    place: Preset | File
    items: list[Item] = Field(default=[], max_length=3)
    env: dict[str, int] = {}
    share: float = Field(0.5, gt=0, le=1)
    flag: bool = False
    tune: Tune | None = None
    pair: tuple[int, int] | None = None
    port: tuple[int, int] | None = Field(default=None, description="`[node, index]`; of a card")
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None

    @model_validator(mode="after")
    def _env(self) -> Model:
        if "bad" in self.env:
            raise located((("env", "bad"), "found bad"), (("name",), "found a name"))
        if "worse" in self.env:
            raise ValueError("worse\nby far")
        return self


GOOD = "name: x\nplace: {preset: p}\n"


def faults(text: str) -> list[str]:
    (document,) = parse_documents(text, "f")
    with pytest.raises(ScenarioError) as info:
        validate(Model, document)
    return str(info.value).splitlines()


def test_a_good_document() -> None:
    (document,) = parse_documents(GOOD + "share: 1\npet: {kind: cat, lives: 9}\n", "f")
    model = validate(Model, document)
    assert model.share == 1.0
    assert model.pet == Cat(kind="cat", lives=9)


def test_validating_below() -> None:
    (document,) = parse_documents("a:\n  - {preset: p, nodes: 0}\n", "f")
    with pytest.raises(ScenarioError, match=r"f:2:24 a\.0\.nodes: found 0, expected a whole number >= 1"):
        validate(Preset, document, at=("a", 0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nmae: y\n", "f:3:1 nmae: found the unknown key 'nmae', did you mean 'name'?"),
        ("zzz: y\n", "f:3:1 zzz: found the unknown key 'zzz', expected one of name, place, items"),
        ("items: [{what: all_reduc}]\n", "f:3:16 items.0.what: found 'all_reduc', did you mean 'all_reduce'?"),
        ("items: [{what: 7}]\n", "f:3:16 items.0.what: found 7, expected one of all_reduce, all_gather"),
        ("items: [{}]\n", "f:3:9 items.0: found no key 'what', expected it with one of all_reduce, all_gather"),
        ("items: [{what: all_reduce, sizes: 7}]\n", "items.0.sizes: found 7, expected text or a list"),
        ("items: [1, 2, 3, 4]\n", "items: found a list of 4, expected at most 3 items"),
        ("items: 3\n", "f:3:8 items: found 3, expected a list"),
        ("flag: 'true'\n", "f:3:7 flag: found 'true', expected true or false"),
        ("flag: 1\n", "flag: found 1, expected true or false"),
        ("share: 0\n", "f:3:8 share: found 0, expected a number > 0"),
        ("share: many\n", "share: found 'many', expected a number > 0 and <= 1"),
        ("env: {A: '1'}\n", "f:3:10 env.A: found '1', expected a whole number"),
        ("env: {A: 1.5}\n", "env.A: found 1.5, expected a whole number"),
        ("env: {bad: 1}\n", "f:3:12 env.bad: found bad"),
        ("env: {worse: 1}\n", "f:1:1: worse by far"),
        ("pet: {kind: cta, lives: 1}\n", "did you mean 'cat'?"),
        ("pet: {lives: 1}\n", "pet: found a mapping with lives, expected a mapping with the key 'kind'"),
        ("tune: {}\n", "f:3:7 tune: found no key 'kind', expected it with lora or qlora (a 4-bit base)"),
        ("pair: [1]\n", "f:3:7 pair: found a list of 1, expected at least 2 items"),
        ("port: []\n", "f:3:7 port: found a list of 0, expected [node, index]"),
        ("port: [1, x]\n", "f:3:11 port.1: found 'x', expected a whole number"),
        ("pet: {kind: dog}\n", "pet: found no key 'legs', expected it with a whole number"),
        ("pet: {kind: dog, lgs: 4, legs: 4}\n", "pet.lgs: found the unknown key 'lgs', did you mean 'legs'?"),
    ],
)
def test_messages(text: str, message: str) -> None:
    assert any(message in line for line in faults(GOOD + text)), faults(GOOD + text)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("{preset: p, ndoes: 2}", "place.ndoes: found the unknown key 'ndoes', did you mean 'nodes'?"),
        ("{preset: p, nodes: two}", "place.nodes: found 'two', expected a whole number >= 1"),
        ("{path: p, nodes: 2}", "place.nodes: found the unknown key 'nodes', expected path"),
        ("{preset: p, rate: 5}", "place.rate: found the bare number 5"),
        ("7", "place: found 7, expected a mapping of keys and values"),
        ("[]", "place: found an empty list, expected a mapping of keys and values"),
    ],
)
def test_a_union_reports_the_branch_that_was_meant(place: str, message: str) -> None:
    found = faults(f"name: x\nplace: {place}\n")
    assert len(found) == 1
    assert message in found[0]


def test_every_fault_at_once() -> None:
    found = faults("name: 5\nplace: {preset: p, nodes: 0}\nitems: [{what: x}]\nflag: 2\nextra: 1\n")
    assert len(found) == 5


def test_one_validator_may_report_several_places() -> None:
    assert faults(GOOD + "env: {bad: 1}\n") == ["f:1:7 name: found a name", "f:3:12 env.bad: found bad"]


def test_messages_do_not_steer_the_terminal() -> None:
    text = "\n".join(faults(GOOD + "'\u202e': 1\n"))
    assert "\u202e" not in text


def test_no_pydantic_words() -> None:
    text = "\n".join(faults("items: {a: 1}\nenv: []\nshare: x\npet: 3\nplace: null\n"))
    for word in ("pydantic", "Input should", "https://", "extra_forbidden", "model_type"):
        assert word not in text
