"""``weir demo``: the main job, on a stream that is made up as it goes.

People in some places post about topics. Topics have communities: most posts about one come from the same
place. Communities drift: topics wander to other places, old ones die, new ones appear, and now and then one
explodes. The job counts posts per place, then finds the topics that trend; both operators keep state per key,
on every server. A post goes to the server of its place first and to the server of its topic next, and it only
has to travel in between when those two are not the same.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

import weir
from weir.cli.inspect import share_bar
from weir.engine.ledger import latest_commit
from weir.errors import EngineError
from weir.state.storage import Storage

HELP = "the main job: a stream of posts through two keyed operators, on this machine"
SCHEMA = "place string, topic string, text string, minute long"
SHOWN = 12  # batches on the screen


def _words(text: str) -> list[str]:
    return text.split()


PLACES = _words(
    "Lisbon Lagos Lima Lyon Leeds Osaka Oslo Quito Cairo Delhi Dakar Dublin Accra Athens Berlin Bogotá "
    "Boston Busan Cork Cusco Denver Fez Geneva Ghent Hanoi Havana Izmir Jaipur Kyoto Lahore Madrid Malmö "
    "Milan Mumbai Nairobi Naples Paris Perth Porto Prague Riga Rome Santiago Seoul Split Tbilisi Toronto "
    "Vienna"
)
FIRST = _words(
    "harbour river street winter summer night city garden mountain island market school garage rooftop "
    "desert railway solar vintage open secret tiny electric wooden silver lost first last free old new "
    "wild quiet loud slow fast deep high blue green golden"
)
SECOND = _words(
    "jazz football chess bread coffee cinema poetry radio cycling sailing tango theatre books museum "
    "parade bridge lights trains trams ferries gardens bees cats dogs birds robots drones pottery comics "
    "murals festival marathon strike election storm flood snow eclipse harvest tea noodles tacos cheese "
    "wine opera choir ballet surf climbing darts"
)
WORDS = _words(
    "what a day to see people out again and the whole town seems to talk of nothing else since this "
    "morning while others still wonder who started it all and where it goes from here tonight"
)


class Posts:
    """A stream of posts, Zipf-skewed, with communities that drift; batch after batch.

    Parameters
    ----------
    rows
        Posts per batch; a batch is a minute.
    faithful
        How often a post about a topic comes from the topic's own place.
    drift
        Share of the topics that wander to another place, and of those that are replaced by new ones, per minute.

    Examples
    --------
    >>> posts = Posts(1000, seed=7)
    >>> first, second = posts.next(), posts.next()
    >>> first.num_rows, second["minute"][0].as_py()
    (1000, 1)
    """

    def __init__(
        self, rows: int, *, topics: int = 1500, faithful: float = 0.85, drift: float = 0.01, seed: int = 0
    ) -> None:
        self.rows, self.faithful, self.drift = rows, faithful, drift
        self.rng = np.random.default_rng(seed)
        self.minute = 0
        names = [f"{a}-{b}" for a in FIRST for b in SECOND]
        self.names = [names[i] for i in self.rng.permutation(len(names))[:topics]]
        self.editions = 1
        self.place_share = _zipf(len(PLACES), 0.7)
        self.topic_share = self.rng.permutation(_zipf(topics, 0.9))
        self.home = self.rng.choice(len(PLACES), topics, p=self.place_share)
        cuts = self.rng.integers(0, len(WORDS), (400, 14))
        self.texts = pa.array([" ".join(WORDS[i] for i in row) for row in cuts])

    def next(self) -> pa.Table:
        """The posts of the next minute."""
        rng, n = self.rng, len(self.names)
        if self.minute:
            some = rng.random(n)
            moved = some < self.drift
            self.home[moved] = rng.choice(len(PLACES), int(moved.sum()), p=self.place_share)
            self.editions += 1
            for i in np.flatnonzero(some > 1 - self.drift):
                self.names[i] = f"{self.names[i].split('/')[0]}/{self.editions}"
        share = self.topic_share
        if self.minute % 4 == 3:  # something happens: a quiet topic is on everybody's lips for a minute
            share = share.copy()
            share[rng.choice(np.flatnonzero(share < np.median(share)))] = 0.03
            share /= share.sum()
        topic = rng.choice(n, self.rows, p=share)
        elsewhere = rng.choice(len(PLACES), self.rows, p=self.place_share)
        place = np.where(rng.random(self.rows) < self.faithful, self.home[topic], elsewhere)
        table = pa.table(
            {
                "place": pa.array(PLACES).take(pa.array(place)),
                "topic": pa.array(self.names).take(pa.array(topic)),
                "text": self.texts.take(pa.array(rng.integers(0, len(self.texts), self.rows))),
                "minute": pa.array(np.full(self.rows, self.minute, np.int64)),
            }
        )
        self.minute += 1
        return table

    def write(self, folder: Path, batches: int) -> None:
        """One file per batch, dated a second apart: Spark reads files in the order of their dates."""
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(batches):
            path = folder / f"{number:05d}.parquet"
            pq.write_table(self.next(), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _zipf(n: int, exponent: float) -> np.ndarray:
    share = 1.0 / np.arange(1, n + 1) ** exponent
    return share / share.sum()


@dataclass
class Topic:
    """What is known of a topic."""

    posts: int = 0
    minute: int = -1
    now: int = 0  # posts in this minute
    usual: float = 0.0  # posts in a minute, averaged over the past
    told: bool = False


class Trending(weir.Process):
    """Tells when a topic gets many times the posts that it usually gets."""

    state = Topic
    output = {"topic": "string", "minute": "long", "posts": "long", "usual": "double", "text": "string"}
    columns = ("minute", "text")

    def __init__(self, least: int = 100, times: float = 8.0) -> None:
        self.least, self.times = least, times

    def process(self, key: Any, rows: Sequence[Any], state: Any) -> Iterator[Any]:
        # a topic's posts of one minute may come in two calls: those that were on its server already, then the rest
        minute = rows[0].minute
        if minute > state.minute:
            if state.minute >= 0:
                gap = minute - state.minute
                state.usual = 0.7**gap * state.usual + (1 - 0.7**gap) * state.now / gap
            state.minute, state.now, state.told = minute, 0, False
        state.posts += len(rows)
        state.now += len(rows)
        if minute and not state.told and state.now >= max(self.least, self.times * state.usual):
            state.told = True
            yield key, minute, state.now, state.usual, rows[0].text


# ---------------------------------------------------------------------- running


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of ``weir demo``."""
    parser.add_argument("--batches", type=int, default=30, help="micro-batches in the stream (default 30)")
    parser.add_argument("--rows", type=int, default=40_000, help="posts per micro-batch (default 40,000)")
    parser.add_argument("--servers", type=int, default=4, help="servers (default 4)")
    parser.add_argument("--seconds", type=float, default=75, help="end the stream after so long (default 75)")
    parser.add_argument("--routing", choices=["locality", "hash"], default="locality")
    parser.add_argument(
        "--by-hash", type=int, default=5, metavar="N", help="batches routed by hash first (default 5)"
    )
    parser.add_argument("--master", default="local[2]", help="Spark master (default local[2])")
    parser.add_argument(
        "--keep", metavar="FOLDER", help="keep the stream and the checkpoint in this new folder"
    )
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Makes the stream, runs the job over it and checks the outcome against plain Spark."""
    if args.batches < 1 or args.rows < 1:
        raise EngineError("the demo needs at least one batch of at least one row")
    if args.keep and Path(args.keep).exists():
        raise EngineError(f"{args.keep}: exists already; --keep wants a new folder")
    work = Path(args.keep or tempfile.mkdtemp(prefix="weir-demo-"))
    work.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    screen = console if args.json else Console()
    try:
        posts = Posts(args.rows, seed=args.seed)
        maker = threading.Thread(target=posts.write, args=(work / "made", args.batches), daemon=True)
        maker.start()  # while the JVM starts
        with screen.status("starting Spark, and making up a stream of posts"):
            spark = _spark(args.master, work)
            maker.join()
        _mind_ctrl_c()
        try:
            ready = time.perf_counter()
            result = _Demo(spark, work, args, screen).run()
            result["seconds"] = {"start": ready - began, "stream": time.perf_counter() - ready}
            with screen.status("comparing with plain Spark"):
                result["check"] = _compare(spark, work / "posts", work / "checkpoint")
            result["seconds"]["total"] = time.perf_counter() - began
        finally:
            spark.stop()
        result["kept"] = str(work) if args.keep else None
        return result
    finally:
        if not args.keep:
            shutil.rmtree(work, ignore_errors=True)


def exit_code(result: dict[str, Any]) -> int:
    """1 if the counts are not plain Spark's."""
    return 0 if result["check"]["equal"] else 1


