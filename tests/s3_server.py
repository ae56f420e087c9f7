"""Moto's S3 server in a process of its own, and a proxy before it that loses requests and answers.

``python s3_server.py`` serves on a free port of 127.0.0.1 and prints it.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEYS = {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
FAULTS = ("refuse", "hang up", "lose the answer", "cut the answer", "answer late")
LATE = 1.5  # seconds; clients in these tests wait for one


def serve() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    moto = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()

    def application(environ: Any, start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] != "PUT":
            return moto(environ, start_response)
        with one_at_a_time:  # moto looks, then writes: S3 itself does both in one
            return moto(environ, start_response)

    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Run a server; yields its address."""
    process = subprocess.Popen(
        [sys.executable, __file__], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "moto's server did not start"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def create_bucket(endpoint: str, name: str) -> None:
    connection = http.client.HTTPConnection(endpoint.removeprefix("http://"))
    connection.request(
        "PUT", f"/{name}", headers={"Authorization": "AWS4-HMAC-SHA256 Credential=test/x/us-east-1/s3/x"}
    )
    assert connection.getresponse().status == 200
    connection.close()


class Unreliable:
    """A proxy that lets things go wrong, at random with ``rate`` or as listed in ``next_faults``."""

    def __init__(self, endpoint: str, rate: float = 0.0, seed: int = 0) -> None:
        self.behind = endpoint.removeprefix("http://")
        self.rate, self.rng = rate, random.Random(seed)
        self.faults = itertools.cycle(FAULTS)
        self.next_faults: list[tuple[str, str]] = []  # method, fault
        self.requests: list[tuple[str, str, str]] = []  # method, path, fault
        self.outages = (0, 0)  # every so many requests, so many in a row go wrong
        self.bytes_read = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            unreliable = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def fault(self, method: str, path: str) -> str:
        with self._lock:
            fault = ""
            if self.next_faults and self.next_faults[0][0] == method:
                fault = self.next_faults.pop(0)[1]
            elif (
                self.outages[0] and len(self.requests) % self.outages[0] >= self.outages[0] - self.outages[1]
            ):
                fault = self.rng.choice(FAULTS[:3])
            elif self.rng.random() < self.rate:
                fault = next(self.faults)
            self.requests.append((method, path, fault))
            return fault

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    unreliable: Unreliable
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.unreliable.fault(self.command, self.path)
        if fault == "refuse":
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif fault == "hang up":
            self._hang_up()
        else:
            answer = self._forward(body)
            if fault == "lose the answer":
                self._hang_up()
            else:
                if fault == "answer late":
                    time.sleep(LATE)
                with contextlib.suppress(OSError):
                    self._pass_on(*answer, cut=fault == "cut the answer")

    def _pass_on(self, status: int, headers: list[tuple[str, str]], answer: bytes, cut: bool) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "server", "date"):
                self.send_header(name, value)
        length = next((v for n, v in headers if n.lower() == "content-length"), str(len(answer)))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.unreliable.bytes_read += len(answer)
        self.wfile.write(answer[: len(answer) // 2] if cut else answer)
        if cut:
            self._hang_up()

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.unreliable.behind, timeout=30)
        connection.request(self.command, self.path, body, dict(self.headers))
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, response.getheaders(), answer

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle


if __name__ == "__main__":
    serve()
