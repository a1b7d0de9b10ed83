"""Ranks that meet, and ranks that do not belong together; each a thread of this process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from commsim.errors import MeasurementError
from commsim.measure.launcher import check_port, free_port
from commsim.measure.rendezvous import Place, Rendezvous, place_from


def meet(*ranks: tuple[int, int, str], port: int | None = None, timeout_s: float = 10.0) -> list[str | None]:
    """What each of (rank, world size, fingerprint) hears when they all come to one port: None, or a fault."""
    port = port or free_port()
    heard: list[str | None] = [None] * len(ranks)
    meetings: list[Rendezvous] = []

    def come(i: int, rank: int, world_size: int, fingerprint: str) -> None:
        try:
            meetings.append(Rendezvous(Place(rank, world_size, rank, "127.0.0.1", port), fingerprint, timeout_s))
        except MeasurementError as error:
            heard[i] = str(error)

    threads = [threading.Thread(target=come, args=(i, *rank)) for i, rank in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return heard


def meeting(rank: int, world_size: int, port: int) -> Rendezvous:
    return Rendezvous(Place(rank, world_size, rank, "127.0.0.1", port), "a", 10.0)


def test_ranks_of_one_run_meet() -> None:
    assert meet((0, 3, "a"), (1, 3, "a"), (2, 3, "a")) == [None, None, None]


def test_another_world_size_is_told_to_all() -> None:
    heard = meet((0, 3, "a"), (1, 2, "a"), (2, 3, "a"))
    assert all(text is not None and "world size of" in text for text in heard)


def test_another_run_is_told_to_all() -> None:
    heard = meet((0, 2, "a"), (1, 2, "b"))
    assert all(text is not None and "different scenarios or options" in text for text in heard)


def test_a_rank_started_twice_is_told_to_all() -> None:
    heard = meet((0, 3, "a"), (1, 3, "a"), (1, 3, "a"))
    assert heard == ["two processes were started as rank 1"] * 3


@pytest.mark.parametrize(("verdict", "hears"), [("together", None), ("rank 2 is another", "rank 2 is another")])
def test_no_rank_sets_out_before_the_verdict(verdict: str, hears: str | None) -> None:
    """Rank 0, played here, is there, and hears of a fault before it says that all are: rank 1 must not have gone on."""
    from torch.distributed import PrefixStore, TCPStore

    port = free_port()
    limit = timedelta(seconds=30)
    store = PrefixStore("commsim/0", TCPStore("127.0.0.1", port, is_master=True, timeout=limit, wait_for_workers=False))
    store.set("hello/0", json.dumps({"world_size": 2, "run": "a"}))
    heard: list[list[str | None]] = []
    second = threading.Thread(target=lambda: heard.append(meet((1, 2, "a"), port=port)))
    second.start()
    store.get("hello/1")
    second.join(0.5)
    assert second.is_alive()
    store.set("verdict", verdict)
    second.join()
    assert heard == [[hears]]


SERVER = """
import sys, time
from torch.distributed import PrefixStore, TCPStore
store = PrefixStore("commsim/0", TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False))
print("here", flush=True)
while not store.check(["hello/1"]):
    time.sleep(0.05)
print("met", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_a_rank_0_that_stands_still_is_not_waited_for() -> None:
    port = free_port()
    with subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stdout=subprocess.PIPE, text=True) as rank_0:
        try:
            assert rank_0.stdout is not None
            assert rank_0.stdout.readline() == "here\n"
            heard: list[list[str | None]] = []
            second = threading.Thread(target=lambda: heard.append(meet((1, 2, "a"), port=port, timeout_s=2.0)))
            second.start()
            assert rank_0.stdout.readline() == "met\n"
            rank_0.send_signal(signal.SIGSTOP)
            second.join(60)
            assert heard == [["rank 1 of 2: rank 0 does not answer any more"]]
        finally:
            rank_0.kill()


def test_a_rank_whose_patience_ends_obeys_the_verdict() -> None:
    """Rank 2 comes while rank 1 gives up; rank 0 was quicker to say that all are there."""
    from torch.distributed import PrefixStore, TCPStore

    port = free_port()
    limit = timedelta(seconds=30)
    store = PrefixStore("commsim/0", TCPStore("127.0.0.1", port, is_master=True, timeout=limit, wait_for_workers=False))
    store.set("verdict", "together")
    assert meet((1, 3, "a"), port=port, timeout_s=0.5) == [None]


def test_what_is_said_first_stays() -> None:
    """A rank that comes too late to hold the others back is heard of by them later."""
    port = free_port()
    first = [threading.Thread(target=lambda rank=rank: met.append(meeting(rank, 2, port))) for rank in (0, 1)]
    met: list[Rendezvous] = []
    for thread in first:
        thread.start()
    for thread in first:
        thread.join()
    with pytest.raises(MeasurementError, match="world size of 2, rank 2 with 3"):
        meeting(2, 3, port)
    assert [m.told() for m in met] == [
        "rank 0 was started with a world size of 2, rank 2 with 3; expected the same for all ranks"
    ] * 2


def test_free_ports_are_not_given_to_others() -> None:
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest, highest = map(int, given.read_text().split()) if given.exists() else (0, 0)
    if lowest < 2**15:
        pytest.skip("the ports that Linux gives out unless told otherwise")
    assert not lowest <= free_port() <= highest


def test_a_missing_rank_is_named() -> None:
    assert meet((0, 3, "a"), (2, 3, "a"), timeout_s=1.0) == ["1 of 3 ranks did not come within 1 s: 1"] * 2


def test_a_port_in_use_is_said_by_the_rank_that_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (text,) = meet((0, 2, "a"), port=port)
        assert text is not None
        assert text.startswith(f"port {port} is in use")
        with pytest.raises(MeasurementError, match="cannot be used: Address already in use"):
            check_port(port)


def test_a_server_that_does_not_answer_is_no_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (text,) = meet((1, 2, "a"), port=port, timeout_s=1.0)
        assert text is not None
        assert f"rank 1 of 2: no answer from rank 0 at 127.0.0.1:{port} within 1 s" in text


def test_nobody_there() -> None:
    (text,) = meet((1, 2, "a"), timeout_s=1.0)
    assert text is not None
    assert "no answer from rank 0" in text


TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29512"}
SRUN = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "2", "MASTER_ADDR": "node0"}


def test_places_of_torchrun_and_srun() -> None:
    assert place_from(TORCHRUN) == Place(3, 8, 1, "node0", 29512)
    assert place_from(SRUN) == Place(5, 6, 2, "node0", 29500)


def test_a_shell_inside_an_allocation_is_no_rank() -> None:
    assert place_from({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None
    assert place_from({}) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"RANK": "8"}, "found RANK=8 with WORLD_SIZE=8, expected 0..7"),
        ({"RANK": "-1"}, "expected a whole number"),
        ({"WORLD_SIZE": "four"}, "found WORLD_SIZE='four', expected a whole number"),
    ],
)
def test_variables_that_make_no_sense(changed: dict[str, str], message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        place_from(TORCHRUN | changed)


def test_ranks_without_an_address() -> None:
    with pytest.raises(MeasurementError, match="no MASTER_ADDR"):
        place_from({"RANK": "0", "WORLD_SIZE": "2"})
