"""The server of the page: who may ask, how much, and what comes back. Its processes are stood in for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from commsim.explorer.pool import AnswerPool, DroppedError, Inquiry, LostError
from commsim.explorer.server import LONGEST_LOG, LONGEST_STATE, application, new_token
from commsim.explorer.state import State

PORT = 4711
TOKEN = "s3cret-token"
HOME = f"http://127.0.0.1:{PORT}"


class StandIn(AnswerPool):
    """Answers at once with what it was asked."""

    def __init__(self) -> None:
        super().__init__(0, Path(), None)
        self.asked: list[Inquiry] = []
        self.fault: Exception | None = None

    async def start(self) -> None:
        """Starts nothing."""

    async def ask(self, key: str, question: Inquiry, say: Callable[[str, int, int], None] | None = None) -> bytes:
        """The question itself."""
        self.asked.append(question)
        if self.fault is not None:
            raise self.fault
        if say is not None:
            say("ranking", 1, 2)
            await asyncio.sleep(0)
        text = Path(question.more["path"]).read_text() if "path" in question.more else ""
        return json.dumps({"key": key, "name": question.name, "state": dict(question.state), "text": text}).encode()


@pytest.fixture
def pool() -> StandIn:
    """What stands in for the processes."""
    return StandIn()


class Client:
    """A browser on the page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def get(self, path: str, **more: Any) -> httpx.Response:
        """The answer to a GET."""
        return asyncio.run(self._ask("GET", path, **more))

    def post(self, path: str, **more: Any) -> httpx.Response:
        """The answer to a POST."""
        return asyncio.run(self._ask("POST", path, **more))

    async def _ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url=HOME) as client:
            return await client.request(method, path, **more)


@pytest.fixture
def client(pool: StandIn) -> Client:
    """A browser on the page."""
    return Client(application(pool, TOKEN, PORT, State.of({"nodes": "8"})))


QUESTION = {"key": "tab-panel", "question": "curve", "state": {"nodes": "2"}}


def test_the_page_and_all_its_files_come_from_here(client: Client) -> None:
    page = client.get(f"/{TOKEN}/")
    assert page.status_code == 200
    text = page.text
    assert "http://" not in text
    assert "https://" not in text
    for name in ("main.js", "explore.css", "charts.js", "echarts.js"):
        file = client.get(f"/{TOKEN}/static/{name}")
        assert file.status_code == 200
        assert file.headers["content-type"].split(";")[0] in ("text/javascript", "text/css")


def test_answers_carry_no_cookie_and_a_strict_policy(client: Client) -> None:
    for path in ("", "options", "static/main.js"):
        headers = client.get(f"/{TOKEN}/{path}").headers
        assert "set-cookie" not in headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("path", ["/", "/x/", "/s3cret-toke/", "/s3cret-token2/ask", "/%E9/", "/favicon.ico"])
def test_without_the_token_nothing_is_given(client: Client, pool: StandIn, path: str) -> None:
    assert client.get(path).status_code == 403
    assert client.post(path, json=QUESTION).status_code == 403
    assert not pool.asked


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": f"evil.example:{PORT}"},
        {"host": "127.0.0.1:1"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"https://127.0.0.1:{PORT}"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_a_page_of_another_site_is_refused_even_with_the_token(
    client: Client, pool: StandIn, headers: dict[str, str]
) -> None:
    assert client.get(f"/{TOKEN}/", headers=headers).status_code == 403
    assert client.post(f"/{TOKEN}/ask", json=QUESTION, headers=headers).status_code == 403
    assert not pool.asked


def test_the_page_itself_may_ask(client: Client) -> None:
    own = {"origin": HOME, "sec-fetch-site": "same-origin"}
    answer = client.post(f"/{TOKEN}/ask", json=QUESTION, headers=own)
    assert answer.json() == {"key": "tab-panel", "name": "curve", "state": {"nodes": "2"}, "text": ""}
    assert client.get(f"/{TOKEN}/options").json()["start"] == "nodes=8"


@pytest.mark.parametrize("name", ["../server.py", "..%2Fserver.py", "%2e%2e%2fserver.py", "server.py", ".", "x.js"])
def test_no_other_file_is_given(client: Client, name: str) -> None:
    assert client.get(f"/{TOKEN}/static/{name}").status_code in (403, 404)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"key":1,"question":"curve","state":"x"}'])
