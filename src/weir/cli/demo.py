"""``weir demo``: the main job, on a stream of posts that the demo makes up itself.

People in some places post about topics. Most posts about a topic come from one place. This changes with time:
topics move to other places, old topics end, new ones appear, and now and then one explodes. The job counts posts per
place, then finds the topics that trend; both operators keep state per key, on every server. A post goes to the server
of its place, then to the server of its topic, and is sent over only if the two are not the same.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import importlib.util
import os
import shutil
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
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

import weir
from weir.cli.drawing import plural, share_bar
from weir.engine.batch.driver import COMPILING
from weir.engine.checkpoint import CheckpointLayout
from weir.engine.progress import Progress
from weir.errors import EngineError
from weir.extras import install
from weir.state.storage import Storage
from weir.watch.page_server import PageServer

SCHEMA = "place string, topic string, text string, minute long"
KEYS = {"places": "place", "topics": "topic"}  # key column by operator


def _words(text: str) -> list[str]:
    return text.split()


PLACES = _words(
    "Lisbon Lagos Lima Lyon Leeds Osaka Oslo Quito Cairo Delhi Dakar Dublin Accra Athens Berlin Bogotá Boston "
    "Busan Cork Cusco Denver Fez Geneva Ghent Hanoi Havana Izmir Jaipur Kyoto Lahore Madrid Malmö Milan Mumbai "
    "Nairobi Naples Paris Perth Porto Prague Riga Rome Santiago Seoul Split Tbilisi Toronto Vienna"
)
NOUNS = _words(
    "jazz football chess bread coffee cinema poetry radio cycling sailing tango theatre books museum parade "
    "bridge lights trains trams ferries gardens bees cats dogs birds robots drones pottery comics murals "
    "festival marathon strike election storm flood snow eclipse harvest tea noodles tacos cheese wine opera "
    "choir ballet surf climbing darts"
)
WORDS = _words(
    "what a day to see people out again and the whole town seems to talk of nothing else since this morning "
    "while others still wonder who started it all and where it goes from here tonight"
)
TOPICS = 1500
FAITHFUL = 0.85  # share of a topic's posts that come from its home place
EXPLODES_EVERY, EXPLOSION = 4, 0.03  # minutes; share of all posts that the exploding topic gets


class Posts:
    """A stream of posts in batches: topics are Zipf-distributed, each has a home place, and homes drift.

    A batch is a minute with ``rows`` posts; ``drift`` is the share of topics that move to another place per minute,
    and the share that is replaced by new ones. The seed fixes the whole stream.

    >>> posts = Posts(1000, seed=7)
    >>> first, second = posts.next(), posts.next()
    >>> first.num_rows, second["minute"][0].as_py()
    (1000, 1)
    """

    def __init__(self, rows: int, *, drift: float = 0.01, seed: int = 0) -> None:
        self.rows, self.drift, self.minute = rows, drift, 0
        self.rng = rng = np.random.default_rng(seed)
        self.names = [f"{NOUNS[i % len(NOUNS)]}-{i // len(NOUNS) + 1}" for i in range(TOPICS)]
        self.place_share = _zipf(len(PLACES), 0.7)
        self.topic_share = rng.permutation(_zipf(TOPICS, 0.9))
        self.home = rng.choice(len(PLACES), TOPICS, p=self.place_share)
        choices = rng.integers(0, len(WORDS), (400, 14))
        self.texts = pa.array([" ".join(WORDS[i] for i in row) for row in choices])

    def next(self) -> pa.Table:
        """Return the posts of the next minute; in some minutes a quiet topic explodes."""
        rng, share = self.rng, self.topic_share
        if self.minute:
            self._drift()
        if self.minute % EXPLODES_EVERY == EXPLODES_EVERY - 1:
            share = share.copy()
            share[rng.choice(np.flatnonzero(share < np.median(share)))] = EXPLOSION
        topic = rng.choice(TOPICS, self.rows, p=share / share.sum())
        elsewhere = rng.choice(len(PLACES), self.rows, p=self.place_share)
        place = np.where(rng.random(self.rows) < FAITHFUL, self.home[topic], elsewhere)
        columns = {
            "place": pa.array(PLACES).take(pa.array(place)),
            "topic": pa.array(self.names).take(pa.array(topic)),
            "text": self.texts.take(pa.array(rng.integers(0, len(self.texts), self.rows))),
            "minute": pa.array(np.full(self.rows, self.minute, np.int64)),
        }
        self.minute += 1
        return pa.table(columns)

    def write(self, folder: Path, minutes: int) -> None:
        """Write one file per minute up to this one, dated a second apart: Spark reads files in order of their dates."""
        for number in range(self.minute, minutes):
            hidden = folder / f".{number:05d}.parquet"  # from Spark, until it is whole
            pq.write_table(self.next(), hidden)
            os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
            hidden.rename(folder / hidden.name[1:])

    def _drift(self) -> None:
        """Move some topics to another place, and replace some by new ones: old names with a new number."""
        draw = self.rng.random(TOPICS)
        moved = draw < self.drift
        self.home[moved] = self.rng.choice(len(PLACES), int(moved.sum()), p=self.place_share)
        for i in np.flatnonzero(draw > 1 - self.drift):
            self.names[i] = f"{self.names[i].split('/')[0]}/{self.minute + 1}"


def _zipf(n: int, exponent: float) -> np.ndarray:
    share = 1.0 / np.arange(1, n + 1) ** exponent
    return share / share.sum()


@dataclass
class Topic:
    """The state of a topic."""

    posts: int = 0
    minute: int = -1
    now: int = 0  # posts in this minute
    usual: float = 0.0  # posts in a minute, averaged over the past
    told: bool = False  # whether this minute's alarm has been raised


class Trending(weir.Process):
    """Raise an alarm when a topic gets many times the posts that it usually gets, once a minute at most."""

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


def application(posts: Any) -> weir.Stream:
    """Return the application over a stream of posts."""
    places = weir.source(posts).count(KEYS["places"], column="posts", name="places", emit="rows")
    return places.keyed(KEYS["topics"], Trending(), name="topics")


PERIOD = 5  # batches between two times that homes are learnt
_SHOWN = ("batch", "rows", "rows_local", "rows_exchanged", "bytes_exchanged", "locality", "table_version")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir demo``."""
    add = parser.add_argument
    add("--batches", type=int, default=30, help="micro-batches in the stream (default 30)")
    add("--rows", type=int, default=40_000, help="posts per micro-batch (default 40,000)")
    add("--servers", type=int, default=4, help="servers (default 4)")
    add("--seconds", type=float, default=75, help="end the stream after so many seconds (default 75)")
    add(
        "--routing",
        choices=["locality", "hash"],
        default="locality",
        help="learn homes from the stream (locality, the default), or route by hash throughout",
    )
    add("--by-hash", type=int, default=5, metavar="N", help="batches routed by hash first (default 5)")
    add("--master", help="Spark master (default: this machine, with room for live servers)")
    add("--keep", metavar="FOLDER", help="keep the stream and the checkpoint in this new folder")
    add("--seed", type=int, default=0, help="fixes the stream (default 0)")
    add("--no-page", action="store_true", help="do not serve the page that shows the stream")


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Make the stream, run the job over it and compare its counts with plain Spark's."""
    from weir.spark.session import quiet

    if min(args.batches, args.rows, args.servers) < 1:
        raise EngineError("the demo needs at least one batch, one row per batch and one server")
    if args.routing == "locality" and args.batches - args.by_hash < 2:
        raise EngineError(
            "homes are learnt from one batch and used in the next; give the demo more --batches"
        )
    if args.keep and Path(args.keep).exists():
        raise EngineError(f"{args.keep}: exists already; --keep needs a new folder")
    work = Path(args.keep or tempfile.mkdtemp(prefix="weir-demo-"))
    work.mkdir(parents=True, exist_ok=True)
    if not args.keep:
        # at the very end: the page shows it until then
        atexit.register(shutil.rmtree, work, ignore_errors=True)
    if not args.json:
        console = Console()
    began = time.perf_counter()
    with console.status("starting Spark"):
        master = args.master or f"local[{args.servers + 2}]"
        spark = quiet(master, "weir-demo", **{"spark.driver.memory": "2g"})
        spark.sparkContext.setLogLevel("OFF")  # what is cancelled when the time is up is no error
    try:
        ready = time.perf_counter()
        demo = Demo(spark, work, args, console)
        result = demo.run()
        streamed = time.perf_counter()
        with console.status("comparing with plain Spark"):
            check = demo.compare()
        total = time.perf_counter() - began
    finally:
        spark.stop()
    seconds = {"start": ready - began, "stream": streamed - ready, "total": total}
    about = {"routing": args.routing, "page": demo.page, "kept": str(work) if args.keep else None}
    return {**result, **about, "seconds": seconds, "check": check}


