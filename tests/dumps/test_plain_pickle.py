"""Pickles of strangers: what is plain comes back equal, all else is refused by name and place and never executed."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.dumps.plain_pickle import PickleFaultError, load_plain
from study.dump_mutants import pickles_that_run

_ATOMS = (
    st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | st.text() | st.binary()
)
_PLAIN = st.recursive(
    _ATOMS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=5)
    ),
    max_leaves=30,
)


@given(_PLAIN, st.integers(3, 5))
def test_plain_values_come_back(value: object, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == value


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=4)), st.integers(0, 5)
)
def test_the_same_as_pythons_own(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert load_plain(data) == pickle.loads(data)


def test_what_refers_to_itself() -> None:
    value: list[object] = [1]
    value.append(value)
    back = load_plain(pickle.dumps(value, 2))
    assert back[1] is back


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80\x02cos\nsystem\n(S'true'\ntR.", r"byte 2: found the opcode GLOBAL 'os system'"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93)R.", r"byte 14: found the opcode STACK_GLOBAL 'os system'"),
        (b"\x80\x02N)R.", r"byte 4: found the opcode REDUCE"),
        (b"\x80\x02N)\x81.", r"byte 4: found the opcode NEWOBJ"),
        (b"\x80\x02\x82\x01.", r"byte 2: found the opcode EXT1"),
        (b"\x80\x02}}b.", r"byte 4: found the opcode BUILD"),
        (b"\x80\x02Pid\n.", r"byte 2: found the opcode PERSID"),
        (b"\x80\x05\x97.", r"byte 2: found the opcode NEXT_BUFFER"),
        (b"\x80\x02]", r"the file ends within the pickle|exhausted"),
        (b"\x80\x02.", r"byte 2: found no sound pickle"),
        (b"\x80\x02NN.", r"values are left over"),
        (b"\x80\x02Na.", r"found no sound pickle"),
        (b"\x80\x02N]a.", r"items for what is no list"),
        (b"\x80\x02}(]Nu.", r"a key that is no text"),
        (b"\x80\x02}(Nu.", r"pairs for what is no dict"),
        (b"\x80\x02(.", r"a mark where a value belongs"),
        (b"\x80\x02h\x07.", r"found no sound pickle"),
        (b"\x80\x02\x8a\x40" + b"\x7f" * 64 + b".", r"found an integer of 511 bits"),
        (b"S'\\J'\n.", "no sound pickle"),
    ],
)
def test_refused_by_name_and_place(data: bytes, says: str) -> None:
    with pytest.raises(PickleFaultError, match=says):
        load_plain(data)


def test_nothing_is_executed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    refused = 0
    for _, data in pickles_that_run(canary):
        try:
            load_plain(data)
        except PickleFaultError:
            refused += 1
    assert refused >= 30
    assert not canary.exists()


def test_the_canary_can_sing(tmp_path: Path) -> None:
    """Python's own unpickler does run what these pickles hold: the test above could fail."""
    canary = tmp_path / "canary"
    pickle.loads(dict(pickles_that_run(canary))["call-2"])
    assert canary.exists()


def test_a_memo_at_a_far_place_takes_no_room() -> None:
    assert load_plain(b"\x80\x02Nr\xff\xff\xff\x7f.") is None


def test_too_many_opcodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commsim.dumps.plain_pickle.MOST_OPCODES", 100)
    with pytest.raises(PickleFaultError, match="more than 100 opcodes"):
        load_plain(pickle.dumps(["a"] * 100, 2))
