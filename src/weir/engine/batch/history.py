"""A compact, bounded history of a query, which outlives its commits.

Before old commits are deleted, what a time line shows of them is written to ``history/LEVEL-FIRST-LAST``: a
:class:`Chunk` of points, one per batch, and of marks (reconfigurations, scalings, batches that ran again,
restarts). When a level has many chunks, the oldest of them become one chunk of the next level, in which a point
stands for several batches from the second level on. Recent batches are kept one by one, older ones ever more
coarsely, and the whole takes no more than a few megabytes however long a stream runs.

Chunks are documents, written once and whole. They follow from commits alone, so a clean-up that was cut short and is
done again writes what is there already; a chunk that lies within one of a higher level is on its way out.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from weir.engine.checkpoint import HISTORY, CheckpointLayout
from weir.engine.documents import Commit
from weir.engine.progress import Progress, Seconds
from weir.errors import CheckpointError
from weir.state.storage import Storage

PHASES = ("waiting", "plan", "job", "commit", "deliver")
# chunks that become one, and from the second level on the batches that a point stands for, per level
FAN = 16
CHUNKS = 2 * FAN  # chunks of a level, at most
LEVELS = 5
POINTS = 160  # points of a chunk, at most
MARKS = 160  # marks of a chunk, at most

logger = logging.getLogger("weir.engine")


class Point(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a time line shows of one batch, or of several in a row."""

    batch: int  # the last one
    batches: int = 1
    time: float = 0.0  # of the last one
    rows: int = 0
    seconds: list[float] = []  # of each phase, see PHASES
    edges: dict[str, list[int]] = {}  # edge → rows that stayed on their server, rows that did not
    distance: dict[str, list[int]] = {}  # distance → rows, bytes
    imbalance: dict[str, float] = {}  # operator → the busiest server's rows over the average
    latency: list[float] = []  # p50 and p99 of the slowest sink, or operator if there is none
    lag: float = 0.0
    moved_keys: int = 0
    servers: int = 0
    table_version: int = 0
    state_bytes: int = 0

    @property
    def local(self) -> int:
        return sum(local for local, _ in self.edges.values())

    @property
    def remote(self) -> int:
        return sum(remote for _, remote in self.edges.values())


class Chunk(msgspec.Struct):
    """Consecutive points and the marks between them."""

    points: list[Point]
    marks: list[dict[str, Any]] = []


class ChunkName(NamedTuple):
    """Where a chunk is in the history."""

    level: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.level}-{self.first:012d}-{self.last:012d}"


def point(commit: Commit, seconds: Seconds | None = None) -> Point:
    """Return what a time line shows of a batch; ``seconds`` if more is known of them than the commit says."""
    did = commit.progress or Progress()
    took = seconds or did.seconds
    ages = [p for p in did.sinks.values() if p] or [o.latency for o in did.operators.values() if o.latency]
    segments = (s for servers in commit.manifest.values() for server in servers for s in server)
    return Point(
        batch=commit.batch,
        time=round(did.time or commit.clock / 1e6, 3),
        rows=did.rows,
        seconds=[round(getattr(took, phase) or 0.0, 4) for phase in PHASES],
        edges={name: [edge.local, edge.remote] for name, edge in did.edges.items()},
        distance={name: [c["rows"], c["bytes"]] for name, c in did.distance.items() if c["rows"]},
        imbalance={name: round(o.imbalance, 3) for name, o in did.operators.items() if o.imbalance},
        latency=[max(p[q] for p in ages) for q in ("p50", "p99")] if ages else [],
        lag=round(did.load.lag, 3),
        moved_keys=(did.moved_keys or 0) + (did.scaled or {}).get("moved_keys", 0),
        servers=commit.servers,
        table_version=commit.table_version,
        state_bytes=sum(segment.bytes for segment in segments),
    )


def marks(commit: Commit) -> list[dict[str, Any]]:
    """Return what happened with a batch beside its rows: each with ``kind``, ``batch``, ``time`` and details."""
    did = commit.progress or Progress()
    at = {"batch": commit.batch, "time": round(did.time or commit.clock / 1e6, 3)}
    out: list[dict[str, Any]] = []
    if did.restarted:
        out.append({**at, "kind": "restarted"})
    if did.ran_again:
        out.append({**at, "kind": "ran again", "why": did.ran_again})
    for decision in did.routing.new if did.routing else []:
        kind = "reconfigured" if decision.adopted else "not reconfigured"
        out.append({"kind": kind, **msgspec.to_builtins(decision), **at})
    for one in did.scalings or []:
        out.append({**at, "kind": "scaled" if one.refused is None else "not scaled", **one.to_dict()})
    return out


def seconds_of(commit: Commit, after: Commit) -> Seconds | None:
    """Return the seconds of a batch as the commit of the next one knows them."""
    return after.progress.before if after.progress and after.batch == commit.batch + 1 else None


