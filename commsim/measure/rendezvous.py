"""How the ranks of a run find each other, agree that they belong together, and hear why another one stopped."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from commsim.errors import MeasurementError
from commsim.measure.traffic import hang_up

T = TypeVar("T")

PASS = "COMMSIM_PASS"
"""Variable that names a pass of its own beside the run, which must not meet the run's ranks."""

_POLL_S = 0.05
_ANSWER_S = 3.0  # after which an answer of the store is none
_LINGER_S = 3.0  # how long rank 0 keeps the store for the others to read what went wrong
_TOGETHER = "together"  # the verdict of ranks that belong together; any other says why they do not


@dataclass(frozen=True)
class Place:
    """Which rank this process is, and where rank 0 listens."""

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}"


def place_from(env: Mapping[str, str]) -> Place | None:
    """The place that torchrun, or srun with MASTER_ADDR exported, gives a process; None for a process of neither.

    Raises MeasurementError where the variables are there and make no sense.
    """
    for names in (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")):
        if names[0] in env and names[1] in env and "MASTER_ADDR" in env:
            break
    else:
        if "RANK" in env and "WORLD_SIZE" in env:
            raise MeasurementError("found RANK and WORLD_SIZE, but no MASTER_ADDR: expected the address of rank 0")
        return None
    rank, world_size = (_number(env, name) for name in names[:2])
    local_rank = _number(env, names[2]) if names[2] in env else rank
    if not 0 <= rank < world_size:
        raise MeasurementError(f"found {names[0]}={rank} with {names[1]}={world_size}, expected 0..{world_size - 1}")
    port = _number(env, "MASTER_PORT") if "MASTER_PORT" in env else 29500  # torchrun's own default
    return Place(rank, world_size, local_rank, env["MASTER_ADDR"], port)


def _number(env: Mapping[str, str], name: str) -> int:
    text = env[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise MeasurementError(f"found {name}={text[:40]!r}, expected a whole number")
    return int(text)


class Rendezvous:
    """The store that all ranks of a run share, after each has shown that it belongs to it."""

    def __init__(self, place: Place, fingerprint: str, timeout_s: float) -> None:
        import torch.distributed  # noqa: F401 - takes seconds, which are not those of the others

        self.place = place
        self._deadline = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._first = True  # of this rank, and not another process that was started as it
        self.store = self._open()
        try:
            self._answered(timeout_s + 2 * _ANSWER_S, lambda: self._greet(fingerprint))
        except TimeoutError:
            raise MeasurementError(f"{place}: rank 0 does not answer any more") from None
        except MeasurementError as error:
            self.leave(str(error))
            raise
        except RuntimeError as error:  # of torch, when the store is gone
            raise MeasurementError(f"{place}: rank 0 has stopped before all ranks were there") from error
        self.answer_within(_ANSWER_S)

    def answer_within(self, seconds: float) -> None:
        """How long the store waits for a key that another rank has yet to set."""
        self.store.set_timeout(timedelta(seconds=seconds))

    def has(self, keys: list[str], patience_s: float, poll_s: float = _POLL_S) -> bool:
        """Whether all keys are set within so many seconds."""
        until = time.monotonic() + patience_s
        while not self.store.check(keys):
            if time.monotonic() >= until:
                return False
            time.sleep(poll_s)
        return True

    def gather(self, name: str, mine: Any, timeout_s: float) -> list[Any]:
        """What every rank says under a name, plain values in the order of the ranks, before any group is there.

        Raises MeasurementError where a rank stops, or says nothing for so long.
        """
        keys = [f"{name}/{rank}" for rank in range(self.place.world_size)]
        store, word = self.store, f"{name}/verdict"

        def silent() -> set[int]:
            if store.check(["fault"]):
                store.compare_set(word, "", store.get("fault").decode())
            return set() if store.check(keys) else {rank for rank, key in enumerate(keys) if not store.check([key])}

        try:
            store.set(keys[self.place.rank], json.dumps(mine))
            late = f"no answer from rank {{}} within {timeout_s:.0f} s, --timeout"
            self._settle(word, silent, time.monotonic() + timeout_s, late)
            return [json.loads(store.get(key)) for key in keys]
        except RuntimeError as error:  # of torch, when the store is gone
            raise MeasurementError("rank 0 has stopped") from error

    def _open(self) -> Any:
        """The key-value store of rank 0, or of torchrun's agent."""
        from torch.distributed import DistStoreError, PrefixStore, TCPStore

        place = self.place
        # torchrun keeps a store of its own at that port, and counts how often it has started the ranks.
        master = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        own: dict[str, Any] = {"timeout": timedelta(seconds=self._timeout_s), "wait_for_workers": False}
        connect = partial(TCPStore, place.address, place.port, is_master=master, **own)
        try:
            store = self._answered(self._timeout_s + 1.0, connect)  # torch's own limit comes first
        except TimeoutError:
            raise MeasurementError(self._no_store("what listens there does not answer")) from None
        except (DistStoreError, RuntimeError) as error:
            raise MeasurementError(self._no_store(str(error))) from None
        names = [os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get(PASS, "")]
        return PrefixStore("/".join(["commsim", *filter(None, names)]), store)

    def _no_store(self, text: str) -> str:
        where = f"{self.place.address}:{self.place.port}"
        if "EADDRINUSE" in text or "address already in use" in text:
            return f"port {self.place.port} is in use on this machine; set another MASTER_PORT (--port) for all ranks"
        if self.place.rank == 0:
            return f"rank 0 cannot listen on {where}: {_first_line(text)}"
        return f"{self.place}: no answer from rank 0 at {where} within {self._timeout_s:.0f} s ({_first_line(text)})"

    def _greet(self, fingerprint: str) -> None:
        """Waits until all ranks have said who they are; whoever finds a contradiction tells it to all."""
        place, store = self.place, self.store
        self._first = store.add(f"present/{place.rank}", 1) == 1
        if not self._first:
            raise MeasurementError(f"two processes were started as rank {place.rank}")
        mine = {"world_size": place.world_size, "run": fingerprint}
        store.set(f"hello/{place.rank}", json.dumps(mine))
        waiting = set(range(place.world_size))

        def absent() -> set[int]:
            for rank in [rank for rank in sorted(waiting) if store.check([f"hello/{rank}"])]:
                waiting.discard(rank)
                hello = json.loads(store.get(f"hello/{rank}"))
                if hello["world_size"] != place.world_size:
                    raise MeasurementError(
                        f"rank {rank} was started with a world size of {hello['world_size']}, "
                        f"rank {place.rank} with {place.world_size}; expected the same for all ranks"
                    )
                if hello["run"] != fingerprint:
                    raise MeasurementError(
                        f"ranks {rank} and {place.rank} were started with different scenarios or options"
                    )
            return waiting

        late = f"{{count}} of {place.world_size} ranks did not come within {self._timeout_s:.0f} s: {{}}"
        self._settle("verdict", absent, self._deadline, late)

    def _settle(self, word: str, missing: Callable[[], set[int]], deadline: float, late: str) -> None:
        """Waits for the first word under this key, which holds for every rank: that all are there, or a fault.

        Without it some ranks would set out, and wait for others that have heard of a fault and left. Rank 0 says that
        none is missing, any rank that the time is over. Raises MeasurementError with the fault.
        """
        store = self.store
        while True:
            absent = missing()
            if not absent and self.place.rank == 0:
                store.compare_set(word, "", _TOGETHER)
            if time.monotonic() > deadline + (0.0 if absent else _ANSWER_S):
                ranks = sorted(absent) or [0]  # which has not said that all are there
                names = ", ".join(map(str, ranks[:8])) + (" ..." if len(ranks) > 8 else "")
                store.compare_set(word, "", late.format(names, count=len(ranks)))
            if store.check([word]):
                verdict = store.get(word).decode()
                if verdict != _TOGETHER:
                    raise MeasurementError(verdict)
                return
            time.sleep(_POLL_S)

    def told(self, patience_s: float = 0.0) -> str | None:
        """Why another rank stopped, if it said so; None too where the store is gone."""

        def listen() -> str | None:
            return str(self.store.get("fault").decode()) if self.has(["fault"], patience_s) else None

        with suppress(Exception):  # rank 0 is gone, and its store with it
            return self._answered(patience_s + _ANSWER_S, listen)
        return None

    def leave(self, reason: str) -> None:
        """Tell the others why this rank stops; rank 0, which holds the store, waits until they have read it."""

        def tell() -> None:
            for key in ("verdict", "fault"):  # what was said first stays
                self.store.compare_set(key, "", reason)
            if self.place.rank:
                if self._first:
                    self.store.set(f"left/{self.place.rank}", "1")
                return
            self.has([f"left/{rank}" for rank in range(1, self.place.world_size)], _LINGER_S)

        with suppress(Exception):  # rank 0 is gone, and its store with it
            self._answered(_LINGER_S + _ANSWER_S, tell)

    def _answered(self, seconds: float, call: Callable[[], T]) -> T:
        """What a call to the store returns or raises; TimeoutError where rank 0 has been stopped, not ended."""
        return within(seconds, call, lambda: hang_up(self.place.port))


def within(seconds: float, call: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
    """What a call returns or raises; TimeoutError after so many seconds, when `stop` ends the call, else it goes on.

    torch waits for the answer of a foreign server without an end, and cannot be interrupted; so does NCCL.
    """
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    waiting = threading.Thread(target=work, daemon=True)
    waiting.start()
    try:
        return answer.result(timeout=seconds)
    except TimeoutError:
        if stop is not None:
            stop()
            waiting.join(5.0)
        raise


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:160]
