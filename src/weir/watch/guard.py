"""Who may see the page: names that it is served under, tokens, origins, proxies; and what its answers allow."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weir.errors import EngineError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors "
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
HEALTH = "/health"  # below it, everybody may ask: the answers say little


@dataclass(frozen=True)
class Access:
    """Under which names the page is served, and to whom.

    Parameters
    ----------
    token
        What a link, a cookie or the ``Authorization`` header must carry.
    host, port
        Where the server listens.
    public_url
        Where browsers find the page if that is elsewhere: behind a proxy, below a path.
    allowed_hosts
        Further names that requests may have in their ``Host``.
    trusted_proxies
        Addresses and networks whose ``X-Forwarded-Host``, ``-Proto`` and ``-Prefix`` are believed.
    frame_ancestors
        Sites that may show the page in a frame, as ``https://hub.example.org``.

    Examples
    --------
    >>> Access("secret", public_url="https://example.org/weir").root
    '/weir'
    >>> Access("secret", public_url="example.org")
    Traceback (most recent call last):
    weir.errors.EngineError: public_url='example.org': expected a whole address, as https://example.org/weir/
    """

    token: str
    host: str = "127.0.0.1"
    port: int = 0
    public_url: str | None = None
    allowed_hosts: Iterable[str] = ()
    trusted_proxies: Iterable[str] = ()
    frame_ancestors: Iterable[str] = ()

    def __post_init__(self) -> None:
        parts = urlsplit(self.public_url or "")
        if self.public_url and (parts.scheme not in ("http", "https") or not parts.netloc or parts.query):
            raise EngineError(
                f"public_url={self.public_url!r}: expected a whole address, as https://example.org/weir/"
            )
        for name in ("allowed_hosts", "trusted_proxies", "frame_ancestors"):
            given: Any = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(value, str) for value in given):
                raise EngineError(f"{name}={given!r}: expected a list of texts")
            object.__setattr__(self, name, tuple(given))
        for name in self.allowed_hosts:
            if "/" in name or not name:
                raise EngineError(f"allowed_hosts: {name!r} is no name of a host, as weir.example.org")
        for text in self.trusted_proxies:
            try:
                ipaddress.ip_network(text)
            except ValueError:
                raise EngineError(
                    f"trusted_proxies: {text!r} is no address or network, as 10.0.0.0/8"
                ) from None
        for site in self.frame_ancestors:
            if site != "'self'" and not urlsplit(site).netloc:
                raise EngineError(f"frame_ancestors: {site!r} is no site, as https://hub.example.org")
            if set(site) & set(" ;,"):
                raise EngineError(f"frame_ancestors: {site!r} is more than one site; name them one by one")

    @property
    def root(self) -> str:
        """The path below which browsers find the page, without the slash at its end."""
        return urlsplit(self.public_url or "").path.rstrip("/")

    @property
    def url(self) -> str:
        """The link to open, token included."""
        if self.public_url:
            return f"{self.public_url.rstrip('/')}/?token={self.token}"
        shown = "127.0.0.1" if self.host in ("0.0.0.0", "::", "localhost") else self.host
        name = f"[{shown}]" if ":" in shown else shown
        return f"http://{name}:{self.port}/?token={self.token}"


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine alone.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


@dataclass(frozen=True)
class _Asked:
    """How a browser has asked: what a proxy that is trusted says of it comes first."""

    host: str
    secure: bool
    root: str


class Guard:
    """Lets requests through that come from the right place with the right token; answers the others itself.

    A token in the link keeps other users of the machine out. The ``Host`` header is compared with the names that the
    page is served under, so that a foreign site whose name is made to point here gets nothing; the ``Origin`` of
    whatever changes something is compared with the page's own. Proxies may pass on the path below which browsers find
    the page, or leave it out.
    """

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self.app, self._access = app, access
        self._cookie = f"weir_{access.port}"  # browsers share cookies between the ports of a host
        self._open = not is_loopback(access.host)
        names = {"localhost", "127.0.0.1", "::1", access.host, *access.allowed_hosts}
        if self._open:
            names |= {socket.gethostname(), socket.getfqdn()}
        public = urlsplit(access.public_url or "")
        self._origin = f"{public.scheme}://{public.netloc}".lower() if public.netloc else None
        names.add(public.hostname or "localhost")
        self._names = {name.lower() for name in names}
        self._proxies = [ipaddress.ip_network(text) for text in access.trusted_proxies]
        framed = " ".join(access.frame_ancestors) or "'none'"
        self._headers = {**HEADERS, "content-security-policy": POLICY + framed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        root, path = self._access.root, scope["path"]
        if root and (path == root or path.startswith(f"{root}/")):
            scope = {**scope, "path": path[len(root) :]}
        request = Request(scope)
        answer = self._answer(request) if scope["path"] else RedirectResponse(f"{root}/", 303)
        target = answer if answer is not None else self.app

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        return await target(scope, receive, guarded)

    def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that is not let through, None for one that is."""
        asked = self._asked(request)
        if not self._known(asked.host):
            return PlainTextResponse(
                "This name is not served here. Behind a proxy, start it with --public-url, or --allowed-host NAME.",
                421,
            )
        origin = request.headers.get("origin")
        if origin is not None and not self._is_ours(origin.lower(), asked):
            return PlainTextResponse(
                "Requests from other sites are refused. Behind a proxy, start it with --public-url.", 403
            )
        changes = request.method not in ("GET", "HEAD")
        if changes and origin is None and "authorization" not in request.headers:
            return PlainTextResponse("A request that changes something names its origin.", 403)
        path = request.scope["path"]
        given = request.query_params.get("token")
        if given is not None and self._right(given) and not changes:
            # to the same page, wherever a proxy has put it: the token goes into a cookie
            answer = RedirectResponse(f"./{path.rsplit('/', 1)[-1]}", 303)
            framed = self._access.frame_ancestors and asked.secure  # a frame of another site needs "none"
            answer.set_cookie(
                self._cookie,
                self._access.token,
                httponly=True,
                secure=asked.secure,
                samesite="none" if framed else "lax",
                path=f"{asked.root}/",
            )
            return answer
        if not changes and (path == HEALTH or path.startswith(f"{HEALTH}/")):
            return None
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._right(request.cookies.get(self._cookie, "")) or self._right(bearer):
            return None
        return PlainTextResponse("Open the link that `weir watch` printed: it has the token.", 401)

    def _asked(self, request: Request) -> _Asked:
        told, root = request.headers, self._access.root
        host, secure = told.get("host", ""), (self._origin or "").startswith("https:")
        peer = _address(request.client.host) if request.client else None
        if peer is not None and any(peer in network for network in self._proxies):
            # the last one is what the proxy itself has seen
            host = told.get("x-forwarded-host", host).split(",")[-1].strip()
            scheme = told.get("x-forwarded-proto")
            secure = secure if scheme is None else scheme.split(",")[-1].strip() == "https"
            prefix = told.get("x-forwarded-prefix", root).split(",")[-1].strip().rstrip("/")
            root = prefix if prefix.startswith("/") and not set(prefix) & set(";, \\") else root
        return _Asked(host.lower(), secure, root)

    def _is_ours(self, origin: str, asked: _Asked) -> bool:
        return origin == self._origin or urlsplit(origin).netloc == asked.host

    def _right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._access.token.encode())

    def _known(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        # no foreign name can be made to point here where a host is named by its address; and whoever asks for this
        # machine by its own names is on it, or has a tunnel to it, from whatever port
        return name in self._names or (self._open and _address(name) is not None)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
