"""Serve the page: in this process until it is interrupted, or beside a query on a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import os
import secrets
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weir.errors import EngineError, TopologyError, did_you_mean
from weir.extras import install
from weir.state.storage import Storage

PORT = 8642
LOOPBACK = "127.0.0.1"


class PageServer:
    """The page of one checkpoint, or of several, on an address of this machine.

    Parameters
    ----------
    checkpoint
        A folder, a URI, or the storage of a query that runs here. Several of them, or a folder of checkpoints, have an
        overview.
    host, port
        Where to listen. Port 0 takes any that is free; without a port, 8642 or, if that is taken, any.
    control
        Whether the page may steer the query.
    token
        What the link must carry; ``WEIR_WATCH_TOKEN`` of the environment, or a new one, if not given.
    public_url, allowed_hosts, trusted_proxies, frame_ancestors
        Behind a proxy: see :class:`~weir.watch.guard.Access`.
    """

    def __init__(
        self,
        checkpoint: str | Storage | Sequence[str],
        *,
        host: str = LOOPBACK,
        port: int | None = None,
        control: bool = False,
        token: str | None = None,
        public_url: str | None = None,
        allowed_hosts: Iterable[str] = (),
        trusted_proxies: Iterable[str] = (),
        frame_ancestors: Iterable[str] = (),
    ) -> None:
        self._socket = _bind(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self.token = token or os.environ.get("WEIR_WATCH_TOKEN") or secrets.token_urlsafe(24)
        try:
            import uvicorn

            from weir.watch.app import make_app
            from weir.watch.guard import Access

            names = (public_url, allowed_hosts, trusted_proxies, frame_ancestors)
            self._access = Access(self.token, host, self.port, *names)
            app = make_app(
                checkpoint, self._access, control=control, stopping=lambda: self._server.should_exit
            )
        except ImportError as error:
            self._socket.close()
            raise EngineError(
                f"the page needs {error.name}, which is not installed: {install('watch')}"
            ) from None
        except Exception:
            self._socket.close()
            raise
        # what proxies say of a request is read by the guard, from those that are trusted
        settings: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
        settings |= {"proxy_headers": False, "timeout_graceful_shutdown": 3}
        self._server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", loop="asyncio", **settings))
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The link to open, token included."""
        return self._access.url

    def run(self) -> None:
        """Serve until interrupted."""
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def start(self) -> PageServer:
        """Serve on a thread; return when the page can be opened."""
        self._thread = threading.Thread(target=self.run, name="weir-watch", daemon=True)
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.01)
            if not self._thread.is_alive():
                raise EngineError(f"the page could not be served on {self.host}:{self.port}; see the log")
        return self

    def stop(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(5)
        self._socket.close()

    def __enter__(self) -> PageServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def page_of(watch: Mapping[str, Any] | bool | int | None, storage: Storage) -> PageServer | None:
    """Return the page that the option ``watch=`` of a query asks for, if it does."""
    if watch is None or watch is False:
        return None
    terms = watch if isinstance(watch, Mapping) else {"port": None if watch is True else watch}
    known = [*inspect.signature(PageServer).parameters][1:]
    for name in terms:
        if name not in known:
            raise TopologyError(f"watch= takes no {name!r}; {did_you_mean(name, known)}")
    return PageServer(storage, **terms).start()


def _bind(host: str, port: int | None) -> socket.socket:
    """Return a socket that is bound, so that a port that is taken is refused before anything starts."""
    for wanted in (PORT, 0) if port is None else (port,):
        try:
            family = socket.getaddrinfo(host, wanted, type=socket.SOCK_STREAM)[0][0]
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, wanted))
        except (OSError, OverflowError) as error:
            problem = error
            continue
        return listener
    raise EngineError(f"cannot listen on {host}:{wanted} ({problem}); choose another address or port")
