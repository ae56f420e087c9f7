"""The application behind the page: JSON, a stream of events, metrics, the page's files, and who may see them."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import math
import socket
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir.engine.steering.requests import RECONFIGURE, SLOT_WAIT, await_answer, predict, submit
from weir.engine.steering.requests import Request as Ask
from weir.errors import EngineError, WeirError
from weir.state.storage import Storage
from weir.watch.keys import find_key, hottest_keys
from weir.watch.metrics import Metrics
from weir.watch.reader import CheckpointReader
from weir.watch.snapshot import Steering, decisions, snapshot, timeline

STATIC = Path(str(files("weir.watch") / "static"))
POINTS = 1200  # of a time line: about as many as a screen has pixels for
ALIVE = 15.0  # seconds between two signs of life of a stream of events
ANSWER_WAIT = 120.0  # seconds that the query has to take up a request

logger = logging.getLogger("weir.watch")


class Page:
    """What the routes share: the reader, who listens, and what was asked of the query."""

    def __init__(self, checkpoint: str | Storage, control: bool) -> None:
        self.metrics = Metrics()
        self.reader = CheckpointReader(checkpoint, self.metrics.add)
        self.metrics.reader = self.reader
        self.control = control
        self._steering = Steering()
        self._lines: tuple[tuple[int, float, float], str] | None = None
        self.listeners = 0
        self._version = 0
        self._message = ""
        self._status: dict[str, Any] = {}
        self._changed = asyncio.Condition()
        self._closing = False

    async def follow(self) -> None:
        """Look at the checkpoint again and again; tell those who listen when something has changed."""
        while not self._closing:
            try:
                changed = await run_in_threadpool(self._look)
            except (WeirError, OSError) as error:
                logger.warning("cannot read the checkpoint: %s", error)
                changed = False
            if changed:
                await self._tell()
            await asyncio.sleep(self.reader.poll)

    def _look(self) -> bool:
        changed = self.reader.refresh()
        if self.listeners:
            status = self.reader.status()
            changed, self._status = changed or status != self._status, status
        return changed

    async def _tell(self) -> None:
        async with self._changed:
            self._version += 1
            self._message = ""
            self._changed.notify_all()

    async def watch_for_the_end(self, stopping: Callable[[], bool]) -> None:
        """End the streams of events when the server stops; it waits for them."""
        while not stopping():
            await asyncio.sleep(0.25)
        await self.close()

    async def close(self) -> None:
        self._closing = True
        await self._tell()

    def now(self) -> dict[str, Any]:
        """Return what the page shows of the present."""
        points = self.reader.points
        shown = {"steering": self._steering.of(points), "decisions": decisions(points, self.reader.marks)}
        return {**snapshot(self.reader), "control": self.control, **shown}

    def lines(self, begin: float, end: float) -> str:
        """Return time lines as JSON; pages that ask for the same share one answer."""
        asked = (self.reader.last, begin, end)
        if self._lines is None or self._lines[0] != asked:
            told = timeline(self.reader.points, self.reader.marks, POINTS, begin, end)
            self._lines = asked, _json(told)
        return self._lines[1]

    async def events(self) -> AsyncIterator[str]:
        """Yield server-sent events: the present at once, and again whenever it has changed."""
        seen = -1
        self.listeners += 1
        try:
            while not self._closing:
                if seen != self._version:
                    seen = self._version
                    if not self._message:  # computed once for all who listen
                        now = await run_in_threadpool(self.now)
                        self._message = f"event: now\ndata: {_json(now)}\n\n"
                    yield self._message
                try:
                    async with asyncio.timeout(ALIVE), self._changed:
                        if seen == self._version and not self._closing:
                            await self._changed.wait()
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self.listeners -= 1


def make_app(
    checkpoint: str | Storage,
    *,
    token: str,
    host: str,
    port: int,
    control: bool = False,
    stopping: Callable[[], bool] = lambda: False,
) -> Starlette:
    """Return the application; it is guarded by a token, and read-only unless ``control``.

    ``stopping`` says whether the server is about to stop.
    """
    page = Page(checkpoint, control)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(page.follow()), asyncio.create_task(page.watch_for_the_end(stopping))]
        yield
        for task in tasks:
            task.cancel()

    # those that are not async run on threads of their own
    def index(request: Request) -> Response:
        return Response((STATIC / "index.html").read_bytes(), media_type="text/html")

    def now(request: Request) -> Response:
        page.reader.refresh()
        return _answer(page.now())

    async def events(request: Request) -> Response:
        return StreamingResponse(page.events(), media_type="text/event-stream")

    def lines(request: Request) -> Response:
        begin, end = (_seconds(request, name, worst) for name, worst in (("from", 0.0), ("to", math.inf)))
        return Response(page.lines(begin, end), media_type="application/json")

    def keys(request: Request) -> Response:
        commit = page.reader.latest
        return _answer({} if commit is None else hottest_keys(page.reader.storage, commit))

    def key(request: Request) -> Response:
        commit, text = page.reader.latest, request.query_params.get("key", "")
        return _answer([] if commit is None or not text else find_key(page.reader.storage, commit, text))

    async def dry_run(request: Request) -> Response:
        ask, commit = await _asked(request, page), page.reader.latest
        if commit is None:
            raise EngineError("no batch has been committed yet, so there is nothing to decide by")
        return _answer(await run_in_threadpool(predict, commit, ask))

    async def steer(request: Request) -> Response:
        storage = page.reader.storage
        name = await run_in_threadpool(submit, storage, await _asked(request, page))
        return _answer(await run_in_threadpool(await_answer, storage, name, ANSWER_WAIT))

    def metrics(request: Request) -> Response:
        page.reader.refresh()
        return Response(page.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    routes = [
        Route("/", index),
        Route("/api/now", now),
        Route("/api/events", events),
        Route("/api/timeline", lines),
        Route("/api/keys", keys),
        Route("/api/key", key),
        Route("/api/dry-run", dry_run, methods=["POST"]),
        Route("/api/steer", steer, methods=["POST"]),
        Route("/metrics", metrics),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[
            Middleware(Guard, token=token, host=host, port=port),
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=3),
        ],
        exception_handlers={WeirError: _refused},
    )


async def _asked(request: Request, page: Page) -> Ask:
    """Return what the page asks for; raise unless it may."""
    if not page.control:
        raise HTTPException(403, "read-only: start `weir watch` with --control to steer from here")
    try:
        body = await request.json()
        operation, servers = str(body["operation"]), int(body.get("servers", 1))
    except (ValueError, KeyError, TypeError):
        raise HTTPException(400, "expected {operation: out, in or reconfigure, servers: K}") from None
    if operation not in ("out", "in", RECONFIGURE):
        raise HTTPException(400, f"no operation {operation!r}: expected out, in or reconfigure")
    return Ask(operation, servers, timeout=SLOT_WAIT, share_slots=bool(body.get("share_slots", False)))


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"state": "refused", "error": str(error)}, 409)


def _answer(data: Any) -> Response:
    return Response(_json(data), media_type="application/json")


def _json(data: Any) -> str:
    return msgspec.json.encode(data, enc_hook=str).decode()


def _seconds(request: Request, name: str, otherwise: float) -> float:
    try:
        return float(request.query_params.get(name, otherwise))
    except ValueError:
        raise HTTPException(400, f"{name}: expected seconds since 1970") from None


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine alone.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


class Guard:
    """Lets requests through that come from the right place with the right token; answers the others itself.

    A token in the link keeps other users of the machine out. The ``Host`` header is compared with the names that the
    page is served under, so that a foreign site whose name is made to point here gets nothing; the ``Origin`` of
    whatever changes something is compared with the page's own.
    """

    def __init__(self, app: ASGIApp, *, token: str, host: str, port: int) -> None:
        self.app, self._token, self._port = app, token, port
        self._cookie = f"weir_{port}"  # browsers share cookies between the ports of a host
        self._names = {"localhost", "127.0.0.1", "::1", host.lower()}
        self._open = not is_loopback(host)
        if self._open:
            self._names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request = Request(scope)
        answer = self._answer(request)
        target = answer if answer is not None else self.app

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        return await target(scope, receive, guarded)

    def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that is not let through, None for one that is."""
        if not self._known(request.headers.get("host", "")):
            return PlainTextResponse("This name is not served here.", 421)
        origin = request.headers.get("origin")
        host = request.headers.get("host", "").lower()
        if origin is not None and urlsplit(origin).netloc.lower() != host:
            return PlainTextResponse("Requests from other sites are refused.", 403)
        changes = request.method not in ("GET", "HEAD")
        if changes and origin is None and "authorization" not in request.headers:
            return PlainTextResponse("A request that changes something names its origin.", 403)
        given = request.query_params.get("token")
        if given is not None and self._right(given) and request.method == "GET":
            answer = RedirectResponse(request.url.path, 303)  # to the same page: the token goes into a cookie
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax", path="/")
            return answer
        bearer = request.headers.get("authorization", "")
        if self._right(request.cookies.get(self._cookie, "")) or self._right(bearer.removeprefix("Bearer ")):
            return None
        return PlainTextResponse("Open the link that `weir watch` printed: it has the token.", 401)

    def _right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())

    def _known(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            name, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            return False
        if port not in (self._port, None):
            return False
        # no foreign name can be made to point here where a host is named by its address
        return name in self._names or (self._open and _address(name) is not None)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
