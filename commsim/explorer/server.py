"""The server of the page: 127.0.0.1 only, every address under a secret token, no cookies, nothing from outside.

A page of another site in the same browser cannot read it (no CORS), cannot reach it by a name of its own (the Host is
checked, against DNS rebinding), and does not know the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from commsim.errors import CommsimError
from commsim.explorer.options import options
from commsim.explorer.pool import AnswerPool, DroppedError, Inquiry, LostError
from commsim.explorer.state import State
from commsim.report import chart

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

STATIC = Path(__file__).parent / "static"
LONGEST_STATE = 64 << 10
"""Bytes of a question."""

LONGEST_LOG = 64 << 20
"""Bytes of a log that is dropped on the page."""

SLOWEST_UPLOAD_S = 60.0
LONGEST_PLAN_S = 900.0

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

FRAMES = "http://127.0.0.1:* http://localhost:*"
"""Whose pages may show it in a frame, where that is asked for: a notebook's."""


def new_token() -> str:
    """A secret of 192 bits for an address."""
    return secrets.token_urlsafe(24)


class Guard:
    """Refuses what does not come from the page itself: another Host, another Origin, no token."""

    def __init__(self, app: ASGIApp, token: str, port: int, framed: bool) -> None:
        self._app, self._token = app, token.encode()
        self._hosts = {f"127.0.0.1:{port}".encode(), f"localhost:{port}".encode()}
        self._origins = {b"http://" + host for host in self._hosts}
        self._framed = framed
        name = "Content-Security-Policy"
        self._safe = HEADERS | {name: HEADERS[name] + (FRAMES if framed else "'none'")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 403 itself, or hands on with the safe headers added."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        secret, _, _ = scope["path"].removeprefix("/").partition("/")
        known = secrets.compare_digest(secret.encode("utf-8", "replace"), self._token)
        origin = headers.get(b"origin")
        own = headers.get(b"host", b"") in self._hosts and (origin is None or origin in self._origins)
        shown = self._framed and headers.get(b"sec-fetch-dest") == b"iframe"  # the page itself; all else is its own
        own &= shown or headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")

        async def safe(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in self._safe.items())]
            await send(message)

        if known and own:
            await self._app(scope, receive, safe)
        else:
            await Response("this is not for you\n", 403, media_type="text/plain")(scope, receive, safe)


class _Page:
    """What each address of the page answers."""

    def __init__(self, pool: AnswerPool, start: State) -> None:
        self._pool, self._start = pool, start
        self._files = {path.name: path for path in STATIC.iterdir() if path.suffix in TYPES}
        self._files |= {name: chart.STATIC / name for name in chart.SCRIPTS}

    async def file(self, request: Request) -> Response:
        """The page itself, or a file of it."""
        name = request.path_params.get("name") or "index.html"
        if name not in self._files:
            return Response("no such file\n", 404, media_type="text/plain")
        return FileResponse(self._files[name], media_type=TYPES[self._files[name].suffix])

    async def options(self, request: Request) -> Response:
        """What the controls offer, and the state that is shown first."""
        del request
        return JSONResponse(options() | {"start": self._start.query()})

    async def ask(self, request: Request) -> Response:
        """The answer to one question."""
        try:
            body = json.loads(await _body(request, LONGEST_STATE))
            key, question = str(body["key"])[:100], Inquiry(str(body["question"]), dict(body["state"]))
        except _TooLongError as error:
            return _too_long(error)
        except (ValueError, KeyError, TypeError):
            return JSONResponse({"error": "found no question, expected key, question and state"}, 400)
        return await _answered(self._pool, key, question, request)

    async def log(self, request: Request) -> Response:
        """The verdict on a log, which is sent as it is; the state stands in the query."""
        values = dict(request.query_params)
        name = Path(values.pop("name", "")).name[:100].lstrip(".") or "log.txt"
        key, against = values.pop("key", "")[:100], values.pop("against", "")
        with tempfile.TemporaryDirectory(prefix="commsim-") as folder:
            path = Path(folder) / "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
            try:
                await asyncio.wait_for(_save(request, path), SLOWEST_UPLOAD_S)
            except _TooLongError as error:
                return _too_long(error)
            except (TimeoutError, ClientDisconnect):
                return JSONResponse({"error": "the log did not come in time"}, 408)
            question = Inquiry("log", values, {"path": str(path), "against": against})
            return await _answered(self._pool, key, question, request)

    async def plan(self, request: Request) -> Response:
        """A plan, step by step."""
        try:
            body = json.loads(await _body(request, LONGEST_STATE))
            key, question = str(body["key"])[:100], Inquiry("plan", dict(body["state"]), {}, LONGEST_PLAN_S)
        except (_TooLongError, ValueError, KeyError, TypeError):
            return JSONResponse({"error": "found no question, expected key and state"}, 400)
        return StreamingResponse(_lines(self._pool, key, question), media_type="application/x-ndjson")


