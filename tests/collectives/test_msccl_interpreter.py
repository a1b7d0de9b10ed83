"""The interpreter of MSCCL programs: every export ends in it, known deadlocks are found and named, limits are told."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commsim.collectives import registry
from commsim.collectives.check import check
from commsim.collectives.msccl import COLLECTIVE_NAMES, load_msccl, parse_msccl
from commsim.collectives.msccl_export import msccl_text
from commsim.collectives.msccl_interpreter import Interpreter, faults, fewest_slots
from commsim.collectives.msccl_limits import MOST_BLOCKS, MOST_STEPS, SLOTS, over_limits
from commsim.collectives.msccl_xml import Algo, MscclGpu, MscclStep, ThreadBlock, read_algo
from commsim.collectives.rows import assemble, rows
from commsim.collectives.schedule import Buffer, Op
from commsim.errors import ScheduleError

_CHECKOUT = Path(__file__).resolve().parents[2]
_SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", _CHECKOUT.parent / "shared" / "data")) / "msccl"
_PUBLISHED = sorted(_SHARED.glob("*.xml"))
_EXPORTED = [key for key in registry.names() if key[0] in COLLECTIVE_NAMES.values()]


def exported(key: tuple[str, str], n: int, **more: Any) -> Algo | None:
    """An export read back; None where switches keep it from being one."""
    s = registry.build(*key, n, 48 * n * n * 60 * more.get("chunks", 1) * more.get("channels", 1), **more)
    return read_algo(msccl_text(s)) if s.endpoints == s.world_size else None


@pytest.mark.parametrize(
    ("key", "n"),
    [
        (("all_to_all", "ring"), 4),
        (("all_to_all", "ring"), 9),
        (("all_reduce", "torus_2d"), 16),
        (("all_gather", "torus_3d"), 16),
        (("reduce_scatter", "hierarchical"), 16),
        (("all_to_all", "direct"), 32),
        (("all_reduce", "direct_two_shot"), 32),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_an_export_runs_where_connections_hold_two_messages(key: tuple[str, str], n: int) -> None:
    algo = exported(key, n)
    assert algo is not None
    assert [faults(algo, slots=slots) for slots in (2, 8)] == [[], []]
    assert max(sum(b.chan == c for b in g.blocks) for g in algo.gpus for c in range(algo.nchannels)) <= 32


@pytest.mark.slow
@pytest.mark.parametrize("key", _EXPORTED, ids="-".join)
def test_every_export_of_2_to_16_ranks_runs(key: tuple[str, str]) -> None:
    for n in range(2, 17):
        algo = exported(key, n)
        assert algo is None or [faults(algo, slots=slots) for slots in (2, 8)] == [[], []], n


@pytest.mark.slow
@pytest.mark.parametrize("key", _EXPORTED, ids="-".join)
def test_exports_of_several_channels_and_pieces_run(key: tuple[str, str]) -> None:
    for n in (2, 3, 4, 6, 8):
        for channels, chunks in ((3, 1), (1, 4), (2, 3)):
            algo = exported(key, n, channels=channels, chunks=chunks)
            assert algo is None or [faults(algo, slots=slots) for slots in (2, 8)] == [[], []], (n, channels, chunks)


@pytest.mark.skipif(not _PUBLISHED, reason="the published MSCCL files are not beside the checkout")
@pytest.mark.parametrize("path", _PUBLISHED, ids=lambda p: p.stem)
def test_a_published_file_runs_with_the_room_of_its_protocol(path: Path) -> None:
    assert faults(read_algo(path), load_msccl(path).root) == []


def step(kind: str, source: tuple[str, int], target: tuple[str, int], wait: tuple[int, int] = (-1, -1)) -> MscclStep:
    return MscclStep(0, -1, kind, *source, *target, 0 if kind == "nop" else 1, *wait, False)


S, R = step("s", ("i", 0), ("i", 0)), step("r", ("s", 0), ("s", 0))


def program(*gpus: list[tuple[int, int, list[MscclStep]]], chunks: int = 1, coll: str = "allreduce") -> Algo:
    """A program of thread blocks (send, recv, steps) by GPU, on one channel."""
    made = []
    for rank, blocks in enumerate(gpus):
        sizes = {"i": chunks, "o": 0, "s": chunks}
        made.append(MscclGpu(0, rank, sizes))
        for number, (send, recv, steps) in enumerate(blocks):
            own = [MscclStep(**{f: getattr(s, f) for f in MscclStep.__slots__} | {"s": k}) for k, s in enumerate(steps)]
            made[-1].blocks.append(ThreadBlock(0, number, send, recv, 0, own))
    return Algo(0, "t", coll, "Simple", 1, chunks, len(gpus), True, False, 0, 0, None, made)


@pytest.mark.parametrize("sends", [1, 2, 3, 8, 9])
def test_two_that_send_all_first_need_room_for_it(sends: int) -> None:
    algo = program([(1, 1, [S] * sends + [R] * sends)], [(0, 0, [S] * sends + [R] * sends)])
    assert fewest_slots(algo) == sends
    assert not Interpreter(algo, sends).hanging()
    if sends > 1:
        (line,) = Interpreter(algo, sends - 1).run()
        assert line == (
            f"it hangs with {sends - 1} messages on a connection, blocks wait in a circle: "
            f"GPU 0 thread block 0 step {sends - 1} (s) waits for room towards GPU 1 on channel 0; "
            f"GPU 1 thread block 0 step {sends - 1} (s) waits for room towards GPU 0 on channel 0"
        )


def test_blocks_that_wait_for_flags_of_each_other_are_named() -> None:
    nop = [step("re", ("i", 0), ("s", 0), (1 - own, 0)) for own in (0, 1)]
    algo = program([(-1, -1, [nop[0]]), (-1, -1, [nop[1]])])
    (line,) = Interpreter(algo, 2).run()
    assert "GPU 0 thread block 0 step 0 (re) waits for step 0 of thread block 1; GPU 0 thread block 1" in line
    assert fewest_slots(algo) is None


def test_a_long_circle_is_cut_short() -> None:
    n = 12
    (line,) = Interpreter(program(*([((g + 1) % n, (g - 1) % n, [S, S, R, R])] for g in range(n))), 1).run()
    assert line.count("waits for room") == 5
    assert line.endswith("7 more")


def test_a_message_that_never_comes_is_named() -> None:
    algo = program([(1, -1, [S])], [(-1, 0, [R, R])])
    (line,) = Interpreter(algo, 2).run()
    assert line == (
        "it hangs: GPU 1 thread block 0 step 1 (r) waits for a message of GPU 0 on channel 0, which never comes "
        "(1 thread blocks hang)"
    )


def test_a_message_that_nobody_takes_is_named() -> None:
    lines = Interpreter(program([(1, -1, [S, S])], [(-1, 0, [R])]), 2).run()
    assert lines[0] == "1 messages of GPU 0 to GPU 1 on channel 0 are never received"


def sends_first(algo: Algo) -> None:
    """The order that exports once had: in a block that does both, all sends of its own before what it receives."""
    for gpu in algo.gpus:
        for block in gpu.blocks:
            block.steps.sort(key=lambda s: s.type != "s")
            for number, one in enumerate(block.steps):
                one.s = number


def test_an_export_with_its_sends_first_hangs() -> None:
    algo = exported(("all_to_all", "ring"), 4)
    assert algo is not None
    sends_first(algo)
    assert [line[:8] for line in faults(algo, slots=2)] == ["it hangs"]


def change(name: str, new: Callable[[Any], object]) -> Callable[[Algo], None]:
    """Another value in the first step that adds at GPU 1."""

    def apply(algo: Algo) -> None:
        one = next(s for s in algo.gpus[1].blocks[0].steps if s.type in {"rrcs", "rrc"})
        setattr(one, name, new(getattr(one, name)))

    return apply


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (change("srcoff", lambda old: (old + 1) % 4), "ends wrong: chunk . of GPU ."),
        (change("dstoff", lambda old: (old + 3) % 4), "ends wrong: chunk . of GPU ."),
        (change("type", lambda _: "rcs"), "ends wrong: chunk . of GPU ."),
        (change("type", lambda _: "r"), "it hangs: .* waits for a message of GPU"),
        (lambda algo: algo.gpus[2].blocks[0].steps.pop(), "1 messages of GPU 1 to GPU 2"),
        (
            lambda algo: algo.gpus[2].blocks[0].steps.pop(0),
            "it hangs: line .* waits for a message of GPU 2 on channel 0, which never comes",
        ),
    ],
)
def test_a_wrong_program_is_found(wrong: Callable[[Algo], object], expected: str) -> None:
    algo = exported(("all_reduce", "ring"), 4)
    assert algo is not None
    wrong(algo)
    for gpu in algo.gpus:
        for block in gpu.blocks:
            for number, one in enumerate(block.steps):
                one.s = number
    lines = faults(algo)
    assert lines
    assert re.search(expected, " ".join(lines))


def test_a_step_of_many_chunks_takes_as_much_room() -> None:
    """A large array leaves one chunk a message, so three chunks of one step are three messages."""
    three = [MscclStep(0, k, kind, "i", 0, "s", 0, 3, -1, -1, False) for k, kind in enumerate(("s", "r"))]
    assert fewest_slots(program([(1, 1, three)], [(0, 0, three)], chunks=3)) == 3


RE = step("re", ("s", 0), ("i", 0))
NOP = step("nop", ("i", -1), ("o", -1), (1, 0))


def with_(one: MscclStep, **more: Any) -> MscclStep:
    return MscclStep(**{f: getattr(one, f) for f in MscclStep.__slots__} | more)


@pytest.mark.parametrize(
    ("first", "hanging"),
    [(with_(RE, hasdep=True), 0), (RE, 1), (with_(NOP, depid=-1, hasdep=True), 1)],
    ids=["told", "not told", "nop"],
)
def test_a_flag_is_raised_by_a_step_that_moves_something_and_is_to_tell(first: MscclStep, hanging: int) -> None:
    algo = program([(-1, -1, [first]), (-1, -1, [with_(RE, depid=0, deps=0)])])
    assert len(Interpreter(algo, 2).hanging()) == hanging


LIMITS = {
    "steps": ([(1, -1, [S] * (MOST_STEPS + 1))], "257 steps, MSCCL's runtime takes 256"),
    "blocks": ([(-1, -1, [RE])] * (MOST_BLOCKS + 1), "217 thread blocks, MSCCL's runtime takes 216"),
    "channel": ([(-1, -1, [RE])] * 33, "33 thread blocks on channel 0, MSCCL's runtime takes 32"),
    "senders": ([(1, -1, [S])] * 2, "2 thread blocks of GPU 0 send to GPU 1 on channel 0"),
    "count": ([(-1, -1, [with_(RE, cnt=72)])], "moves 72 chunks, MSCCL's runtime takes 71"),
    "offset": ([(-1, -1, [with_(RE, srcoff=32768)])], "offset 32768, MSCCL's runtime takes 32767"),
    "waited for": ([(-1, -1, [with_(RE, depid=128, deps=0)])], "waits for thread block 128"),
    "ra": ([(-1, -1, [with_(RE, type="ra")])], "at which a thread block ends"),
    "nop that tells": ([(-1, -1, [with_(NOP, hasdep=True), with_(RE, depid=0)])], "never tells"),
    "idle nop": ([(-1, -1, [with_(NOP, depid=-1), RE])], "the flags after it are one too low"),
    "after a nop": ([(-1, -1, [NOP, RE])], r"step 1 \(re\) follows a nop"),
    "elements": ([(1, -1, [S] * 250)] * 17, "4270 XML elements to read, MSCCL's runtime takes 4095"),
    "fused": ([(-1, -1, [RE] * 17)], "the 17th reduction in a row into one place"),
    "fused counts": ([(-1, -1, [RE, with_(RE, cnt=2)])], "one cnt for both"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_what_the_runtime_does_not_take_is_told(name: str) -> None:
    blocks, expected = LIMITS[name]
    assert re.search(expected, "\n".join(over_limits(program(blocks, []))))


def test_what_the_runtime_takes_is_not_told() -> None:
    blocks = [
        (1, -1, [S] * MOST_STEPS),
        (-1, -1, [RE] * 16),
        (-1, -1, [RE] * 15 + [with_(RE, hasdep=True), RE]),
        (-1, -1, [with_(RE, cnt=71, srcoff=32767, depid=127, deps=0)]),
        (-1, -1, [NOP, with_(RE, depid=0)]),
        *[(-1, -1, [RE])] * 27,
    ]
    assert over_limits(program(blocks, [])) == []
    assert SLOTS == {"Simple": 2, "LL": 8, "LL128": 8}


def test_numbers_of_thread_blocks_channels_and_protocols() -> None:
    algo = program([(1, -1, [S])], [(-1, 0, [R])])
    algo.gpus[1].blocks[0].id = 1
    algo.nchannels, algo.proto = 33, "LL64"
    assert [line.split(",")[0] for line in over_limits(algo)] == [
        "it has 33 channels",
        "its protocol is 'LL64'",
        "the thread blocks of GPU 1 are not numbered 0",
    ]


def test_many_reductions_into_one_place_are_parted_by_a_flag() -> None:
    """The runtime makes reductions in a row one, with room for 16 sources; 20 ranks bring 19."""
    n, others = 20, np.arange(1, 20)
    up = rows(0, others, 0, 0, dst_buffer=Buffer.SCRATCH, to=others)
    add = rows(others, 0, 0, others, op=Op.REDUCE, src_buffer=Buffer.SCRATCH, to=0)
    s = assemble("reduce", "one_by_one", n, [up, add], np.full(n, 4), scratch_chunks=n - 1)
    check(s)
    local = [one for block in read_algo(msccl_text(s)).gpus[0].blocks for one in block.steps if one.type == "re"]
    assert [one.hasdep for one in local] == [k == 15 for k in range(19)]


def test_an_export_for_which_there_is_too_little_room_says_so() -> None:
    """Two ranks swap chunks in place: the place where the first one lands is sent last."""
    rank, chunk = np.array([[0], [1]]), np.arange(4)
    s = assemble("all_reduce", "swap", 2, [rows(0, rank, 1 - rank, chunk, to=(chunk - 1) % 4)], np.full(4, 4))
    with pytest.raises(ScheduleError, match=r"with 2 messages on a connection, \d+ of its steps would wait for each"):
        msccl_text(s)


def test_an_export_of_63_blocks_is_spread_over_channels() -> None:
    text = msccl_text(registry.build("all_to_all", "direct", 32, 4 * 32 * 32))
    assert 'nchannels="2"' in text
    back = parse_msccl(text, 4 * 32 * 32)
    assert back.rows == 32 * 32
    assert sorted(set(back.channel.tolist())) == [0, 1]
