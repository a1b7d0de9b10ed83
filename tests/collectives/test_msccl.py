"""MSCCL XML both ways: fixtures by hand, published files, what is refused and why, and mutated text."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.collectives import registry
from commsim.collectives.canonical import same_schedule
from commsim.collectives.check import check
from commsim.collectives.msccl import load_msccl, parse_msccl
from commsim.collectives.msccl_export import msccl_text
from commsim.collectives.msccl_xml import MOST_BYTES
from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.errors import ScheduleError

_CHECKOUT = Path(__file__).resolve().parents[2]
_OWN = _CHECKOUT / "tests" / "data" / "msccl"
_SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", _CHECKOUT.parent / "shared" / "data")) / "msccl"
_PUBLISHED = sorted(_SHARED.glob("*.xml"))
_RING = (_OWN / "ring_3.xml").read_text(encoding="utf-8")
_EXCHANGE = (_OWN / "exchange_2.xml").read_text(encoding="utf-8")


def step(kind: str, src: tuple[str, int] = ("i", 0), dst: tuple[str, int] = ("i", 0), cnt: int = 1, **more: int) -> str:
    """One step without its number; ``wait=(block, step)`` and ``told`` are given as depid, deps and hasdep."""
    wait = {"depid": -1, "deps": -1, "hasdep": 0} | more
    waits = " ".join(f'{name}="{value}"' for name, value in wait.items())
    return (
        f'<step s="?" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1]}" dstbuf="{dst[0]}" dstoff="{dst[1]}" '
        f'cnt="{cnt}" {waits}/>'
    )


Block = tuple[int, int, list[str]]


def algo(gpus: list[list[Block]], coll: str = "allreduce", chunks: int = 2, inplace: int = 1, **more: object) -> str:
    """A file of thread blocks (send, recv, steps), one element per line."""
    attributes = {"name": "t", "proto": "LL", "nchannels": 1, "nchunksperloop": chunks, "ngpus": len(gpus)}
    attributes |= {"coll": coll, "inplace": inplace, "outofplace": 1 - inplace, "minBytes": 0, "maxBytes": 0} | more
    lines = ["<algo " + " ".join(f'{name}="{value}"' for name, value in attributes.items()) + ">"]
    for rank, blocks in enumerate(gpus):
        block = chunks // len(gpus)
        inside = block if coll in {"allgather", "gather"} else chunks
        outside = block if coll in {"reducescatter", "scatter"} else chunks
        lines.append(f'<gpu id="{rank}" i_chunks="{inside}" o_chunks="{outside}" s_chunks="{chunks}">')
        for number, (send, recv, steps) in enumerate(blocks):
            lines.append(f'<tb id="{number}" send="{send}" recv="{recv}" chan="0">')
            lines += [text.replace('s="?"', f's="{place}"') for place, text in enumerate(steps)]
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


@pytest.mark.parametrize("path", sorted(_OWN.glob("*_[23].xml")), ids=lambda p: p.stem)
def test_files_by_hand_are_correct(path: Path) -> None:
    check(load_msccl(path))


def test_the_ring_by_hand_is_our_ring() -> None:
    """Its blocks are numbered by where they start, ours by who owns them: one rank back."""
    read = load_msccl(_OWN / "ring_3.xml", nbytes=300)
    ours = ring_all_reduce(3, 300)
    assert read.rows == ours.rows
    assert read.steps == ours.steps == 4
    assert read.sent_bytes().tolist() == ours.sent_bytes().tolist() == [400, 400, 400]
    again = read.take(np.arange(read.rows), src_chunk=(read.src_chunk + 2) % 3, dst_chunk=(read.dst_chunk + 2) % 3)
    assert same_schedule(again, ours)


def test_an_exchange_through_scratch() -> None:
    s = load_msccl(_OWN / "exchange_2.xml")
    assert (s.collective, s.in_place, s.nbytes) == ("all_reduce", True, 4096)
    assert s.step.tolist() == [0] * 4 + [1] * 4
    assert set(s.dst_buffer[:4].tolist()) == {Buffer.SCRATCH}
    assert s.op[4:].tolist() == [Op.REDUCE] * 4
    arrived = {(int(a), int(b)) for a, b in s.after}
    assert arrived == {(a, b) for b in range(4, 8) for a in range(4) if s.dst[a] == s.src[b]}


def test_an_out_of_place_gather_lies_at_its_block() -> None:
    s = load_msccl(_OWN / "gather_2.xml", nbytes=64)
    assert not s.in_place
    assert s.steps == 1
    one = s.src == 1
    assert s.src_chunk[one].tolist() == [2, 3] * 2
    assert set(s.src_buffer.tolist()) == {Buffer.INPUT}


@pytest.mark.skipif(not _PUBLISHED, reason="the published MSCCL files are not beside the checkout")
@pytest.mark.parametrize("path", _PUBLISHED, ids=lambda p: p.stem)
def test_a_published_file_loads_and_is_correct(path: Path) -> None:
    s = load_msccl(path)
    check(s)
    n = s.world_size
    sent = s.sent_bytes()
    if s.collective in {"all_gather", "all_to_all"}:
        assert sent.tolist() == [s.nbytes * (n - 1) // n] * n
    elif "1pass" in path.name:
        assert sent.tolist() == [s.nbytes * (n - 1)] * n
    else:
        assert int(sent.sum()) == 2 * (n - 1) * s.nbytes


@pytest.mark.skipif(not _PUBLISHED, reason="the published MSCCL files are not beside the checkout")
@pytest.mark.parametrize("path", _PUBLISHED[::3], ids=lambda p: p.stem)
def test_a_published_file_survives_export(path: Path) -> None:
    s = load_msccl(path)
    assert same_schedule(s, parse_msccl(msccl_text(s), s.nbytes))


def build(collective: str, algorithm: str, n: int, **more: Any) -> Schedule:
    parts = more.get("channels", 1) * more.get("chunks", 1)
    return registry.build(collective, algorithm, n, 4 * n * n * parts, **more)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("all_reduce", "tree"),
        ("all_reduce", "direct_one_shot"),
        ("all_reduce", "direct_two_shot"),
        ("all_reduce", "recursive_doubling"),
        ("all_gather", "bruck"),
        ("reduce_scatter", "ring"),
        ("all_to_all", "direct"),
        ("all_to_all", "bruck"),
    ],
)
def test_export_reads_back_the_same(collective: str, algorithm: str, n: int) -> None:
    s = build(collective, algorithm, n, channels=2, chunks=2)
    back = parse_msccl(msccl_text(s), s.nbytes)
    check(back)
    assert same_schedule(s, back)


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [("broadcast", "chain"), ("reduce", "binomial"), ("gather", "flat"), ("scatter", "binomial")],
)
def test_export_keeps_the_root(collective: str, algorithm: str) -> None:
    s = build(collective, algorithm, 5, root=3)
    text = msccl_text(s)
    assert same_schedule(s, parse_msccl(text, s.nbytes))
    if algorithm != "binomial" or collective in {"scatter", "broadcast"}:
        assert parse_msccl(text.replace(' root="3"', ""), s.nbytes).root == 3


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("key", registry.names(), ids="-".join)
def test_every_algorithm_exports_or_says_why_not(key: tuple[str, str], n: int) -> None:
    s = registry.build(*key, n, 48 * n * n * 60)
    try:
        text = msccl_text(s)
    except ScheduleError as error:
        assert re.search("switches|knows no|equal ones", str(error))  # noqa: PT017
        return
    back = parse_msccl(text, s.nbytes)
    check(back)
    assert same_schedule(s, back)


def test_a_ring_is_one_thread_block_per_rank() -> None:
    text = msccl_text(build("all_reduce", "ring", 4))
    assert text.count("<tb ") == 4
    kinds = re.findall(r'type="(\w+)"', text)
    assert kinds[:7] == ["s", "rrcs", "rrcs", "rrcs", "rcs", "rcs", "r"]


@pytest.mark.parametrize(
    ("collective", "algorithm", "nbytes", "match"),
    [
        ("all_reduce", "nvls", 64, "switches"),
        ("barrier", "ring", 64, "knows no barrier"),
        ("all_reduce", "ring", 65, "equal ones"),
    ],
)
def test_what_msccl_cannot_express(collective: str, algorithm: str, nbytes: int, match: str) -> None:
    with pytest.raises(ScheduleError, match=match):
        msccl_text(registry.build(collective, algorithm, 4, nbytes))


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(ScheduleError, match="'LL64', expected one of Simple, LL, LL128"):
        msccl_text(ring_all_reduce(2, 8), "LL64")


def test_a_sum_that_is_looked_at_later_is_kept_elsewhere() -> None:
    """Rank 1 passes a sum on (rrs) and later sends its own part again: that part must not be overwritten."""
    text = algo(
        [
            [(1, -1, [step("s")])],
            [(2, 0, [step("rrs"), step("s", dst=("i", 0))])],
            [(-1, 1, [step("r", dst=("s", 0)), step("r", dst=("s", 1))])],
        ],
        chunks=1,
    ).replace('s_chunks="1"', 's_chunks="2"')
    s = parse_msccl(text)
    local = s.src == s.dst
    assert local.sum() == 1
    assert s.dst_buffer[local].tolist() == [Buffer.SCRATCH]
    later = (s.src == 1) & (s.dst == 2)
    assert sorted(s.src_buffer[later].tolist()) == [Buffer.OUTPUT, Buffer.SCRATCH]


def test_a_receive_that_adds_elsewhere_copies_first() -> None:
    blocks: list[list[Block]] = [
        [(1, 1, [step("s"), step("rrc", dst=("o", 0))])],
        [(0, 0, [step("s"), step("rrc", dst=("o", 0))])],
    ]
    s = parse_msccl(algo(blocks, chunks=1, inplace=0))
    check(s)
    assert [Op(op).name for op in s.op] == ["COPY", "COPY", "REDUCE", "REDUCE"]


@pytest.mark.parametrize(("coll", "root"), [("broadcast", 1), ("reduce", 1)])
def test_the_root_is_whoever_never_receives_or_sends(coll: str, root: int) -> None:
    down: list[list[Block]] = [[(-1, 1, [step("r", dst=("o", 0))])], [(0, -1, [step("s", src=("o", 0))])]]
    up: list[list[Block]] = [[(1, -1, [step("s")])], [(-1, 0, [step("rrc")])]]
    s = parse_msccl(algo(down if coll == "broadcast" else up, coll, chunks=1))
    check(s)
    assert s.root == root


S, R = step("s"), step("r", dst=("s", 0))
PAIR: list[list[Block]] = [[(1, -1, [S])], [(-1, 0, [R])]]

REFUSED: dict[str, tuple[str, str]] = {
    "custom": (algo(PAIR, "custom"), "coll='custom' cannot be imported: what it must achieve is not in the file"),
    "alltoallv": (algo(PAIR, "alltoallv"), "how much goes from where to where"),
    "unknown collective": (algo(PAIR, "allredoce"), "expected one of allreduce, allgather"),
    "nothing": ("", "holds no <algo>"),
    "no XML": ("algo", "not well-formed XML"),
    "other root": ("<gpu/>", ":1:1: found <gpu> inside nothing"),
    "other element": ("<algo><exec/></algo>", "found <exec>"),
    "nothing in it": ("<algo/>", "<algo> has no coll"),
    "blocks": (algo(PAIR, "allgather", chunks=3), "nchunksperloop=3, expected a multiple"),
    "gpus": (algo(PAIR).replace('ngpus="2"', 'ngpus="3"'), "ngpus=3, but 2 <gpu> follow"),
    "same gpu": (algo(PAIR).replace('id="1"', 'id="0"'), "<gpu> has id=0, as the one of line 2"),
    "gpu out of range": (algo(PAIR).replace('<gpu id="1"', '<gpu id="5"'), "<gpu> has id=5, expected 0..1"),
    "peer is itself": (algo(PAIR).replace('send="1"', 'send="0"'), "send=0, expected another GPU"),
    "step number": (algo(PAIR).replace('s="0"', 's="1"'), "s=1, expected 0"),
    "type": (algo(PAIR).replace('type="s"', 'type="sss"'), "type='sss', expected one of cpy, nop"),
    "buffer": (algo(PAIR).replace('srcbuf="i"', 'srcbuf="x"'), "srcbuf='x', expected one of i, o, s"),
    "number": (algo(PAIR).replace('cnt="1"', 'cnt="one"'), "cnt='one', expected a number"),
    "huge number": (algo(PAIR).replace('cnt="1"', 'cnt="' + "9" * 5000 + '"'), "cnt='[0-9]{40}', expected a number"),
    "other digits": (algo(PAIR).replace('cnt="1"', 'cnt="१"'), "expected a number"),
    "never received": (algo([[(1, -1, [S, S])], [(-1, 0, [R])]]), "2 sends and 1 receives"),
    "never sent": (algo([[(1, -1, [S])], [(-1, 0, [R, R])]]), "1 sends and 2 receives"),
    "counts differ": (algo([[(1, -1, [step("s", cnt=2)])], [(-1, 0, [R])]]), "receives 1 chunks .* sends 2"),
    "two senders": (algo([[(1, -1, [S]), (1, -1, [S])], [(-1, 0, [R, R])]]), "a second thread block sends"),
    "not told": (algo([[(1, -1, [S]), (-1, -1, [step("nop", depid=0, deps=0)])], [(-1, 0, [R])]]), "no hasdep=1"),
    "large gpu": (algo(PAIR).replace('i_chunks="2"', 'i_chunks="9"'), "i_chunks=9, expected at most 2"),
    "deadlock": (
        algo([[(1, 1, [step("r", dst=("s", 0)), S])], [(0, 0, [step("r", dst=("s", 0)), S])]]),
        "a deadlock: line 4 for line 1[0-9]",
    ),
    "race": (
        algo([[(1, -1, [S]), (-1, -1, [step("cpy", ("i", 1), ("i", 0))])], [(-1, 0, [R])]]),
        "a race: nothing orders it and line",
    ),
    "root": (algo(PAIR, "broadcast", root=7), "root=7, expected 0..1"),
    "no root": (algo([[(1, 1, [S, R])], [(0, 0, [S, R])]], "reduce"), "0 GPUs never have a step that sends"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason(name: str) -> None:
    text, match = REFUSED[name]
    with pytest.raises(ScheduleError, match=match):
        parse_msccl(text, file="f.xml")


def test_what_needs_the_buffers_of_a_connection_is_refused() -> None:
    """Each rank sends chunk 0, overwrites it, and only then takes what the other has sent before that."""
    one: list[Block] = [(1, 1, [S, step("cpy", ("i", 1), ("i", 0)), R])]
    two: list[Block] = [(0, 0, [S, step("cpy", ("i", 1), ("i", 0)), R])]
    with pytest.raises(ScheduleError, match="relies on the buffers of the connection"):
        parse_msccl(algo([one, two]))


def test_order_by_way_of_another_rank_is_no_race() -> None:
    """The overwriting receive of block 1 can only come after the send of block 0 went round by rank 1."""
    ring: list[list[Block]] = [[(1, -1, [S]), (-1, 1, [step("r")])], [(0, 0, [step("rcs", dst=("s", 0))])]]
    assert parse_msccl(algo(ring)).steps == 2


def test_all_faults_come_at_once_with_their_lines() -> None:
    with pytest.raises(ScheduleError) as caught:
        load_msccl(_OWN / "many_faults.xml")
    lines = str(caught.value).splitlines()
    assert [int(line.split(":")[1]) for line in lines] == [4, 5, 6, 10, 10]


def test_many_faults_are_cut_short() -> None:
    text = _RING.replace('cnt="1"', 'cnt="x"') + _RING
    with pytest.raises(ScheduleError) as caught:
        parse_msccl(text * 3)
    assert len(str(caught.value).splitlines()) <= 20


def test_truncated_text_names_the_line() -> None:
    with pytest.raises(ScheduleError, match=r"f.xml:\d+:\d+: not well-formed XML"):
        parse_msccl(_RING[: len(_RING) // 2], file="f.xml")


def test_entities_are_refused_unexpanded() -> None:
    with pytest.raises(ScheduleError, match=r"entities\.xml:2:1: found a document type or entity"):
        load_msccl(_OWN / "entities.xml")


def test_a_huge_file_is_refused_early(tmp_path: Path) -> None:
    path = tmp_path / "huge.xml"
    with path.open("wb") as stream:
        stream.write(b"<!--")
        stream.truncate(MOST_BYTES + 1)
    with pytest.raises(ScheduleError, match="larger than 64 MiB"):
        load_msccl(path)


@pytest.mark.slow
def test_a_huge_text_is_refused_while_it_is_read() -> None:
    with pytest.raises(ScheduleError, match="larger than 64 MiB"):
        parse_msccl("<!--" + " " * MOST_BYTES)


@pytest.mark.parametrize("name", ["absent.xml", "."])
def test_a_file_that_cannot_be_read(name: str, tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match="cannot be read"):
        load_msccl(tmp_path / name)


def test_sizes_are_whole_chunks() -> None:
    assert parse_msccl(_RING, 300).chunk_bytes.tolist() == [100] * 3
    with pytest.raises(ScheduleError, match="301 bytes are no 3 equal chunks; 303 bytes would be"):
        parse_msccl(_RING, 301)
    assert parse_msccl(_EXCHANGE).nbytes == 4096  # the most the file is meant for


def test_nothing_too_large_is_built() -> None:
    """Three GPUs have three buffers each: together at most 2**24 = 9 * 1,864,135 + 1 chunks."""
    text = _RING.replace('nchunksperloop="3"', 'nchunksperloop="1864136"')
    with pytest.raises(ScheduleError, match="too many"):
        parse_msccl(text)


_WORDS = ("-1", "0", "1", "2", "7", "300", "s", "r", "rrs", "rcs", "rrc", "rrcs", "cpy", "re", "nop", "i", "o", "x", "")


@given(st.sampled_from([_RING, _EXCHANGE]), st.integers(0, 2**32), st.integers(1, 4))
def test_mutated_attributes_give_a_schedule_or_an_error(text: str, seed: int, changes: int) -> None:
    rng = random.Random(seed)
    for _ in range(changes):
        spots = [m.span(1) for m in re.finditer(r'="([^"]*)"', text)]
        begin, end = rng.choice(spots)
        text = text[:begin] + rng.choice(_WORDS) + text[end:]
    _schedule_or_error(text)


@given(st.sampled_from([_RING, _EXCHANGE]), st.integers(0, 2**32), st.integers(1, 6))
def test_mutated_text_gives_a_schedule_or_an_error(text: str, seed: int, changes: int) -> None:
    rng = random.Random(seed)
    for _ in range(changes):
        at, length = rng.randrange(len(text)), rng.choice((0, 1, 1, 5, 60, 300))
        extra = rng.choice(
            ("", "<", ">", '"', "&", "&a;", "\0", "é", "<tb>", text[at : at + length] * 2, "<!DOCTYPE a>")
        )
        text = text[:at] + extra + text[at + length :]
    _schedule_or_error(text)


@given(st.integers(0, 2**32))
def test_shuffled_lines_give_a_schedule_or_an_error(seed: int) -> None:
    rng = random.Random(seed)
    lines = _EXCHANGE.splitlines()
    one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]
    if rng.random() < 0.3:
        del lines[rng.randrange(len(lines))]
    _schedule_or_error("\n".join(lines))


def _schedule_or_error(text: str) -> None:
    try:
        schedule = parse_msccl(text)
    except ScheduleError:
        return
    try:
        check(schedule)
    except ScheduleError:
        return
    assert schedule.rows >= 0


def test_a_dependence_orders_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks carry what a step of the same GPU waits for, the very first step of the file included, and hand it on."""
    monkeypatch.setattr("commsim.collectives.msccl_order._MOST_VISITS", 0)
    wait = step("nop", depid=0, deps=0, hasdep=1)
    overwrite = step("cpy", ("i", 1), ("i", 0), depid=1, deps=0)
    direct: list[Block] = [(1, -1, [step("s", hasdep=1)]), (-1, -1, [step("cpy", ("i", 1), ("i", 0), depid=0, deps=0)])]
    handed: list[Block] = [(1, -1, [step("s", hasdep=1)]), (-1, -1, [wait]), (-1, -1, [overwrite])]
    for sender in (direct, handed):
        assert parse_msccl(algo([sender, [(-1, 0, [R])]])).steps > 0
    with pytest.raises(ScheduleError, match="too many steps to prove"):
        parse_msccl(algo([[(1, -1, [S]), (-1, -1, [step("cpy", ("i", 1), ("i", 0))])], [(-1, 0, [R])]]))


def test_numbers_are_those_of_a_c_int() -> None:
    text = algo(PAIR, ngpus=2).replace('depid="-1"', 'depid="{}"', 1).replace('hasdep="0"', 'hasdep="1"', 1)
    with pytest.raises(ScheduleError, match="expected a number from -1 to 2147483647"):
        parse_msccl(text.format(2**31))
    with pytest.raises(ScheduleError) as refused:
        parse_msccl(text.format(2**31 - 1))
    assert "expected a number" not in str(refused.value)
