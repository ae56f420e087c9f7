"""Who may look at the page: only who has the token, from an address that it is served under.

A token in the link keeps other users of the machine out. The ``Host`` header is compared with the names that the page
is served under, so that a foreign site whose name is made to point here gets nothing; the ``Origin`` of whatever
changes something is compared with the page's own. The content policy lets the page load its own files and nothing else.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


def new_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine alone.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Lets requests through that come from the right place with the right token; answers the others itself."""

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
        if origin is not None and not self._own(origin, request.headers):
            return PlainTextResponse("Requests from other sites are refused.", 403)
        if (
            request.method not in ("GET", "HEAD")
            and origin is None
            and "authorization" not in request.headers
        ):
            return PlainTextResponse("A request that changes something names its origin.", 403)
        given = request.query_params.get("token")
        if given is not None and self._right(given) and request.method == "GET":
            return self._with_cookie(request)
        bearer = request.headers.get("authorization", "")
        if self._right(request.cookies.get(self._cookie, "")) or self._right(bearer.removeprefix("Bearer ")):
            return None
        return PlainTextResponse("Open the link that `weir watch` printed: it has the token.", 401)

    def _with_cookie(self, request: Request) -> Response:
        """Return a redirection to the same page without the token, which goes into a cookie."""
        answer = RedirectResponse(request.url.path, 303)
        answer.set_cookie(self._cookie, self._token, httponly=True, samesite="lax", path="/")
        return answer

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
        return name in self._names or (self._open and _is_address(name))

    def _own(self, origin: str, headers: Headers) -> bool:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def _is_address(name: str) -> bool:
    """Return whether a host is named by its address: no foreign name can be made to point here then."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
