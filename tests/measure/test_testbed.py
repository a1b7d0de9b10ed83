"""The testbed as it stands: traffic through it, and that nothing of it is left."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranks import disturbed, measure

from commsim.collectives.registry import build
from commsim.errors import MeasurementError
from commsim.measure import testbed as module
from commsim.measure.parsers import read_measured
from commsim.measure.testbed import obstacle, remove_leftovers, standing_testbed
from commsim.measure.wiring import PREFIX, commands, namespace, wiring
from commsim.topology.presets import load_preset

STAR = wiring(load_preset("testbed-star", nodes=2))


def standing() -> list[str]:
    """Namespaces of our prefix."""
    return [path.name for path in Path("/run/netns").glob(f"{PREFIX}*")]


@pytest.fixture(scope="module")
def can_stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Skips where no testbed can stand; being root may not be enough, in a container.

    One testbed stands on a machine at a time, so workers that run these tests side by side take turns.
    """
    turn = tmp_path_factory.getbasetemp().parent / "commsim-testbed-turn"
    with turn.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        _skip_unless_it_stands()
        yield


def _skip_unless_it_stands() -> None:
    reason = obstacle()
    if reason is None:
        try:
            with standing_testbed(STAR):
                return
        except MeasurementError as error:
            reason = str(error)
    pytest.skip(reason)


needs_root = pytest.mark.usefixtures("can_stand")


@needs_root
def test_leaving_removes_everything() -> None:
    with standing_testbed(STAR):
        assert sorted(standing()) == sorted(STAR.namespaces())
    assert standing() == []


@needs_root
def test_one_testbed_at_a_time() -> None:
    with (
        standing_testbed(STAR),
        pytest.raises(MeasurementError, match=f"another testbed stands on this machine \\(process {os.getpid()}"),
    ):
        standing_testbed(STAR).__enter__()


@needs_root
def test_leftovers_of_a_crash_are_removed_and_nothing_else() -> None:
    other = "not-commsims-own"
    subprocess.run(["ip", "netns", "add", other], check=True)
    subprocess.run(["ip", "netns", "add", namespace(7)], check=True)
    sleeper = subprocess.Popen(["ip", "netns", "exec", namespace(7), "sleep", "100"])
    try:
        wait_until_inside(namespace(7), sleeper)
        with standing_testbed(STAR):
            assert namespace(7) not in standing()
        assert sleeper.wait(5) == -signal.SIGKILL
        assert (Path("/run/netns") / other).exists()
    finally:
        sleeper.kill()
        sleeper.wait()
        subprocess.run(["ip", "netns", "del", other], check=True)


def wait_until_inside(space: str, process: subprocess.Popen[bytes]) -> None:
    """`ip netns exec` enters the namespace some time after it has started."""
    for _ in range(1000):
        inside = subprocess.run(["ip", "netns", "pids", space], check=True, capture_output=True, text=True).stdout
        if str(process.pid) in inside.split():
            return
        time.sleep(0.01)
    raise AssertionError(f"process {process.pid} has not entered {space} within 10 s")


@needs_root
def test_a_testbed_that_cannot_be_built_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = commands(STAR)
    monkeypatch.setattr(module, "commands", lambda plan: [*steps[:3], (("ip", "-batch", "-"), ["link add"])])
    with pytest.raises(MeasurementError, match="the testbed cannot be built"):
        standing_testbed(STAR).__enter__()
    assert standing() == []


@needs_root
def test_rates_are_those_of_the_topology() -> None:
    with standing_testbed(STAR):
        shown = subprocess.run(
            ["ip", "netns", "exec", namespace(0), "tc", "qdisc", "show", "dev", "eth0"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert "tbf" in shown
    assert "rate 200Mbit" in shown


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("n", [3])
def test_ring_bytes_are_those_of_the_schedule(n: int, tmp_path: Path) -> None:
    """Payload of every rank within 1 % of the schedule, headers of gloo included."""
    size = 840 << 10  # a multiple of 3 blocks of float32
    options = ["--testbed", "testbed-star", "-n", str(n), "-i", "4", "-w", "1", "--out", str(tmp_path)]
    status, _, said = measure("gloo-quickstart", f"workload.0.sizes={size} B", *options)
    assert status == 0, said
    sent = [int(word) for word in (tmp_path / "measured.csv").read_text().splitlines()[-1].rsplit(",", 1)[1].split()]
    assert sent == pytest.approx(build("all_reduce", "ring", n, size, itemsize=4).sent_bytes().tolist(), rel=0.01)
    assert standing() == []


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_leaves_no_testbed(tmp_path: Path, number: signal.Signals) -> None:
    """After a kill, which nothing can catch, the next testbed clears up; the ranks are gone at once."""
    status, _, seconds, left = disturbed(
        tmp_path, lambda launcher, _: os.kill(launcher, number), "--testbed", "testbed-star", ranks=2
    )
    assert (status != 0, left) == (True, [])
    assert seconds < 20
    if number == signal.SIGKILL:
        with standing_testbed(STAR):
            pass
    assert standing() == []


def test_without_root_there_is_a_message_and_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = obstacle()
    assert reason is not None
    assert "a testbed" in reason
    with pytest.raises(MeasurementError, match="a testbed"):
        standing_testbed(STAR).__enter__()


def test_remove_leftovers_finds_nothing_where_nothing_is() -> None:
    if sys.platform == "linux" and not standing():
        assert remove_leftovers() == []


@needs_root
@pytest.mark.slow
def test_a_slow_card_doubles_the_time_and_a_neighbour_too(tmp_path: Path) -> None:
    """Rates decide: at 25 MB/s the bytes of a MiB take 42 ms, through a card at a half twice as long."""
    (tmp_path / "s.yaml").write_text(
        "name: faulty\ntopology: {preset: testbed-tree, nodes: 4}\nlibrary: {name: gloo, one_host: true}\n"
        "workload:\n  - {collective: all_reduce, sizes: [1 MiB]}\n  - jobs:\n"
        "      - {ranks: [0, 2], collective: broadcast, size: 1 MiB}\n"
        "      - {ranks: [1, 3], collective: broadcast, size: 1 MiB}\n"
    )
    fault = "topology.faults=[{nic: [1, 0], bandwidth_factor: 0.5}]"
    times, slowdowns = [], []
    for name, changes in (("healthy", []), ("faulty", [fault])):
        out = tmp_path / name
        options = ["--testbed", "scenario", "-i", "3", "-w", "1", "--out", str(out)]
        status, _, said = measure(str(tmp_path / "s.yaml"), *changes, *options)
        assert status == 0, said
        (curve,) = read_measured(out)
        times.append(float(curve.time_s[0]))
        slowdowns += [job["slowdown"] for job in json.loads((out / "jobs.json").read_text())["items"][0]["jobs"]]
    assert times[1] / times[0] == pytest.approx(2.0, rel=0.2)
    assert slowdowns[:2] == pytest.approx([2.0, 2.0], rel=0.2)
    assert standing() == []
