"""Warm processes that answer the page: the newest question of a panel wins, a crashed process is replaced.

A question waits until a process is free. One of the same key (a tab of the browser and its panel) that still waits is
dropped for a newer one; one that has run for longer than a moment is ended with its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsim.processes import begin_process

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess

PATIENCE_S = 2.0
"""For which a question may go on that nobody waits for."""

MOST_WAITING = 64
"""Questions that wait at once: a browser's tabs ask one per panel."""

LONGEST_S = 120.0
"""For which a question may run; that of long work is its own."""

SPARE = 512 << 20
"""Bytes that a process may hold beyond what a question may take, before it is replaced."""


class DroppedError(Exception):
    """A newer question of the same panel took the place of this one."""


class LostError(Exception):
    """Why there is no answer: a process died or took too long, or too many questions wait."""


@dataclass(frozen=True)
class Inquiry:
    """What a process is asked: `answer` of `commsim.explorer.answers`."""

    name: str
    state: Mapping[str, str]
    more: Mapping[str, Any] = field(default_factory=dict)
    longest_s: float = LONGEST_S


@dataclass(eq=False)
class _Ticket:
    key: str
    question: Inquiry
    future: asyncio.Future[bytes]
    say: Callable[[str, int, int], None] | None


@dataclass(eq=False)
class _Seat:
    """A process, its end of the pipe, and what it works on."""

    process: ForkServerProcess
    pipe: Connection
    ticket: _Ticket | None = None
    alarm: asyncio.TimerHandle | None = None