def merge(points: Sequence[Point]) -> Point:
    """Return one point for several in a row.

    Rows, bytes and seconds are added up; of imbalance, latency and lag the worst remains.

    >>> both = merge([Point(batch=1, rows=5, lag=2.0), Point(batch=2, rows=7)])
    >>> both.batch, both.batches, both.rows, both.lag
    (2, 2, 12, 2.0)
    """
    last = points[-1]
    imbalance: dict[str, float] = {}
    for one in points:
        for name, value in one.imbalance.items():
            imbalance[name] = max(value, imbalance.get(name, 0.0))
    return Point(
        batch=last.batch,
        batches=sum(p.batches for p in points),
        time=last.time,
        rows=sum(p.rows for p in points),
        seconds=[round(sum(s), 4) for s in zip(*(p.seconds for p in points if p.seconds), strict=True)],
        edges=_added(p.edges for p in points),
        distance=_added(p.distance for p in points),
        imbalance=imbalance,
        latency=[max(s) for s in zip(*(p.latency for p in points if p.latency), strict=True)],
        lag=max(p.lag for p in points),
        moved_keys=sum(p.moved_keys for p in points),
        servers=last.servers,
        table_version=last.table_version,
        state_bytes=last.state_bytes,
    )


def _added(parts: Iterable[dict[str, list[int]]]) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for part in parts:
        for name, numbers in part.items():
            out[name] = [a + b for a, b in zip(out[name], numbers, strict=True)] if name in out else numbers
    return out


def downsample(points: Sequence[Point], most: int) -> list[Point]:
    """Return at most so many points, each for equally many of those given."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    return [merge(points[i : i + size]) for i in range(0, len(points), size)]


def chunk_names(storage: Storage) -> list[ChunkName]:
    """Return the chunks that count, oldest first."""
    parsed = (re.fullmatch(r"(\d)-(\d{12})-(\d{12})", name) for name in storage.names(HISTORY))
    names = [ChunkName(*map(int, match.groups())) for match in parsed if match]
    return sorted(
        (n for n in names if not any(_within(n, other) for other in names)), key=lambda name: name.first
    )


def _within(name: ChunkName, other: ChunkName) -> bool:
    return other.level > name.level and other.first <= name.first and name.last <= other.last


def read_chunk(storage: Storage, name: ChunkName) -> Chunk:
    """Return a chunk; raise a CheckpointError if it is damaged or gone."""
    return msgspec.convert(storage.read_document(CheckpointLayout.history(name), "history"), Chunk)


def add(storage: Storage, commits: Iterable[Commit], following: Commit) -> None:
    """Write down what time lines show of commits that are about to be deleted; ``following`` is the next one."""
    chunks = chunk_names(storage)
    last = max((name.last for name in chunks), default=-1)
    chunk = Chunk([])
    for commit, after in itertools.pairwise([*commits, following]):
        # a migration repeats the number of its batch
        if commit.batch > last and commit.progress:
            last = commit.batch
            chunk.points.append(point(commit, seconds_of(commit, after)))
            chunk.marks += marks(commit)
    if chunk.points:
        name = ChunkName(0, chunk.points[0].batch, last)
        storage.write_document(CheckpointLayout.history(name), "history", chunk)
        _compact(storage, [*chunks, name])


def readable(
    checkpoint: CheckpointLayout, names: Sequence[str], at_hand: Mapping[str, Commit]
) -> Iterator[Commit]:
    """Yield commits; pass over damaged ones, as nothing but the history depends on them any more."""
    for name in names:
        try:
            yield at_hand.get(name) or checkpoint.read_commit(name)
        except CheckpointError as error:
            logger.warning("a batch will be missing from the history: %s", error)


def _compact(storage: Storage, names: list[ChunkName]) -> None:
    """Let the oldest chunks of each level that is full become one of the next; those of the last level go."""
    for level in range(LEVELS):
        ours = [name for name in names if name.level == level]
        if len(ours) < CHUNKS:
            return
        oldest = ours[:FAN]
        if level + 1 < LEVELS:
            merged = ChunkName(level + 1, oldest[0].first, oldest[-1].last)
            chunk = _joined(storage, oldest)
            with contextlib.suppress(CheckpointError):  # it is there: a clean-up was cut short
                storage.write_document(CheckpointLayout.history(merged), "history", chunk)
            names = [*names, merged]
        for name in oldest:
            storage.delete(CheckpointLayout.history(name))


def _joined(storage: Storage, names: Sequence[ChunkName]) -> Chunk:
    chunk = Chunk([])
    for name in names:
        try:
            part = read_chunk(storage, name)
        except CheckpointError as error:  # the stream goes on without a part of its past
            logger.warning("a part of the history is lost: %s", error)
            continue
        chunk.points += part.points
        chunk.marks += part.marks
    return Chunk(downsample(chunk.points, POINTS), _most_telling(chunk.marks))


def _most_telling(marks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the marks that a chunk has room for: what was not done goes first, then the oldest."""
    kept = [m for m in marks if not m["kind"].startswith("not ")] if len(marks) > MARKS else marks
    return kept[-MARKS:]
