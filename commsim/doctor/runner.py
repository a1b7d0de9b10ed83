"""What runs tests: a command of the user's, or real ranks of ours on a testbed inside this machine."""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commsim.doctor.cluster import HostCluster
from commsim.doctor.examination import Measure
from commsim.doctor.group_test import GroupTest
from commsim.doctor.script import environment
from commsim.errors import CommsimError, MeasurementError
from commsim.measure.nccl_tests import PROGRAMS

if TYPE_CHECKING:
    from commsim.measure.launcher import Host
    from commsim.topology.graph import Topology

_FIELD = re.compile(r"\{(\w*)\}")
FIELDS = ("hosts", "hostfile", "nodes", "ranks", "per_host", "gpus", "split", "env", "program", "size")
"""What a template may name: hosts with commas, a file with a host for each rank, counts, GPUs with commas, the rule of
NCCL_TESTS_SPLIT, NAME=VALUE words, the program of nccl-tests, bytes."""

_MOST_OUTPUT = 64 << 20


@dataclass(frozen=True)
class CommandRunner:
    """A command line in which ``{hosts}`` and the others of `FIELDS` stand for a test's; no shell reads it."""

    words: tuple[str, ...]
    cluster: HostCluster
    timeout_s: float = 600.0

    def __call__(self, tests: list[GroupTest]) -> list[float]:
        """Seconds of each test; those of a round run side by side."""
        with ThreadPoolExecutor(len(tests)) as pool:
            return list(pool.map(self._seconds, tests))

    def _seconds(self, test: GroupTest) -> float:
        from commsim.doctor.reading import largest

        if test.shift:
            raise MeasurementError("a test needs other GPUs on the second host; run it by hand (--plan)")
        names = [self.cluster.hosts[host] for host in test.hosts]
        with tempfile.TemporaryDirectory() as folder:
            hostfile = Path(folder) / "hosts"
            hostfile.write_text("".join(f"{name}\n" for name in names for _ in test.gpus))
            words = self._filled(test, names, str(hostfile))
            try:
                done = subprocess.run(
                    words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=self.timeout_s, check=False
                )
            except subprocess.TimeoutExpired:
                raise MeasurementError(f"{shlex.join(words)[:200]} did not end within {self.timeout_s:g} s") from None
            except OSError as fault:
                raise MeasurementError(f"{words[0]}: {fault.strerror}") from None
        text = done.stdout[:_MOST_OUTPUT].decode(errors="replace")
        rows = largest(Path(words[0]), text)
        if rows is None:
            last = (text.strip().splitlines() or ["nothing"])[-1][:200]
            raise MeasurementError(
                f"{shlex.join(words)[:200]} ended with status {done.returncode} and no table of nccl-tests: {last}"
            )
        return rows[2]

    def _filled(self, test: GroupTest, names: list[str], hostfile: str) -> list[str]:
        """The words with their fields; ``{env}`` alone becomes a word for each variable."""
        env = [f"{name}={value}" for name, value in environment(test).items()]
        values = {
            "hosts": ",".join(names), "hostfile": hostfile, "nodes": len(names), "ranks": len(names) * len(test.gpus),
            "per_host": len(test.gpus), "gpus": ",".join(map(str, test.gpus)), "split": test.split,
            "program": PROGRAMS[test.collective], "size": test.nbytes, "env": " ".join(env),
        }  # fmt: skip
        filled: list[str] = []
        for word in self.words:
            filled += env if word == "{env}" else [_FIELD.sub(lambda match: str(values[match[1]]), word)]
        return filled


def template(text: str, cluster: HostCluster, timeout_s: float) -> CommandRunner:
    """A template from a command line; CommsimError for one without hosts, or with a field that is none."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise CommsimError(f"--run: found {text[:80]!r}, which cannot be split into words: {error}") from None
    fields = [name for word in words for name in _FIELD.findall(word)]
    if unknown := [name for name in fields if name not in FIELDS]:
        raise CommsimError(f"--run: found {{{unknown[0]}}}, expected some of {', '.join(f'{{{f}}}' for f in FIELDS)}")
    if not {"hosts", "hostfile"} & set(fields):
        raise CommsimError("--run: found neither {hosts} nor {hostfile}, expected one: a test says where to run")
    return CommandRunner(tuple(words), cluster, timeout_s)


TESTBED_BYTES = 4 << 20
"""At 200 Mb/s, 0.3 s between eight healthy hosts."""

_CALLS = 4


@contextmanager
def on_testbed(topology: Topology) -> Iterator[Measure]:
    """Runs tests on a testbed of a topology, a rank of gloo on each host; the testbed stands for the block."""
    from commsim.measure.launcher import interrupts
    from commsim.measure.testbed import standing_testbed
    from commsim.measure.wiring import wiring

    plan = wiring(topology)
    with interrupts(), standing_testbed(plan) as places:

        def measure(tests: list[GroupTest]) -> list[float]:
            return [_with_gloo(test, [places[host] for host in test.hosts]) for test in tests]

        yield measure


def _with_gloo(test: GroupTest, places: Sequence[Host]) -> float:
    from commsim.measure.launcher import launch
    from commsim.measure.parsers import read_measured
    from commsim.measure.run import Run
    from commsim.measure.tasks import Task
    from commsim.measure.wiring import address

    with tempfile.TemporaryDirectory() as folder:
        task = Task(test.collective, (test.nbytes,))
        run = Run(
            "doctor", (task,), "gloo", len(test.hosts), iterations=_CALLS, warmup=1, check=False, out=folder,
            timeout_s=120.0,
        )  # fmt: skip
        launch(run, lambda line: None, hosts=places, address=address(test.hosts[0]))
        curve = read_measured(Path(folder))[0]
        return float(curve.time_s[-1])
