"""Every file of ``tests/data/broken`` is refused with one screen that names the place, what was found and expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.errors import CommsimError
from commsim.scenario.load import load_scenarios
from commsim.scenario.setting import build_topology

BROKEN = Path(__file__).parent.parent / "data" / "broken"

# file -> (place after the file name, words of the message); no place where the fault is that of the whole file
CASES: dict[str, tuple[str, str]] = {
    "algorithm_with_nccl": (":5:55 workload.0.algorithm", "found algorithm tree with library nccl"),
    "alias_bomb": (":2:8 b.0", "found the alias *a, expected the value written out"),
    "bad_unit": (":2:62 topology.nic_bandwidth", "found the unit 'GT/s' in '400 GT/s', expected a bandwidth"),
    "bad_version": (":3:32 library.version", "found 2.26, expected an NCCL version"),
    "bandwidth_without_time": (":2:62 topology.nic_bandwidth", "did you mean 'Gb/s'? (b is a bit, B is a byte)"),
    "bare_bandwidth": (":2:52 topology.nic_bandwidth", "found the bare number 400, expected a bandwidth"),
    "bare_number": (":4:37 workload.0.sizes", "found the bare number 1048576, expected a size with its unit"),
    "base_60": (":1:7 name", "found 12:30:45, which some YAML readers take for a base-60 number"),
    "binary": (":1:8", "found a NUL byte at offset 7: a binary file, expected YAML text"),
    "bits_for_bytes": (":5:12 workload.0.sizes", "found the unit 'b' in '8 b', did you mean 'B'?"),
    "colon_in_value": (":1:13", "found ': ' inside a value, expected one 'key: value' a line"),
    "compare_not_a_list": (":6:10 compare", "found 'measured.csv', expected a list"),
    "control_character": (":1:10", "found the control character U+0007, expected YAML text"),
    "date": (":1:7 name", "found 2026-01-31, which some YAML readers take for a date; expected quotes"),
    "deep_block": (":34:65 topology.a.a.a", "nested more than 32 deep, expected fewer levels"),
    "deep_nesting": (":2:42 topology.0.0.0", "nested more than 32 deep, expected fewer levels"),
    "disconnected": (":3:3 topology", "gpu0 and gpu1 of a node are not connected"),
    "duplicate_key": (":6:1 topology", "found the key 'topology' twice (first on line 2), expected one"),
    "empty": (":1:1", "found an empty file, expected a mapping"),
    "exponent": (":2:44 topology.nodes", "found 1e2, which some YAML readers take for text; expected 1.0e+2"),
    "factor_of_one": (":4:37 workload.0.sizes", "found the factor 'x1' in '8 B .. 1 GiB x1'"),
    "fraction_of_a_node": (":2:44 topology.nodes", "found 1.5, expected a whole number >= 1"),
    "gbps_with_bytes": (":2:62 topology.nic_bandwidth", "found the unit 'GBps' in '50 GBps', did you mean 'GB/s'?"),
    "half_an_element": (":4:37 workload.0.sizes", "found 6 B, expected a multiple of 4 B"),
    "infinite": (":2:65 topology.oversubscription", "found .inf, expected a finite number"),
    "latin1": (":2:6", "found the byte 0xe9 at offset 18, expected UTF-8 text"),
    "link_to_nowhere": (":9:9 topology.node.links.1", "'cpu7' is not a vertex"),
    "list_at_top": (":1:1", "found a list of 2, expected a mapping"),
    "lower_case_unit": (":2:62 topology.nic_bandwidth", "did you mean 'GB/s' or 'Gb/s'?"),
    "many_faults": (":6:1 key0", "and 28 more"),
    "merge_key": (":3:12 topology", "found the merge key <<, expected the keys written out"),
    "missing_compare": (
        ":7:5 compare.0",
        "no_such_measurement.csv' beside the scenario, expected a measured table or log",
    ),
    "missing_topology_file": (
        ":2:18 topology.path",
        "no-such-machine.yaml' beside the scenario, expected a topology file",
    ),
    "nccl_tests_sizes": (":4:37 workload.0.sizes", "found the unit 'G' in '8G', did you mean 'GiB'"),
    "negative_bandwidth": (
        ":2:62 topology.nic_bandwidth",
        "found '-400 Gb/s', expected a bandwidth that is not negative",
    ),
    "nccl_number_in_words": (":3:47 library.env.NCCL_P2P_DISABLE", "found 'off', expected a whole number"),
    "no_for_false": (":6:16 report.plot", "found no, which some YAML readers take for false; expected true or false"),
    "no_sizes": (":4:5 workload.0", "found no key 'sizes', expected it"),
    "no_topology": (":1:1", "found no key 'topology', expected it"),
    "no_workload": (":3:11 workload", "found an empty list, expected at least 1"),
    "not_a_number": (":2:65 topology.oversubscription", "found .nan, expected a finite number"),
    "octal": (":2:44 topology.nodes", "found 010, which some YAML readers take for an octal number"),
    "only_comments": (":1:1", "found only comments, expected a mapping"),
    "open_bracket": (":3:9", "expected ',' or '}' to close the mapping (it begins on line 2)"),
    "open_quote": (":6:1", "expected the closing quote (it begins on line 1)"),
    "other_dtype": (":4:51 workload.0.dtype", "found 'half', did you mean 'float16'?"),
    "oversubscription_ratio": (":2:65 topology.oversubscription", "found 2:1, which some YAML readers take for"),
    "preset_and_path": (":2:11 topology", "found preset and path, expected one of them"),
    "protocol_without_library": (":5:54 workload.0.protocol", "found protocol LL with library none, expected it"),
    "python_tag": (":1:7 name", "found the tag !!python/object/apply:os.system, expected a plain value"),
    "quoted_number": (":2:44 topology.nodes", "found '8', expected a whole number >= 1"),
    "range_from_zero": (":4:37 workload.0.sizes", "found the first size 0 B in '0 B .. 1 GiB x2', expected"),
    "reversed_range": (":4:37 workload.0.sizes", "expected its first size not above its last"),
    "same_name_twice": (":7:7 name", "found the name 'broken' again (first on line 1), expected another"),
    "second_document": (":8:30 topology.nods", "found the unknown key 'nods', did you mean 'nodes'?"),
    "second_document_syntax": (":9:1", "found no value, expected one; is a bracket left open?"),
    "tab": (":3:1", "found a tab in the indentation, expected spaces"),
    "terminal_escape": (":2:20 topology.preset", "expected no control characters"),
    "text_at_top": (":1:1", "found 'all_reduce on hgx-h100', expected a mapping"),
    "too_many_gpus": (":2:45 topology.gpus_per_node", "found 9, but a node has 8 GPUs"),
    "too_many_sizes": (":4:37 workload.0.sizes", "found 268,435,456 sizes in '4 B .. 1 GiB +4 B', expected"),
    "topology_without_source": (":2:11 topology", "expected a preset, a path, or a machine"),
    "uneven_indentation": (":5:4", "expected "),
    "unknown_collective": (":4:18 workload.0.collective", "found 'allreduce', did you mean 'all_reduce'?"),
    "unknown_engine": (":3:9 engine", "found 'closed-form', did you mean 'closed_form'?"),
    "unknown_key": (":3:1 worklod", "found the unknown key 'worklod', did you mean 'workload'?"),
    "unknown_library": (":3:10 library", "found 'ncll', did you mean 'nccl'?"),
    "unknown_nccl_algo": (":3:40 library.env.NCCL_ALGO", "found 'Rign', did you mean 'Ring'?"),
    "unknown_nccl_level": (":3:45 library.env.NCCL_P2P_LEVEL", "found 'far', expected one of LOC, NVL"),
    "unknown_nested_key": (":4:30 workload.0.size", "found the unknown key 'size', did you mean 'sizes'?"),
    "unknown_preset": (":2:20 topology.preset", "found the unknown preset 'hgx-h1000', did you mean 'hgx-h100'?"),
    "unknown_protocol": (":4:54 workload.0.protocol", "found 'LL12', did you mean 'LL128'?"),
    "utf16": (":1:1", "found UTF-16 text, expected UTF-8"),
    "very_long_key": (":6:1 kkkk", "found the unknown key 'kkkk"),
    "very_long_value": (":2:20 topology.preset", "found 'xxxx"),
    "wrong_type": (":2:44 topology.nodes", "found 'sixty', expected a whole number >= 1"),
    "yes_as_text": (":6:16 report.plot", "found 'yes', expected true or false"),
    "zero_nodes": (":4:10 topology.nodes", "found 0, expected a whole number >= 1"),
    "zero_ranks": (":2:45 topology.gpus_per_node", "found 0, expected a whole number >= 1"),
}


def load(path: Path) -> None:
    for scenario in load_scenarios(path):
        build_topology(scenario)


def refusal(path: Path) -> str:
    with pytest.raises(CommsimError) as info:
        load(path)
    return str(info.value)


def check_one_screen(message: str) -> None:
    """At most 24 lines of a terminal 80 columns wide, plain text, no words of our machinery."""
    assert sum(1 + len(line) // 80 for line in message.splitlines()) <= 40
    assert len(message.splitlines()) <= 24
    assert all(line.isprintable() for line in message.splitlines())
    for word in ("Traceback", "pydantic", "Input should", "yaml.", "object at 0x"):
        assert word not in message


@pytest.mark.parametrize("name", sorted(CASES))
def test_broken(name: str) -> None:
    place, words = CASES[name]
    message = refusal(BROKEN / f"{name}.yaml")
    lines = [line for line in message.splitlines() if f"{name}.yaml{place}" in line]
    assert lines, message
    assert words in message
    check_one_screen(message)


def test_every_broken_file_has_a_case() -> None:
    assert {p.stem for p in BROKEN.glob("*")} == set(CASES)


def test_a_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path).endswith(": found a folder, expected a file")


def test_ten_megabytes_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.yaml"
    path.write_bytes(b"name: big\n" * 1_000_000)
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("read a file that is too large"))
    assert "found 10,000,000 bytes, expected a text file of at most 1 MiB" in refusal(path)


def test_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "allreduce.yaml").write_text("name: x\n")
    message = refusal(tmp_path / "allreduce.yml")
    assert "found no such file, did you mean" in message
    assert "allreduce.yaml" in message


def test_a_folder_to_compare_with_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: x\ntopology: {preset: hgx-h100}\nworkload: [{collective: all_reduce}]\ncompare: [gone/, a\\b]\n"
    )
    assert len(refusal(path).splitlines()) == 2
