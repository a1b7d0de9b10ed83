"""YAML text to documents: places, limits, and everything that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from commsim.document import Document, parse_documents, read_documents, reading
from commsim.errors import LogFormatError, ScenarioError


@pytest.fixture(params=["libyaml", "pure"], autouse=True)
def _loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test with libyaml where PyYAML has it, and with the pure Python reader."""
    if request.param == "pure":
        monkeypatch.setattr(reading, "_LOADER", yaml.SafeLoader)


def one(text: str) -> Document:
    (document,) = parse_documents(text, "f.yaml")
    return document


def refusal(text: str) -> str:
    with pytest.raises(ScenarioError) as info:
        parse_documents(text, "f.yaml")
    return str(info.value)


def test_values_and_places() -> None:
    document = one("a: 1\nb:\n  - x\n  - {c: 2.5, d: true, e: ~}\n")
    assert document.data == {"a": 1, "b": ["x", {"c": 2.5, "d": True, "e": None}]}
    assert document.marks["b", 1, "c"] == (4, 9)
    assert document.key_marks["b", 1, "c"] == (4, 6)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("null", None),
        ("-3", -3),
        ("0", 0),
        ("2.5", 2.5),
        (".5", 0.5),
        ("1.0e+9", 1e9),
        ("'no'", "no"),
        ('"010"', "010"),
        ("2.26.2", "2.26.2"),
        ("400 Gb/s", "400 Gb/s"),
        ("8 B .. 8 GiB x2", "8 B .. 8 GiB x2"),
        ("nodes", "nodes"),
        ("inform", "inform"),
    ],
)
def test_scalars(text: str, value: object) -> None:
    found = one(f"a: {text}\n").data["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no", "take for false; expected true or false"),
        ("On", "take for true; expected true or false"),
        ("True", "expected true"),
        ("NULL", "expected null"),
        ("1e9", "expected 1.0e+9"),
        ("1.5e-6", ""),
        ("010", "octal"),
        ("0x1F", "expected a decimal number"),
        ("1_000", "without underscores"),
        ("12:30:45", "base-60"),
        ("2026-01-31", "a date"),
        (".inf", "finite"),
        ("NaN", "finite"),
        ("1.0e+999", "finite"),
        ("9" * 5000, "5000 digits"),
    ],
)
def test_surprising_scalars_are_refused(text: str, message: str) -> None:
    if not message:
        assert isinstance(one(f"a: {text}\n").data["a"], float)
        return
    found = refusal(f"a: {text}\n")
    assert found.startswith("f.yaml:1:4 a: found ")
    assert message in found
    assert one(f"a: '{text}'\n").data["a"] == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1 a: found the key 'a' twice (first on line 1)"),
        ("a: &x 1\n", "f.yaml:1:4 a: found the anchor &x"),
        ("a: &x 1\nb: *x\n", "f.yaml:2:4 b: found the alias *x"),
        ("a: !!int 1\n", "f.yaml:1:4 a: found the tag !!int"),
        ("a: !!python/object/apply:os.system [x]\n", "found the tag !!python/object/apply:os.system"),
        ("<<: {a: 1}\n", "found the merge key <<"),
        ("? [a]\n: 1\n", "found a mapping or list as a key"),
        ("'': 1\n", "found an empty key"),
        ("a: [1, 2\nb: 3\n", "expected ',' or ']' to close the list (it begins on line 1)"),
        ("a:\n\tb: 1\n", "f.yaml:2:1: found a tab in the indentation, expected spaces"),
        ("a: b: c\n", "f.yaml:1:5: found ': ' inside a value"),
        ("a: 'b\n", "expected the closing quote"),
        ("a: 1\nb\nc: 2\n", "found a line without ':'"),
        ("a: [\n", "is a bracket left open?"),
        ("a: @b\n", "found the character '@', expected it inside quotes"),
        ("a: \x07\n", "f.yaml:1:4: found the control character U+0007"),
        ('a: "\\0"\n', "expected no control characters"),
        ("", "found an empty file"),
        ("# nothing\n", "found only comments"),
        ("---\n---\n", "found only comments"),
    ],
)
def test_refused(text: str, message: str) -> None:
    assert message in refusal(text)


def test_all_faults_at_once_in_file_order() -> None:
    lines = refusal("a: no\nb: 010\nc: 1\nc: 2\n").splitlines()
    assert [line.split()[0] for line in lines] == ["f.yaml:1:4", "f.yaml:2:4", "f.yaml:4:1"]


def test_the_first_of_two_equal_keys_counts_nothing_silently() -> None:
    documents, faults = reading.compose_documents("a: 1\na: 2\n", "f.yaml")
    assert documents[0].data == {"a": 1}
    assert len(faults) == 1


@pytest.mark.parametrize("text", ["[" * 100_000, "{" * 10_000, "- " * 10_000, "{a: " * 10_000, "? " * 10_000])
def test_deep_nesting_is_a_message(text: str) -> None:
    assert "nested more than 32 deep" in refusal(text)


def test_thirty_levels_are_read() -> None:
    assert one("a: " + "[" * 30 + "]" * 30).data


def test_too_many_values() -> None:
    assert "more than 100,000 values" in refusal("[" + "1," * 100_001 + "]")


def test_many_faults_fit_one_screen() -> None:
    lines = refusal("".join(f"k{i}: no\n" for i in range(500))).splitlines()
    assert len(lines) <= 20
    assert lines[-1].endswith("and 488 more")


def test_documents_keep_their_lines_and_empty_ones_are_left_out() -> None:
    first, second = parse_documents("a: 1\n---\n---\nb: 2\n...\n", "f.yaml")
    assert first.data == {"a": 1}
    assert second.marks["b",] == (4, 4)


def test_files(tmp_path: Path) -> None:
    def found(name: str, raw: bytes | None) -> str:
        path = tmp_path / name
        if raw is not None:
            path.write_bytes(raw)
        with pytest.raises(ScenarioError) as info:
            read_documents(path)
        return str(info.value)

    assert "found a folder, expected a file" in found(".", None)
    assert "found 10,000,000 bytes, expected a text file of at most 1 MiB" in found("big.yaml", b" " * 10_000_000)
    assert found("bin.yaml", b"a: 1\nb: \0").endswith(
        "bin.yaml:2:4: found a NUL byte at offset 8: a binary file, expected YAML text"
    )
    assert "2:4: found the byte 0xe9 at offset 8, expected UTF-8" in found("latin.yaml", b"a: 1\nb: \xe9\n")
    assert "2:5: found the byte 0xe9" in found("mixed.yaml", "a: 1\nb: é".encode() + b"\xe9\n")
    assert "UTF-16" in found("utf16.yaml", "a: 1".encode("utf-16"))
    assert f"did you mean {str(tmp_path / 'latin.yaml')!r}?" in found("latni.yaml", None)
    assert "the folder" in found("nowhere/a.yaml", None)
    assert "cannot be read" in found("x" * 5000, None)
    assert "cannot be read" in found("a\0b", None)


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_documents(path)[0].data == {"a": 1}


def test_the_error_is_the_callers() -> None:
    with pytest.raises(LogFormatError):
        parse_documents("a: no", "f", error=LogFormatError)