class AnswerPool:
    """`count` processes that answer questions about files relative to `folder`; used in one event loop."""

    def __init__(self, count: int, folder: Path, memory_bytes: int | None) -> None:
        self.count, self._folder, self._memory = count, folder, memory_bytes
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["commsim.explorer.warm"])
        self._seats: list[_Seat] = []
        self._waiting: dict[str, _Ticket] = {}
        self._closed = False

    async def start(self) -> None:
        """Starts the processes, the first of which waits for modules and loops to be there; questions may wait too."""
        first = await asyncio.get_running_loop().run_in_executor(None, self._process)
        self._seats.append(self._seated(*first))
        while len(self._seats) < self.count and not self._closed:
            self._seats.append(self._seated(*self._process()))
        if self._closed:
            self.close()
        self._serve()

    def close(self) -> None:
        """Ends the processes; who waits is told."""
        self._closed = True
        for ticket in self._waiting.values():
            _fail(ticket, LostError("the explorer ends"))
        self._waiting.clear()
        for seat in list(self._seats):
            self._end(seat, LostError("the explorer ends"))

    @property
    def processes(self) -> list[int]:
        """Their ids."""
        return [seat.process.pid or 0 for seat in self._seats]

    async def ask(self, key: str, question: Inquiry, say: Callable[[str, int, int], None] | None = None) -> bytes:
        """The answer as JSON. DroppedError where a newer question came, LostError where there is none.

        Cancelled, it ends the process that works on it.
        """
        self._drop(key)
        if len(self._waiting) >= MOST_WAITING:
            raise LostError("too many questions wait; close some tabs")
        ticket = _Ticket(key, question, asyncio.get_running_loop().create_future(), say)
        self._waiting[key] = ticket
        self._serve()
        try:
            return await ticket.future
        except asyncio.CancelledError:
            self._leave(ticket)
            raise

    # -- inside ---------------------------------

    def _drop(self, key: str) -> None:
        if old := self._waiting.pop(key, None):
            _fail(old, DroppedError())
        for seat in list(self._seats):
            if seat.ticket is not None and seat.ticket.key == key:
                _fail(seat.ticket, DroppedError())
                self._stop(seat)

    def _leave(self, ticket: _Ticket) -> None:
        if self._waiting.get(ticket.key) is ticket:
            del self._waiting[ticket.key]
        for seat in list(self._seats):
            if seat.ticket is ticket:
                self._stop(seat)

    def _stop(self, seat: _Seat) -> None:
        """Tells a process that nobody waits for its answer; one that goes on for long is ended."""
        ticket = seat.ticket
        with contextlib.suppress(OSError):
            seat.pipe.send(None)

        def impatient() -> None:
            if seat.ticket is ticket:
                self._end(seat, DroppedError())

        asyncio.get_running_loop().call_later(PATIENCE_S, impatient)

    def _serve(self) -> None:
        """Gives what waits to processes that are free, in order."""
        for key, ticket in list(self._waiting.items()):
            seat = next((s for s in self._seats if s.ticket is None), None)
            if seat is None:
                return
            del self._waiting[key]
            seat.ticket = ticket
            question = ticket.question
            loop = asyncio.get_running_loop()
            late = LostError(f"no answer within {question.longest_s:.0f} s; ask for a smaller machine")
            seat.alarm = loop.call_later(question.longest_s, self._end, seat, late)
            try:
                seat.pipe.send((question.name, dict(question.state), dict(question.more)))
            except OSError:
                self._end(seat, LostError("its process ended; ask again"))

    def _heard(self, seat: _Seat) -> None:
        """Reads what a process says: how far it is, or its answer."""
        try:
            kind, content = seat.pipe.recv()
        except (EOFError, OSError):
            self._end(seat, LostError("its process ended (out of memory?); another has taken its place"))
            return
        ticket = seat.ticket
        if kind == "say":
            if ticket is not None and ticket.say is not None and not ticket.future.done():
                ticket.say(*content)
            return
        if kind == "full":
            self._end(seat, LostError("its process ended"))
            return
        seat.ticket = None
        if seat.alarm is not None:
            seat.alarm.cancel()
        if ticket is not None and not ticket.future.done():
            ticket.future.set_result(content)
        self._serve()

    def _process(self) -> tuple[ForkServerProcess, Connection]:
        """A new process, and our end of its pipe."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self._folder, self._memory), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def _seated(self, process: ForkServerProcess, ours: Connection) -> _Seat:
        seat = _Seat(process, ours)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._heard, seat)
        return seat

    def _end(self, seat: _Seat, why: Exception) -> None:
        """Ends a process; another takes its place."""
        if seat not in self._seats:
            return
        self._seats.remove(seat)
        if seat.alarm is not None:
            seat.alarm.cancel()
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(seat.pipe.fileno())
        seat.pipe.close()
        seat.process.kill()
        seat.process.join(5)
        if seat.ticket is not None:
            _fail(seat.ticket, why)
        if not self._closed:
            self._seats.append(self._seated(*self._process()))
            self._serve()


def _fail(ticket: _Ticket, why: Exception) -> None:
    if not ticket.future.done():
        ticket.future.set_exception(why)


def _work(pipe: Connection, folder: Path, memory_bytes: int | None) -> None:
    """What a process does: it answers one question after the other from the same cache."""
    begin_process(None, ())
    from commsim.explorer.answers import answer
    from commsim.explorer.warm import CACHE
    from commsim.memory import allow

    allow(memory_bytes)

    def say(what: str, done: int, of: int) -> None:
        pipe.send(("say", (what, done, of)))
        if pipe.poll() and pipe.recv() is None:
            raise _StoppedError

    while True:
        try:
            asked = pipe.recv()
            if asked is None:  # to stop, when the answer was on its way
                continue
            name, state, more = asked
            try:
                made = answer(name, state, folder, CACHE, say, more)
            except _StoppedError:
                made = b"{}"
            pipe.send(("answer", made))
            if memory_bytes is not None and _held_bytes() > memory_bytes + SPARE:
                pipe.send(("full", None))
                return
        except (EOFError, OSError):
            return


class _StoppedError(BaseException):
    """Nobody waits for the answer any more."""


def _held_bytes() -> int:
    """The most memory that this process has held."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