def exit_code(result: dict[str, Any]) -> int:
    """Return 1 if the counts are not plain Spark's."""
    return 0 if result["check"]["equal"] else 1


class Demo:
    """The application on a stream that is written batch by batch; says what happens as it happens."""

    def __init__(self, spark: Any, work: Path, args: argparse.Namespace, console: Console) -> None:
        self.spark, self.args, self.console = spark, args, console
        self.end = time.perf_counter() + args.seconds
        self.stream = Posts(args.rows, seed=args.seed)
        self.posts, self.checkpoint = work / "posts", str(work / "checkpoint")
        self.posts.mkdir()
        self.batches: list[Progress] = []
        self.trending: list[dict[str, Any]] = []
        self.page: str | None = None  # the link to the page, once it is served
        self._doing, self._shown = "", 0  # what was printed last, and how many of the trending topics

    def run(self) -> dict[str, Any]:
        """Run some batches by hash, learn homes from them, and run the others with these, learning on."""
        learns = self.args.routing == "locality"
        with self._query() as query:
            self._process(query, max(1, self.args.by_hash) if learns else self.args.batches)
            while len(self.batches) < self.args.batches and time.perf_counter() < self.end:
                self._learn(query)
                self._process(query, min(len(self.batches) + PERIOD, self.args.batches))
        if not self.batches or (learns and not any(batch.table_version for batch in self.batches)):
            missing = "no homes were learnt" if self.batches else "no batch was finished"
            raise EngineError(f"{missing} within {self.args.seconds:.0f} s; give the demo more --seconds")
        summary = {
            "hash": _mean([batch for batch in self.batches if not batch.table_version]),
            "learnt": _mean([batch for batch in self.batches if batch.table_version]),
            "rows_per_s": statistics.median(map(_speed, self.batches)),
        }
        rows = sum(batch.rows for batch in self.batches)
        shown = {"batches": list(map(_brief, self.batches)), "trending": self.trending}
        return {"servers": self.args.servers, "rows": rows, "summary": summary, **shown}

    def compare(self) -> dict[str, Any]:
        """Compare the operators' final counts with plain Spark's over the same files."""
        from weir.spark.state import state_frame

        storage = Storage(self.checkpoint)
        # one commit for both sides: a batch that was cancelled at the end may still be on its way
        commit = CheckpointLayout(storage).latest_commit()
        assert commit is not None
        files = [str(self.posts / f"{number:05d}.parquet") for number in range(commit.batch + 1)]
        posts = self.spark.read.schema(SCHEMA).parquet(*files)
        result: dict[str, Any] = {"equal": True, "rows": posts.count()}
        for name, key in KEYS.items():
            state = {r[key]: r["posts"] for r in state_frame(self.spark, storage, commit, name).collect()}
            plain = {r[key]: r["count"] for r in posts.groupBy(key).count().collect()}
            result[name] = len(state)
            result["equal"] = result["equal"] and state == plain
        return result

    @contextlib.contextmanager
    def _query(self) -> Iterator[Any]:
        """Run the application on the stream; serve its page until the program ends."""
        posts = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(self.posts))
        query = application(posts).start(
            self.checkpoint,
            servers=self.args.servers,
            routing=weir.Locality(period=None) if self.args.routing == "locality" else weir.Hash(),
            sink=lambda frame, batch: self.trending.extend(row.asDict() for row in frame.collect()),
        )
        try:
            if not self.args.no_page:
                # the demo is about the stream; the summary says what is missing
                with contextlib.suppress(EngineError):
                    self.page = PageServer(self.checkpoint).start().url
                    self._print(f"watch it: {self.page}")
            yield query
        finally:
            query.stop()

    def _process(self, query: Any, batches: int) -> None:
        """Go on with the stream until it has so many batches, or the time is up."""
        self.stream.write(self.posts, batches)
        while len(self.batches) < batches and time.perf_counter() < self.end:
            self._say(query.status["message"] if query.status["message"] == COMPILING else "")
            self._report(query)
            if not query.is_active:
                query.await_termination()  # raises the query's error
            time.sleep(0.1)

    def _learn(self, query: Any) -> None:
        """Let homes be computed from what the stream has shown so far; wait for them until the time is up."""
        self._say("learning which places and topics belong together")
        computing = threading.Thread(target=query.reconfigure, kwargs={"wait": True}, daemon=True)
        computing.start()
        computing.join(max(0.0, self.end - time.perf_counter()))

    def _report(self, query: Any) -> None:
        """Print the batches that have ended since the last call, and the topics that trend."""
        latest, trending = self.batches[-1].batch if self.batches else -1, self.trending.copy()
        for batch in [p for p in query.recent_progress if p.batch > latest]:
            self.batches.append(batch)
            version = f"v{batch.table_version}" if batch.table_version else "hash"
            self._print(
                Text.assemble(
                    f"batch {batch.batch:3}  {_speed(batch):9,.0f} posts/s  stayed on server ",
                    share_bar(batch.locality, 12),
                    f"  busiest server {max(_imbalance(batch).values()):.2f} × average  table {version}",
                )
            )
        for alarm in trending[self._shown :]:
            usual = "out of nowhere" if alarm["usual"] < 0.5 else f"usually {alarm['usual']:.0f}"
            self._print(f"           trending: #{alarm['topic']}, {alarm['posts']:,} posts, {usual}")
        self._shown = len(trending)

    def _say(self, doing: str) -> None:
        """Print what the stream waits for, once."""
        if doing and doing != self._doing:
            self._print(f"{doing} …")
        self._doing = doing

    def _print(self, line: str | Text) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)