def _spark(master: str, work: Path) -> Any:
    from pyspark.errors import PySparkException

    from weir.spark.session import embedded

    log = work / "spark.log"
    try:
        with _errors_to(log):
            return embedded(master, "weir-demo", **{"spark.driver.memory": "2g"})
    except PySparkException as error:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise EngineError(
            f"Spark did not start ({error.getErrorClass() or type(error).__name__}); it needs a Java 17+ runtime. "
            f"It said: {said[-1] if said else 'nothing'}"
        ) from None


def _mind_ctrl_c() -> None:
    """Puts our own handler in place of PySpark's, which talks to the JVM in the middle of another conversation."""

    def interrupted(*_: object) -> None:
        logging.disable(logging.CRITICAL)  # py4j would log what was cut short, with tracebacks
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupted)


@contextlib.contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Lets processes started meanwhile write their standard error into a file, off the screen."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(path, "ab") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


class _Demo:
    """The job: by hash for a few batches, then started again from its checkpoint with homes that are learnt."""

    def __init__(self, spark: Any, work: Path, args: argparse.Namespace, screen: Console) -> None:
        self.spark, self.work, self.args = spark, work, args
        self.batches: list[dict[str, Any]] = []
        self.trending: list[dict[str, Any]] = []
        self.display = _Display(screen, args, self.batches, self.trending)
        self.until = time.perf_counter() + args.seconds

    def run(self) -> dict[str, Any]:
        args = self.args
        learns = args.routing == "locality"
        by_hash = min(args.by_hash, args.batches) if learns else args.batches
        with self.display:
            if by_hash:
                self._stream(by_hash, weir.Hash())
            if learns and by_hash < args.batches and time.perf_counter() < self.until:
                self._stream(args.batches, weir.Locality(period=5))
        if not self.batches:
            raise EngineError(
                f"no batch was finished within {args.seconds:.0f} s; give the demo more --seconds"
            )
        return {
            "routing": args.routing,
            "servers": args.servers,
            "rows": sum(b["rows"] for b in self.batches),
            "summary": _summary(self.batches),
            "batches": self.batches,
            "trending": self.trending,
        }

    def _stream(self, files: int, routing: Any) -> None:
        """Lets the stream have so many files, and runs the job until it has seen them or the time is up."""
        data = self.work / "posts"
        data.mkdir(exist_ok=True)
        for made in sorted((self.work / "made").iterdir())[: files - len(list(data.iterdir()))]:
            made.rename(data / made.name)
        posts = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(data))
        app = (
            weir.source(posts)
            .keyed("place", weir.Count("posts"), name="places")
            .keyed("topic", Trending(), name="topics")
        )
        query = app.start(
            str(self.work / "checkpoint"),
            servers=self.args.servers,
            routing=routing,
            sink=lambda frame, batch: self.trending.extend(row.asDict() for row in frame.collect()),
            trigger={"availableNow": True},
        )
        try:
            active = True
            while active and time.perf_counter() < self.until:
                active = query.is_active
                known = self.batches[-1]["batch"] if self.batches else -1
                self.batches += [_brief(p) for p in query.recent_progress if p["batch"] > known]
                self.display.update()
                time.sleep(0.1)
            if not active:
                query.await_termination()  # raises what it failed with, if it did
        finally:
            query.stop()


