"""What the demo draws while the stream runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from weir.cli.drawing import share_bar, table

_BATCHES, _ALARMS = 12, 4  # the latest ones are on the screen


class Screen:
    """The stream as it runs: a table that is redrawn on a terminal, a line per batch elsewhere.

    ``batches`` and ``trending`` grow while the stream runs, ``page`` says where its page is once there is one, and
    ``doing`` what it waits for; :meth:`update` draws what is new.
    """

    def __init__(
        self,
        console: Console,
        batches: list[dict[str, Any]],
        trending: list[dict[str, Any]],
        page: Callable[[], str | None],
        doing: Callable[[], str],
        *,
        servers: int,
        expected: int,
    ) -> None:
        self.console, self.batches, self.trending = console, batches, trending
        self.servers, self.expected, self._page_link, self._doing = servers, expected, page, doing
        self._did = ""  # what was last printed of it
        self._link_printed = False
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._printed = 0

    def __enter__(self) -> Screen:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self.update()
            self._live.stop()

    def update(self) -> None:
        """Draw what is new since the last call."""
        if self._live:
            self._live.update(self._page())
            return
        if (link := self._page_link()) and not self._link_printed:
            self._link_printed = True
            self.console.print(f"watch it: {link}", highlight=False, soft_wrap=True)
        for batch in self.batches[self._printed :]:
            self.console.print(
                f"batch {batch['batch']:3}  {batch['rows']:,} posts  {batch['rows_per_s']:9,.0f}/s  "
                f"stayed on server {100 * batch['locality']:3.0f} %  "
                f"busiest server {_busiest(batch):.2f} × average  table {_version(batch)}",
                highlight=False,
                soft_wrap=True,
            )
        self._printed = len(self.batches)
        if self._doing() and self._doing() != self._did:
            self.console.print(f"{self._doing()} …", highlight=False)
        self._did = self._doing()

    def _page(self) -> RenderableType:
        done = f"{len(self.batches)} of {self.expected} batches"
        doing = self._doing() or (done if self.batches else "the first batch warms up")
        head = Text.assemble(("posts → places → topics", "bold"), f"   on {self.servers} servers, {doing}")
        if link := self._page_link():
            head.append("\nwatch it: ").append(link, style=f"bold cyan link {link}")
        alarms = [_alarm(alarm) for alarm in self.trending[-_ALARMS:]] or [Text("–", "dim")]
        panel = Panel(Text("\n").join(alarms), title="trending", title_align="left", border_style="dim")
        return Group(head, self._table(), panel)

    def _table(self) -> Table:
        numbers = (">kept", ">exchanged", ">busiest", ">table", ">moved")
        drawn = table(None, ">batch", ">posts/s", "=stayed on server", *numbers)
        previous = 0
        for batch in self.batches[-_BATCHES:]:
            changed = batch["table_version"] != previous
            previous = batch["table_version"]
            drawn.add_row(
                str(batch["batch"]),
                f"{batch['rows_per_s']:,.0f}",
                share_bar(batch["locality"], 12),
                f"{batch['rows_local']:,}",
                f"{batch['rows_exchanged']:,}",
                f"{_busiest(batch):.2f} ×",
                Text(_version(batch), style="bold cyan" if changed else "dim"),
                f"{batch['moved_keys']:,}" if batch["moved_keys"] else "",
            )
        return drawn


def _version(batch: dict[str, Any]) -> str:
    return f"v{batch['table_version']}" if batch["table_version"] else "hash"


def _busiest(batch: dict[str, Any]) -> float:
    return max(value for value in batch["imbalance"].values() if value is not None)


def _alarm(alarm: dict[str, Any]) -> Text:
    usual = "out of nowhere" if alarm["usual"] < 0.5 else f"usually {alarm['usual']:.0f}"
    return Text.assemble(
        f"minute {alarm['minute']:2}  ",
        (f"#{alarm['topic']}", "bold"),
        f"  {alarm['posts']:,} posts, {usual}",
    )