def _speed(did: Progress) -> float:
    """Return the rows per second of a batch."""
    return did.rows / (did.seconds.batch or did.seconds.plan + did.seconds.job)


def _imbalance(did: Progress) -> dict[str, float]:
    """Return the load of the busiest server over the average, by operator."""
    return {name: operator.imbalance or 0.0 for name, operator in did.operators.items()}


def _brief(did: Progress) -> dict[str, Any]:
    """Return what ``--json`` says of a batch."""
    shown = {name: getattr(did, name) for name in _SHOWN} | {"moved_keys": did.moved_keys or 0}
    return {**shown, "rows_per_s": _speed(did), "imbalance": _imbalance(did)}


def _mean(batches: list[Progress]) -> dict[str, Any] | None:
    """Return averages over batches; None if there are none."""
    if not batches:
        return None
    mean = statistics.mean
    return {
        "batches": len(batches),
        "locality": mean(batch.locality or 0.0 for batch in batches),
        "imbalance": {n: mean(_imbalance(batch)[n] for batch in batches) for n in batches[0].operators},
        "bytes_exchanged_per_row": mean(batch.bytes_exchanged / batch.rows for batch in batches),
    }


_OWN_DATA = """
With your own data:
  [bold]weir advise posts.parquet --keys place,topic --servers 4[/]  [dim]# would it help?[/]
  [bold]app = weir.source(df).count("place", emit="rows").count("topic")[/]
  [bold]app.start("ckpt", servers=4, routing=weir.Locality(), watch=True).page[/]
"""


