"""``weir watch``: serve the page of a query, or of several, from their checkpoints alone."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from weir.watch.page_server import LOOPBACK, PORT, PageServer


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir watch``."""
    add = parser.add_argument
    add(
        "checkpoint",
        metavar="CHECKPOINT",
        nargs="+",
        help="the folder or URI that the query was started with; several, or a folder of them, have an overview",
    )
    add("--port", type=int, help=f"port to listen on (default {PORT}, or any if that is taken)")
    add("--host", default=LOOPBACK, help="address to listen on (default: this machine alone can connect)")
    add("--control", action="store_true", help="let the page reconfigure and scale the query")
    add("--token", help="what the link must carry (default: $WEIR_WATCH_TOKEN, or a new one)")
    add("--public-url", metavar="URL", help="where browsers find the page, behind a proxy or below a path")
    for name, what in (
        ("allowed-host", "another name that requests may ask for"),
        ("trusted-proxy", "address or network whose X-Forwarded-… headers are believed"),
        ("frame-ancestors", "site that may show the page in a frame"),
    ):
        add(
            f"--{name}",
            action="append",
            default=[],
            metavar=name.split("-")[-1].upper(),
            help=f"{what}; may be repeated",
        )


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Serve until interrupted."""
    watched = args.checkpoint if len(args.checkpoint) > 1 else args.checkpoint[0]
    server = PageServer(
        watched,
        host=args.host,
        port=args.port,
        control=args.control,
        token=args.token,
        public_url=args.public_url,
        allowed_hosts=args.allowed_host,
        trusted_proxies=args.trusted_proxy,
        frame_ancestors=args.frame_ancestors,
    )
    from weir.watch.guard import is_loopback

    if not is_loopback(args.host):
        console.print(
            f"weir: served on {args.host}, without encryption: whoever reaches port {server.port} and has the link "
            f"sees keys and their state{', and can scale the query' if args.control else ''}",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    about = watched if isinstance(watched, str) else f"{len(watched)} checkpoints"
    console.print(f"watch {about} at {server.url}", highlight=False, soft_wrap=True)
    console.print("Ctrl-C ends it; the query goes on", highlight=False, style="dim")
    server.run()
    return {"url": server.url}


def show(result: dict[str, Any], console: Console) -> None:
    """Print nothing: all was said while it ran."""