def _brief(progress: dict[str, Any]) -> dict[str, Any]:
    """What the demo shows of a batch."""
    seconds = progress["seconds"].get("batch") or sum(progress["seconds"].values())
    return {
        "batch": progress["batch"],
        "rows": progress["rows"],
        "rows_per_s": progress["rows"] / seconds,
        "rows_local": progress["rows_local"],
        "rows_exchanged": progress["rows_exchanged"],
        "bytes_exchanged": progress["bytes_exchanged"],
        "locality": progress["locality"],
        "imbalance": {n: o["imbalance"] for n, o in progress["operators"].items()},
        "table_version": progress["table_version"],
        "moved_keys": progress.get("moved_keys", 0),
        "seconds": seconds,
    }


def _summary(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """Averages over the batches routed by hash alone, and over those with a table that was learnt."""

    def mean(chosen: list[dict[str, Any]]) -> dict[str, Any] | None:
        if not chosen:
            return None
        rows = sum(b["rows"] for b in chosen)
        return {
            "batches": len(chosen),
            "locality": statistics.mean(b["locality"] for b in chosen),
            "imbalance": {
                n: statistics.mean(b["imbalance"][n] for b in chosen) for n in chosen[0]["imbalance"]
            },
            "bytes_exchanged_per_row": sum(b["bytes_exchanged"] for b in chosen) / rows,
            "rows_per_s": statistics.median(b["rows_per_s"] for b in chosen),
            "moved_keys": sum(b["moved_keys"] for b in chosen),
        }

    return {
        "hash": mean([b for b in batches if not b["table_version"]]),
        "learnt": mean([b for b in batches if b["table_version"]]),
        "rows_per_s": statistics.median(b["rows_per_s"] for b in batches),
    }


def _compare(spark: Any, data: Path, checkpoint: Path) -> dict[str, Any]:
    """The operators' final counts beside plain Spark's over the same files."""
    from weir.spark.state import state_frame

    storage = Storage(str(checkpoint))
    # the state of this very commit: a batch that was cancelled at the end may still be on its way
    commit = latest_commit(storage)
    assert commit is not None
    files = [str(data / f"{number:05d}.parquet") for number in range(commit.batch + 1)]
    truth = spark.read.schema(SCHEMA).parquet(*files)
    out: dict[str, Any] = {"equal": True, "rows": truth.count()}
    for name, key in (("places", "place"), ("topics", "topic")):
        ours = {r[key]: r["posts"] for r in state_frame(spark, storage, commit, name).collect()}
        plain = {r[key]: r["count"] for r in truth.groupBy(key).count().collect()}
        out[name] = len(ours)
        out["equal"] = out["equal"] and ours == plain
    return out


# ---------------------------------------------------------------------- showing


class _Display:
    """The stream as it runs: a table that renews itself on a terminal, a line per batch elsewhere."""

    def __init__(
        self,
        screen: Console,
        args: argparse.Namespace,
        batches: list[dict[str, Any]],
        trending: list[dict[str, Any]],
    ) -> None:
        self.screen, self.args, self.batches, self.trending = screen, args, batches, trending
        self.live = Live(console=screen, refresh_per_second=4) if screen.is_terminal else None
        self.told = 0

    def __enter__(self) -> _Display:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.update()
            self.live.stop()

    def update(self) -> None:
        """Shows what has come since the last call."""
        if self.live:
            self.live.update(self._page())
            return
        for b in self.batches[self.told :]:
            self.screen.print(
                f"batch {b['batch']:3}  {b['rows']:,} posts  {b['rows_per_s']:9,.0f}/s  "
                f"stayed on server {100 * b['locality']:3.0f} %  busiest server {_worst(b):.2f} × average  "
                f"table {_version(b)}",
                highlight=False,
                soft_wrap=True,
            )
        self.told = len(self.batches)

    def _page(self) -> RenderableType:
        table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("batch", justify="right")
        table.add_column("posts/s", justify="right")
        table.add_column("stayed on server", no_wrap=True, min_width=18)
        for column in ("kept", "exchanged", "busiest", "table", "moved"):
            table.add_column(column, justify="right")
        before = 0
        for b in self.batches[-SHOWN:]:
            changed = b["table_version"] != before
            before = b["table_version"]
            table.add_row(
                str(b["batch"]),
                f"{b['rows_per_s']:,.0f}",
                share_bar(b["locality"], 12),
                f"{b['rows_local']:,}",
                f"{b['rows_exchanged']:,}",
                f"{_worst(b):.2f} ×",
                Text(_version(b), style="bold cyan" if changed else "dim"),
                f"{b['moved_keys']:,}" if b["moved_keys"] else "",
            )
        done = (
            f"{len(self.batches)} of {self.args.batches} batches"
            if self.batches
            else "the first batch warms up"
        )
        head = Text.assemble(
            ("posts → places → topics", "bold"),
            f"   on {self.args.servers} servers, {done}",
        )
        news = (
            Text("\n").join(_headline(t) for t in self.trending[-4:]) if self.trending else Text("–", "dim")
        )
        return Group(head, table, Panel(news, title="trending", title_align="left", border_style="dim"))


def _version(b: dict[str, Any]) -> str:
    return f"v{b['table_version']}" if b["table_version"] else "hash"


def _worst(b: dict[str, Any]) -> float:
    return max(v for v in b["imbalance"].values() if v is not None)


def _headline(t: dict[str, Any]) -> Text:
    usual = "out of nowhere" if t["usual"] < 0.5 else f"usually {t['usual']:.0f}"
    return Text.assemble(
        f"minute {t['minute']:2}  ", (f"#{t['topic']}", "bold"), f"  {t['posts']:,} posts, {usual}"
    )


def show(result: dict[str, Any], console: Console) -> None:
    """The end of the story, for somebody who sees it for the first time."""
    summary, check, n = result["summary"], result["check"], result["servers"]
    hashed, learnt = summary["hash"], summary["learnt"]
    lines: list[Text] = []

    def say(text: str) -> None:
        lines.append(Text.from_markup(text))

    say(
        f"[bold]{result['rows']:,} posts[/] in {len(result['batches'])} micro-batches went through two operators that "
        f"remember: [bold]places[/] counts posts per place, [bold]topics[/] spots what trends. Each lives on all "
        f"{n} servers; every place and every topic has its home on one of them. A post visits the home of its place, "
        "then the home of its topic. If that is the same server it is handed on in memory; if not, it must be packed "
        "up and sent."
    )
    if hashed:
        say(
            f"[bold]By hash[/] ({_count(hashed['batches'], 'batch', 'batches')}), homes are picked blindly: "
            f"{100 * hashed['locality']:.0f} % of posts stayed on their server (1 in {n} does by chance). "
            f"The busiest server had {max(hashed['imbalance'].values()):.2f} × the average."
        )
    if learnt:
        say(
            f"[bold]With homes learnt from the stream[/] ({_count(learnt['batches'], 'batch', 'batches')}): "
            f"[bold green]{100 * learnt['locality']:.0f} %[/] stayed, although the communities kept drifting. "
            f"The busiest server had {max(learnt['imbalance'].values()):.2f} × the average."
        )
    if hashed and learnt:
        before, after = hashed["bytes_exchanged_per_row"], learnt["bytes_exchanged_per_row"]
        say(
            f"Bytes sent between servers per post: {before:.0f} before, {after:.0f} after "
            f"({100 * (1 - after / before):.0f} % less)."
        )
    if result["trending"]:
        best = max(result["trending"], key=lambda t: t["posts"])
        say(
            f"{_count(len(result['trending']), 'alarm', 'alarms')} for trending topics; the loudest: "
            f"[bold]#{best['topic']}[/], {best['posts']:,} posts in minute {best['minute']}."
        )
    if check["equal"]:
        say(
            f"[green]✓[/] The counts of all {check['places']:,} places and {check['topics']:,} topics equal plain "
            f"Spark's over the same {check['rows']:,} posts: nothing lost, nothing doubled."
        )
    else:
        say("[bold red]✗ The counts differ from plain Spark's over the same posts.[/] Please report this.")
    seconds = result["seconds"]
    say(
        f"[dim]{seconds['total']:.0f} s in all: {seconds['start']:.0f} s to start Spark, {seconds['stream']:.0f} s of "
        f"streaming; a batch ran at {summary['rows_per_s']:,.0f} posts/s in the median, embedded on this machine.[/]"
    )
    body = Text("\n\n").join(lines)
    console.print(
        Panel(body, title="what you saw", title_align="left", padding=(1, 2), width=min(console.width, 100))
    )
    if result["kept"]:
        console.print(
            f"look into it: weir inspect {result['kept']}/checkpoint", highlight=False, soft_wrap=True
        )


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"