def show(result: dict[str, Any], console: Console) -> None:
    """Print what happened: the job, routing by hash, routing by what was learnt, and the check."""
    body = Text("\n\n").join(Text.from_markup(paragraph) for paragraph in _paragraphs(result))
    width = min(console.width, 100)
    console.print(Panel(body, title="what you saw", title_align="left", padding=(1, 2), width=width))
    if result["kept"]:
        checkpoint = f"{result['kept']}/checkpoint"
        about = f"look into it: weir inspect {checkpoint}, weir watch {checkpoint}"
        console.print(about, highlight=False, soft_wrap=True)
    console.print(Text.from_markup(_OWN_DATA), soft_wrap=True)
    if importlib.util.find_spec("starlette") is None:
        console.print(f"A page shows streams as they run: {install('watch')}", highlight=False, markup=False)
    if result["page"] and sys.stdin.isatty() and console.is_terminal:
        with contextlib.suppress(EOFError):  # the terminal was closed
            console.input(f"The page stays at {result['page']} until you press Enter.", markup=False)


def _paragraphs(result: dict[str, Any]) -> list[str]:
    servers, check, seconds = result["servers"], result["check"], result["seconds"]
    hashed, learnt = result["summary"]["hash"], result["summary"]["learnt"]
    said = [
        f"[bold]{result['rows']:,} posts[/] in {len(result['batches'])} micro-batches went through two operators that "
        f"keep state: [bold]places[/] counts posts per place, [bold]topics[/] finds what trends. Each runs on all "
        f"{servers} servers; every place and every topic has its home on one of them. A post visits the home of its "
        "place, then the home of its topic. If that is the same server it is handed on in memory; if not, it has to "
        "be packed up and sent."
    ]
    if hashed:
        said.append(
            f"[bold]By hash[/] ({plural(hashed['batches'], 'batch', 'batches')}), homes are chosen at random: "
            f"{100 * hashed['locality']:.0f} % of posts stayed on their server (1 in {servers} does by chance). "
            f"The busiest server had {max(hashed['imbalance'].values()):.2f} × the average."
        )
    if learnt:
        said.append(
            f"[bold]With homes learnt from the stream[/] ({plural(learnt['batches'], 'batch', 'batches')}): "
            f"[bold green]{100 * learnt['locality']:.0f} %[/] stayed, although topics kept moving to other places. "
            f"The busiest server had {max(learnt['imbalance'].values()):.2f} × the average."
        )
    if hashed and learnt:
        before, after = hashed["bytes_exchanged_per_row"], learnt["bytes_exchanged_per_row"]
        said.append(
            f"Bytes sent between servers per post: {before:.0f} before, {after:.0f} after "
            f"({100 * (1 - after / before):.0f} % less)."
        )
    if result["trending"]:
        loudest = max(result["trending"], key=lambda alarm: alarm["posts"])
        said.append(
            f"{plural(len(result['trending']), 'alarm', 'alarms')} for trending topics; the loudest: "
            f"[bold]#{loudest['topic']}[/], {loudest['posts']:,} posts in minute {loudest['minute']}."
        )
    said.append(
        f"[green]✓[/] The counts of all {check['places']:,} places and {check['topics']:,} topics equal plain Spark's "
        f"over the same {check['rows']:,} posts: nothing lost, nothing doubled."
        if check["equal"]
        else "[bold red]✗ The counts differ from plain Spark's over the same posts.[/] Please report this."
    )
    said.append(
        f"[dim]{seconds['total']:.0f} s in all: {seconds['start']:.0f} s to start Spark, {seconds['stream']:.0f} s of "
        f"streaming; the median batch ran at {result['summary']['rows_per_s']:,.0f} posts/s, embedded on this "
        "machine.[/]"
    )
    return said