def application(pool: AnswerPool, token: str, port: int, start: State, *, framed: bool = False) -> ASGIApp:
    """The page under its token; `start` is what it shows first; `framed`: pages of this machine may frame it."""
    page = _Page(pool, start)
    routes = [
        Route("/{token}/", page.file),
        Route("/{token}/static/{name}", page.file),
        Route("/{token}/options", page.options),
        Route("/{token}/ask", page.ask, methods=["POST"]),
        Route("/{token}/log", page.log, methods=["POST"]),
        Route("/{token}/plan", page.plan, methods=["POST"]),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        starting = asyncio.ensure_future(pool.start())  # the page need not wait for it
        try:
            yield
        finally:
            pool.close()
            await starting

    return Guard(Starlette(routes=routes, lifespan=lifespan), token, port, framed)


class _TooLongError(Exception):
    pass


def _too_long(error: _TooLongError) -> Response:
    """The refusal, after which nothing more is read."""
    return JSONResponse({"error": str(error)}, 413, {"Connection": "close"})


async def _body(request: Request, most: int) -> bytes:
    """What was sent; `_TooLongError` as soon as it is more than so many bytes."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _TooLongError(f"found more than {most:,} bytes, expected less")
        parts.append(part)
    return b"".join(parts)


async def _save(request: Request, path: Path) -> None:
    """Writes what is sent to a file as it comes."""
    size = 0
    with path.open("wb") as file:
        async for part in request.stream():
            size += len(part)
            if size > LONGEST_LOG:
                raise _TooLongError(f"found a log of more than {LONGEST_LOG >> 20} MiB, expected less")
            file.write(part)


async def _answered(pool: AnswerPool, key: str, question: Inquiry, request: Request) -> Response:
    """The answer; whoever goes away ends the work."""
    work = asyncio.ensure_future(pool.ask(key, question))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return Response(status_code=204)
        return Response(work.result(), media_type="application/json")
    except DroppedError:
        return Response(status_code=204)
    except LostError as error:
        return JSONResponse({"error": str(error)})
    finally:
        work.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    """Returns when the connection of a question that has been read is closed."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _lines(pool: AnswerPool, key: str, question: Inquiry) -> AsyncIterator[bytes]:
    """A line of JSON for each step of long work, the last its answer; whoever goes away ends the work."""
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    work = asyncio.ensure_future(
        pool.ask(key, question, lambda what, done, of: said.put_nowait({"what": what, "done": done, "of": of}))
    )
    work.add_done_callback(lambda _: said.put_nowait({}))
    try:
        while line := await said.get():
            yield json.dumps(line).encode() + b"\n"
        yield work.result() + b"\n"
    except (DroppedError, LostError, CommsimError) as error:
        yield json.dumps({"error": str(error) or "a newer question took its place"}).encode() + b"\n"
    finally:
        work.cancel()
