"""The application behind the page: JSON, a stream of events, metrics, the page's files, and who may see them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from weir.engine.checkpoint import CheckpointLayout
from weir.engine.steering.requests import RECONFIGURE, SLOT_WAIT, await_answer, predict, submit
from weir.engine.steering.requests import Request as Ask
from weir.errors import CheckpointError, EngineError, WeirError
from weir.state.storage import Storage
from weir.watch.guard import Access, Guard
from weir.watch.keys import find_key, hottest_keys
from weir.watch.metrics import Metrics, Together
from weir.watch.reader import CheckpointReader, QueryStatus
from weir.watch.snapshot import Steering, brief, decisions, snapshot, timeline

STATIC = Path(str(files("weir.watch") / "static"))
POINTS = 1200  # of a time line: about as many as a screen has pixels for
SCAN = 2.0  # seconds between two looks for new checkpoints in a folder
ALIVE = 15.0  # seconds between two signs of life of a stream of events
ANSWER_WAIT = 120.0  # seconds that the query has to take up a request
DEEPEST = 3  # folders below one another in which checkpoints are looked for

logger = logging.getLogger("weir.watch")


class Page:
    """What the routes share: the reader, who listens, and what was asked of the query."""

    def __init__(self, checkpoint: str | Storage, control: bool, one_of_several: bool = False) -> None:
        self._one_of_several = one_of_several
        self.metrics = Metrics()
        self.reader = CheckpointReader(checkpoint, self.metrics.add)
        self.metrics.reader = self.reader
        self.control = control
        self._steering = Steering()
        self._lines: tuple[tuple[int, float, float], str] | None = None
        self.listeners = 0
        self._version = 0
        self._message = ""
        self._status: QueryStatus | None = None
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

    async def close(self) -> None:
        """End the streams of events: a server that stops waits for them."""
        self._closing = True
        await self._tell()

    def now(self) -> dict[str, Any]:
        """Return what the page shows of the present."""
        points = self.reader.points
        shown = {"steering": self._steering.of(points), "decisions": decisions(points, self.reader.marks)}
        about = {"control": self.control, "overview": self._one_of_several}
        return {**snapshot(self.reader), **about, **shown}

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
    checkpoint: str | Storage | Sequence[str],
    access: Access,
    *,
    control: bool = False,
    stopping: Callable[[], bool] = lambda: False,
) -> Starlette:
    """Return the application; it is guarded by a token, and read-only unless ``control``.

    Several checkpoints, or a folder of them, have an overview, and a page each below ``query/NAME/``. ``stopping`` says
    whether the server is about to stop.
    """
    places = places_of(checkpoint)
    pages = Pages(places, control) if isinstance(places, Places) else Page(places, control)

    async def close_at_the_end() -> None:
        while not stopping():
            await asyncio.sleep(0.25)
        await pages.close()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(pages.follow()), asyncio.create_task(close_at_the_end())]
        yield
        for task in tasks:
            task.cancel()

    app = Starlette(
        routes=overview_routes(pages) if isinstance(pages, Pages) else page_routes(pages),
        lifespan=lifespan,
        middleware=[
            Middleware(Guard, access=access),
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=3),
        ],
        exception_handlers={WeirError: _refused},
    )
    app.router.redirect_slashes = False  # it would redirect to the name and path that a proxy asks for
    return app


def page_routes(page: Page) -> list[BaseRoute]:
    """Return what is served of one query; the page names all of it relative to itself."""

    # those that are not async run on threads of their own
    def now(request: Request) -> Response:
        page.reader.refresh()
        return _answer(page.now())

    async def events(request: Request) -> Response:
        # nginx would hold back what it has not enough of
        unbuffered = {"x-accel-buffering": "no"}
        return StreamingResponse(page.events(), media_type="text/event-stream", headers=unbuffered)

    def lines(request: Request) -> Response:
        begin, end = _seconds(request, "from", 0.0), _seconds(request, "to", math.inf)
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
        return _metrics(page.metrics.registry)

    def ready(request: Request) -> Response:
        page.reader.refresh()
        told = page.reader.readiness(_seconds(request, "lag", math.inf))
        return _ready(told, told.ready)

    return [
        Route("/", _file("index.html")),
        Route("/api/now", now),
        Route("/api/events", events),
        Route("/api/timeline", lines),
        Route("/api/keys", keys),
        Route("/api/key", key),
        Route("/api/dry-run", dry_run, methods=["POST"]),
        Route("/api/steer", steer, methods=["POST"]),
        Route("/metrics", metrics),
        Route("/health/live", _live),
        Route("/health/ready", ready),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def overview_routes(pages: Pages) -> list[BaseRoute]:
    """Return what is served of several queries."""

    def now(request: Request) -> Response:
        return _answer(pages.now())

    def metrics(request: Request) -> Response:
        registry = CollectorRegistry()
        registry.register(Together({name: page.metrics for name, page in pages.refreshed().items()}))  # type: ignore[arg-type]
        return _metrics(registry)

    def ready(request: Request) -> Response:
        lag = _seconds(request, "lag", math.inf)
        told = {name: page.reader.readiness(lag) for name, page in pages.refreshed().items()}
        ready = all(one.ready for one in told.values())
        return _ready({"ready": ready, "queries": told}, ready)

    async def to_page(request: Request) -> Response:
        return RedirectResponse(f"./{quote(request.path_params['name'])}/", 303)

    return [
        Route("/", _file("overview.html")),
        Route("/api/now", now),
        Route("/metrics", metrics),
        Route("/health/live", _live),
        Route("/health/ready", ready),
        Route("/query/{name}", to_page),
        Mount("/query/{name}", pages),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def _file(name: str) -> Callable[[Request], Response]:
    return lambda request: Response((STATIC / name).read_bytes(), media_type="text/html")


def _live(request: Request) -> Response:
    """Answer: whoever can is alive."""
    return _answer({"live": True})


def _ready(told: Any, ready: bool) -> Response:
    return Response(_json(told), 200 if ready else 503, media_type="application/json")


def _metrics(registry: CollectorRegistry) -> Response:
    return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


class Places:
    """Several checkpoints by name: those that were named, or all below a folder."""

    def __init__(self, locations: Sequence[str], folder: bool) -> None:
        self._locations, self._folder = list(locations), folder
        self.about = locations[0] if folder else f"{len(locations)} checkpoints"

    def find(self) -> dict[str, str]:
        """Return the checkpoints that are there now: a short name for each, and where it is."""
        if not self._folder:
            return dict(zip(short_names(self._locations), self._locations, strict=True))
        root = Storage(self._locations[0])
        # below the folder: what comes later does not change how others are called
        return {at[len(root.location) :].strip("/").replace("/", "~"): at for at in _below(root)}


def places_of(checkpoint: str | Storage | Sequence[str]) -> str | Storage | Places:
    """Return the one checkpoint that is meant, or the places of several."""
    if isinstance(checkpoint, Storage):
        return checkpoint
    locations = [checkpoint] if isinstance(checkpoint, str) else list(checkpoint)
    if len(locations) > 1:
        return Places(locations, folder=False)
    (location,) = locations
    storage = Storage(location)
    if not _is_checkpoint(storage) and storage.exists("") and _below(storage):
        return Places(locations, folder=True)
    return location


def short_names(locations: Sequence[str]) -> list[str]:
    """Return the last part of each location, with as many before it as tell them apart.

    >>> short_names(["a/clicks", "b/clicks", "b/posts/"])
    ['a~clicks', 'b~clicks', 'b~posts']
    >>> short_names(["s3://bucket/clicks"])
    ['clicks']
    """
    parts = [location.rstrip("/").split("/") for location in locations]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["~".join(part[-length:]) for part in parts]
        if len(set(names)) == len({location.rstrip("/") for location in locations}):
            return names
    return [str(number) for number in range(len(locations))]


def _is_checkpoint(storage: Storage) -> bool:
    return storage.exists(CheckpointLayout.HEAD)


def _below(storage: Storage, depth: int = 1) -> list[str]:
    """Return the checkpoints below a folder."""
    found: list[str] = []
    for name in storage.names(""):
        if name.startswith("."):
            continue
        inner = Storage(f"{storage.location}/{name}", storage.options)
        try:
            if _is_checkpoint(inner):
                found.append(inner.location)
            elif depth < DEEPEST:
                found += _below(inner, depth + 1)
        except (CheckpointError, OSError):
            continue  # a file, or not ours to read
    return found


class Pages:
    """The pages of several checkpoints; new ones in a folder are found as they come."""

    def __init__(self, places: Places, control: bool) -> None:
        self._places, self._control = places, control
        self._open: dict[str, tuple[Page, Router]] = {}
        self._broken: dict[str, str] = {}  # what cannot be opened, and why
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closing = False
        self._look()

    async def follow(self) -> None:
        """Follow all checkpoints, and look for new ones."""
        while not self._closing:
            await run_in_threadpool(self._look)
            for name, (page, _) in self._open.items():
                if name not in self._tasks:
                    self._tasks[name] = asyncio.create_task(page.follow())
            await asyncio.sleep(SCAN)

    async def close(self) -> None:
        self._closing = True
        for page, _ in self._open.values():
            await page.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for one of the queries."""
        found = self._open.get(scope["path_params"]["name"])
        missing = PlainTextResponse("No such query is watched here.", 404)
        await (missing if found is None else found[1])(scope, receive, send)

    def refreshed(self) -> dict[str, Page]:
        """Return the pages, each with what its checkpoint says now."""
        for page, _ in self._open.values():
            page.reader.refresh()
        return {name: page for name, (page, _) in self._open.items()}

    def now(self) -> dict[str, Any]:
        """Return what the overview shows."""
        queries = [{"name": name, **brief(page.reader)} for name, page in self.refreshed().items()]
        broken = [{"name": name, "why": why} for name, why in self._broken.items()]
        return {"queries": queries, "broken": broken, "place": self._places.about}

    def _look(self) -> None:
        for name, location in self._places.find().items():
            if name in self._open:
                continue
            try:
                page = Page(location, self._control, one_of_several=True)
            except (WeirError, OSError) as error:
                self._broken[name] = str(error)
                continue
            self._broken.pop(name, None)
            self._open[name] = page, Router(page_routes(page), redirect_slashes=False)


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
