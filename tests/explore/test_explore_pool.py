"""The processes behind the page: the newest question wins, and one that dies is replaced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from commsim.explorer.pool import AnswerPool, DroppedError, Inquiry, LostError

SMALL = {"nodes": "1", "on": "hgx-h100", "sizes": "1 MiB"}
pytestmark = pytest.mark.slow  # processes start


def _with_pool(work: Callable[[AnswerPool], Awaitable[None]], count: int = 1) -> None:
    async def run() -> None:
        pool = AnswerPool(count, Path(), None)
        await pool.start()
        try:
            await work(pool)
        finally:
            pool.close()

    asyncio.run(run())


def _question(name: str = "curve", **state: str) -> Inquiry:
    return Inquiry(name, SMALL | state)


def _error(answer: bytes) -> Any:
    return json.loads(answer).get("error")


def test_a_crashed_process_is_replaced() -> None:
    async def work(pool: AnswerPool) -> None:
        assert _error(await pool.ask("a", _question())) is None
        first = pool.processes
        os.kill(first[0], signal.SIGSTOP)  # so that the answer is not there before the end
        asked = asyncio.ensure_future(pool.ask("a", _question(sizes="3 KiB")))
        await asyncio.sleep(0.2)
        os.kill(first[0], signal.SIGKILL)
        with pytest.raises(LostError, match="another has taken its place"):
            await asked
        assert pool.processes != first
        assert _error(await pool.ask("a", _question())) is None

    _with_pool(work)


def test_the_newest_question_of_a_panel_wins() -> None:
    async def work(pool: AnswerPool) -> None:
        asked = [asyncio.ensure_future(pool.ask("a", _question(sizes=f"{n} KiB"))) for n in range(1, 9)]
        other = asyncio.ensure_future(pool.ask("b", _question(sizes="7 KiB")))
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(result, DroppedError) for result in results[:-1])
        assert isinstance(results[-1], bytes)
        assert json.loads(results[-1])["rows"][0][0] == "8 KiB"
        assert _error(await other) is None

    _with_pool(work)


def test_whoever_goes_away_ends_long_work() -> None:
    async def work(pool: AnswerPool) -> None:
        said: list[str] = []
        plan = Inquiry("plan", {"model": "llama3-70b", "nodes": "8"})
        asked = asyncio.ensure_future(pool.ask("p", plan, lambda what, done, of: said.append(what)))
        while not said:
            await asyncio.sleep(0.05)
        asked.cancel()
        answer = await asyncio.wait_for(pool.ask("a", _question()), 20)
        assert _error(answer) is None

    _with_pool(work)


def test_what_takes_too_long_is_ended() -> None:
    async def work(pool: AnswerPool) -> None:
        slow = Inquiry("plan", {"model": "llama3-70b", "nodes": "8"}, longest_s=0.3)
        with pytest.raises(LostError, match="no answer within"):
            await pool.ask("p", slow)
        assert _error(await pool.ask("a", _question())) is None

    _with_pool(work)


def test_a_fault_in_a_question_leaves_its_process_alive() -> None:
    async def work(pool: AnswerPool) -> None:
        first = pool.processes
        assert "expected" in _error(await pool.ask("a", _question(nodes="x")))
        assert "internal error" in _error(await pool.ask("a", Inquiry("nonsense", {})))
        assert pool.processes == first

    _with_pool(work)


def test_closing_ends_all_processes() -> None:
    async def work(pool: AnswerPool) -> None:
        assert len(pool.processes) == 2
        pool.close()
        assert not pool.processes

    _with_pool(work, 2)