def test_what_is_no_question_is_refused(client: Client, body: bytes) -> None:
    answer = client.post(f"/{TOKEN}/ask", content=body)
    assert answer.status_code == 400
    assert "expected" in answer.json()["error"]


def test_who_goes_away_ends_the_work() -> None:
    class Slow(StandIn):
        ended = False

        async def ask(self, key: str, question: Inquiry, say: Any = None) -> bytes:
            try:
                return await asyncio.Future()
            except asyncio.CancelledError:
                self.ended = True
                raise

    async def go() -> bool:
        pool = Slow()
        body = json.dumps({"key": "k", "question": "curve", "state": {}}).encode()
        come: list[Any] = [{"type": "http.request", "body": body}, {"type": "http.disconnect"}]
        headers = [(b"host", f"127.0.0.1:{PORT}".encode())]
        path = f"/{TOKEN}/ask"
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
                 "headers": headers, "root_path": "", "scheme": "http", "http_version": "1.1"}  # fmt: skip

        async def receive() -> Any:
            return come.pop(0)

        async def send(message: Any) -> None:
            pass

        await asyncio.wait_for(application(pool, TOKEN, PORT, State.of({}))(scope, receive, send), 20)
        await asyncio.sleep(0)
        return pool.ended

    assert asyncio.run(go())


def test_a_question_that_is_too_long_is_refused(client: Client, pool: StandIn) -> None:
    assert client.post(f"/{TOKEN}/ask", content=b"x" * (LONGEST_STATE + 1)).status_code == 413
    assert not pool.asked


@pytest.mark.parametrize(
    ("name", "kept"), [("../../etc/my log.txt", "my_log.txt"), ("..", "log.txt"), ("", "log.txt"), ("/a/.x", "x")]
)
def test_a_log_is_handed_on_under_a_harmless_name(client: Client, pool: StandIn, name: str, kept: str) -> None:
    answer = client.post(f"/{TOKEN}/log", params={"name": name, "nodes": "2", "against": "page"}, content=b"rows")
    assert answer.json()["text"] == "rows"
    assert answer.json()["state"] == {"nodes": "2"}
    path = Path(pool.asked[0].more["path"])
    assert path.name == kept
    assert not path.exists()  # gone with the answer
    assert pool.asked[0].more["against"] == "page"


def test_a_huge_log_is_refused_while_it_comes(client: Client, pool: StandIn) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 2 * LONGEST_LOG:
            sent += 1 << 20
            yield bytes(1 << 20)

    answer = client.post(f"/{TOKEN}/log?name=x", content=endless())
    assert answer.status_code == 413
    assert "64 MiB" in answer.json()["error"]
    assert sent <= LONGEST_LOG + (1 << 20)
    assert not pool.asked


def test_a_dropped_question_has_no_content_and_a_lost_one_a_reason(client: Client, pool: StandIn) -> None:
    pool.fault = DroppedError()
    assert client.post(f"/{TOKEN}/ask", json=QUESTION).status_code == 204
    pool.fault = LostError("its process ended")
    assert client.post(f"/{TOKEN}/ask", json=QUESTION).json() == {"error": "its process ended"}


def test_long_work_says_how_far_it_is(client: Client) -> None:
    lines = client.post(f"/{TOKEN}/plan", json={"key": "k", "state": {}}).text.splitlines()
    assert json.loads(lines[0]) == {"what": "ranking", "done": 1, "of": 2}
    assert json.loads(lines[-1])["name"] == "plan"


def test_tokens_are_long_and_differ() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 32
