"""Serve the page: in this process until it is interrupted, or beside a query on a thread of its own."""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
from typing import Any

from weir.errors import EngineError
from weir.extras import install
from weir.state.storage import Storage

PORT = 8642
LOOPBACK = "127.0.0.1"


class PageServer:
    """The page of one checkpoint on an address of this machine.

    Parameters
    ----------
    checkpoint
        A folder, a URI, or the storage of a query that runs here.
    host, port
        Where to listen. Port 0 takes any that is free; without a port, 8642 or, if that is taken, any.
    control
        Whether the page may steer the query.
    token
        What the link must carry; a new one if not given.
    """

    def __init__(
        self,
        checkpoint: str | Storage,
        *,
        host: str = LOOPBACK,
        port: int | None = None,
        control: bool = False,
        token: str | None = None,
    ) -> None:
        self._socket = _bind(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        try:
            import uvicorn

            from weir.watch.app import make_app
        except ImportError as error:
            self._socket.close()
            raise EngineError(
                f"the page needs {error.name}, which is not installed: {install('watch')}"
            ) from None
        self.token = token or secrets.token_urlsafe(24)
        terms: dict[str, Any] = {"token": self.token, "host": host, "port": self.port, "control": control}
        app = make_app(checkpoint, **terms, stopping=lambda: self._server.should_exit)
        settings: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
        self._server = uvicorn.Server(
            uvicorn.Config(
                app, http="h11", ws="none", loop="asyncio", timeout_graceful_shutdown=3, **settings
            )
        )
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The link to open, token included."""
        shown = LOOPBACK if self.host in ("0.0.0.0", "::", "localhost") else self.host
        name = f"[{shown}]" if ":" in shown else shown
        return f"http://{name}:{self.port}/?token={self.token}"

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


def page_of(watch: bool | int | None, storage: Storage) -> PageServer | None:
    """Return the page that the option ``watch=`` of a query asks for, if it does."""
    if watch is None or watch is False:
        return None
    return PageServer(storage, port=None if watch is True else watch).start()


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
