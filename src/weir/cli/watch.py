"""``weir watch``: serve the page of a query, from its checkpoint alone."""

from __future__ import annotations

import argparse
import os
from typing import Any

from rich.console import Console

from weir.watch.page_server import LOOPBACK, PORT, PageServer


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir watch``."""
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="the folder or URI that the query was started with")
    add("--port", type=int, help=f"port to listen on (default {PORT}, or any if that is taken)")
    add("--host", default=LOOPBACK, help="address to listen on (default: this machine alone can connect)")
    add("--control", action="store_true", help="let the page reconfigure and scale the query")
    token = os.environ.get("WEIR_WATCH_TOKEN")
    add("--token", default=token, help="what the link must carry (default: $WEIR_WATCH_TOKEN, or a new one)")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Serve until interrupted."""
    terms = {"host": args.host, "port": args.port, "control": args.control, "token": args.token}
    server = PageServer(args.checkpoint, **terms)
    from weir.watch.app import is_loopback

    if not is_loopback(args.host):
        console.print(
            f"weir: served on {args.host}, without encryption: whoever reaches port {server.port} and has the link "
            f"sees keys and their state{', and can scale the query' if args.control else ''}",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"watch {args.checkpoint} at {server.url}", highlight=False, soft_wrap=True)
    console.print("Ctrl-C ends it; the query goes on", highlight=False, style="dim")
    server.run()
    return {"url": server.url}


def show(result: dict[str, Any], console: Console) -> None:
    """Print nothing: all was said while it ran."""
