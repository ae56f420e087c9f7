"""What a batch will do, written down before it runs, and what its tasks report when they have run.

A replayed batch reads its plan back and does exactly the same: same clock, same watermarks, same tables, same
counters, same merges. Plans, reports and commits are msgspec structures and become JSON in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import msgspec

from weir.engine.progress import Progress
from weir.graph.model import Signature
from weir.operators.instance import OperatorReport
from weir.state.segment import SegmentRef

Manifest = dict[str, list[list[SegmentRef]]]  # operator → server → segments, oldest first
# operator → server → keys in its state; None: written by an earlier version
Counts = dict[str, list[int | None]]


class FileRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that a task wrote: all that is needed to find and verify it."""

    name: str
    rows: int
    bytes: int
    crc: int


class TableRef(msgspec.Struct, frozen=True):
    """A routing table in the checkpoint: a base and the patches since."""

    version: int
    files: list[FileRef]


class Layout(msgspec.Struct, frozen=True):
    """Where instances live, once scaling in mid-stream has changed what the application declares."""

    servers: int
    # fingerprint of the application as declared: if that changes, it counts, and this is dropped
    declared: str
    placements: dict[str, list[int]]  # operator → instance → server
    key_groups: dict[str, FileRef] = {}  # stateful operator → Arrow: the instance of each key group
    buckets: dict[str, FileRef] = {}  # what version 0.2 had in their place


class SideRef(msgspec.Struct, frozen=True):
    """A side input as a batch sees it: its file, what identifies its content, and when it was read."""

    file: FileRef
    content: str
    read_at: int  # µs of the plan's clock


class Move(msgspec.Struct, frozen=True):
    """Keys of an operator whose state is written anew by its new owner at the beginning of a batch."""

    operator: str
    file: FileRef  # Arrow: h1, from (a number before a change), to, stale (who must forget the old entry, −1: nobody)


class Claim(msgspec.Struct, frozen=True):
    """What a driver wrote to take a checkpoint over: whoever works for it must find the same there."""

    turn: int
    nonce: str


class Network(msgspec.Struct, frozen=True):
    """Where servers are, as far as a batch routes by it."""

    places: list[tuple[str, str, str]]  # server → process, host, rack


class Input(msgspec.Struct, frozen=True):
    """What a batch takes from sources that the driver cuts up, see :mod:`weir.engine.batch.source_batching`."""

    positions: dict[str, dict[str, int]]  # source → where the next batch goes on
    listing: dict[str, dict[str, list[Any]]] = {}  # source → what this batch reads; only in plans
    read: dict[str, FileRef] = {}  # source → files that a bounded run has read before the stream began


class BatchPlan(msgspec.Struct, kw_only=True):
    """Everything that decides what a batch does."""

    batch: int
    epoch: int = 0
    fingerprint: str
    flow: str = ""  # fingerprint of what flows where; empty: written by an earlier version
    servers: int
    seed: int
    salt: int = 0  # the same for all batches of a checkpoint: what routers hash keys with
    # operator → the secret of the hash that tells its keys apart; "": of a checkpoint by an earlier version
    secrets: dict[str, str] = {}
    clock: int  # µs; what ttl is measured by
    previous_clock: int
    watermarks: dict[str, int] = {}  # operator → µs
    previous_watermarks: dict[str, int] = {}
    tables: dict[str, TableRef] = {}
    table_version: int = 0
    # operator → part of its keys, by hash, whose rows may be worked on elsewhere
    spare: dict[str, float] = {}
    hot: dict[str, list[int]] = {}  # operator → hashes of keys that are worked on where their rows are
    counting: bool = True  # whether tasks count keys, where homes are learnt
    moves: list[Move] = []
    sides: dict[str, SideRef] = {}  # operator → its side input
    counters: dict[str, FileRef] = {}  # "edge/source" → router counters
    feedback: dict[str, Any] = {}  # operator → what its routers hear of the last batch's load
    network: Network | None = None
    merges: dict[str, list[tuple[int, int] | None]] = {}  # operator → server → run of segments to merge
    end_of_input: bool = False
    layout: Layout | None = None
    # set in the batch that changes owners of state: for each server its number before, −1 for a new one
    origin: list[int] | None = None
    moved_keys: int = 0  # whose owners change then, about
    rewrites: list[str] = []  # operators whose state is then written anew: nobody knows its owners before
    ranged: bool = False  # False: written by a version in which keys had other owners
    input: Input | None = None


class EdgeReport(msgspec.Struct, array_like=True, gc=False):
    """What crossed one edge in one task."""

    local: int = 0  # rows handed on in memory
    remote: int = 0
    bytes: int = 0
    arrived: dict[int, tuple[int, int]] = {}  # distance → rows, bytes that were sent here


class MadeSegment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A segment that a task wrote; ``replaces`` a run of older ones if it merged them."""

    operator: str
    ref: SegmentRef | None
    replaces: tuple[int, int] | None = None


def added(values: Sequence[Any]) -> Any:
    """Return the sum of numbers, lists, tuples of numbers; of dicts and structures, that of each part.

    >>> added([{"a": (1, 2)}, {"a": (3, 4), "b": (5, 6)}]), added([[1], [2]])
    ({'a': (4, 6), 'b': (5, 6)}, [1, 2])
    """
    if len(values) == 1:
        return values[0]
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: added([value[key] for value in values if key in value]) for key in keys}
    if isinstance(first, list):
        return [item for value in values for item in value]
    if isinstance(first, tuple):
        return tuple(map(sum, zip(*values, strict=True)))
    if isinstance(first, msgspec.Struct):
        fields = zip(*map(msgspec.structs.astuple, values), strict=True)  # most of them numbers
        return type(first)(*(sum(f) if f[0].__class__ in (int, float) else added(f) for f in fields))
    return sum(values)


def _rule(merge: Callable[[Sequence[Any]], Any]) -> msgspec.Meta:
    return msgspec.Meta(extra={"merge": merge})


# how the reports of a server's steps become one, field by field; without a rule, values are added up
FIRST = _rule(lambda values: values[0])
LAST = _rule(lambda values: values[-1])
UPDATED = _rule(lambda values: {key: value for each in values for key, value in each.items()})
GREATEST = _rule(
    lambda values: {key: max(v[key] for v in values if key in v) for each in values for key in each}
)


class TaskReport(msgspec.Struct, kw_only=True, array_like=True, gc=False):
    """What one task (a server in a step; server None: a source task) did and wrote, or a server in all its steps.

    Its size does not depend on the number of servers. It travels as MessagePack and is never saved.
    """

    server: Annotated[int | None, LAST]
    step: Annotated[int, LAST]
    steps: list[int] = []  # those it is about
    host: Annotated[str, LAST] = ""
    process: Annotated[str, LAST] = ""
    rows: Annotated[int, FIRST] = 0  # that came in with the first step: later ones came from servers
    bytes: Annotated[int, FIRST] = 0
    read_rows: int = 0  # from files that were read here
    read_bytes: int = 0
    left_bytes: int = 0  # left in files for other servers on this host, see weir.engine.exchange.host_handoff
    spilled_bytes: int = 0  # that waited in files for their turn, on live servers
    busy: float = 0.0
    operators: dict[str, OperatorReport] = {}
    edges: dict[int, EdgeReport] = {}
    segments: list[MadeSegment] = []
    outputs: dict[str, list[FileRef]] = {}  # sink → files
    counters: Annotated[dict[str, FileRef], UPDATED] = {}
    partials: dict[int, tuple[int, int]] = {}  # distance → rows, bytes of partial states that came here
    sink_ages: dict[str, dict[int, int]] = {}  # sink → rows by their time since the source
    # edge → the weight of each instance, where weights decide
    weights: Annotated[dict[int, list[int]], UPDATED] = {}
    posted: list[tuple[int, int, int, int, int]] = []  # kind, edge or operator, tally: see exchange.wire
    received: list[tuple[int, int, int]] = []  # kind, edge or operator, rows
    # operator → keys that its files add to the state, and that they end
    entries: dict[str, tuple[int, int]] = {}
    moved: dict[str, tuple[int, int]] = {}  # operator → keys that moves bring here, and that they take away
    event_times: Annotated[dict[str, int], GREATEST] = {}  # where event time is read → the greatest, in µs
    # a user's function failed: the error's class and message
    error: Annotated[tuple[str, str] | None, LAST] = None


def encode_report(report: TaskReport) -> bytes:
    """Return a report as bytes, for a control row."""
    return msgspec.msgpack.encode(report)


def decode_report(data: Any) -> TaskReport:
    """Return the report of a control row, given any buffer."""
    return msgspec.msgpack.decode(data, type=TaskReport)


def by_server(reports: Iterable[TaskReport], servers: int) -> list[list[TaskReport]]:
    """Return the reports of each server; those of source tasks are left out."""
    out: list[list[TaskReport]] = [[] for _ in range(servers)]
    for report in reports:
        if report.server is not None:
            out[report.server].append(report)
    return out


class Commit(msgspec.Struct, kw_only=True):
    """A batch that has happened: names every file that is the state from now on."""

    batch: int
    epoch: int = 0
    fingerprint: str
    signature: Signature = msgspec.field(default_factory=Signature)
    servers: int
    secrets: dict[str, str] = {}  # of the plan
    clock: int
    watermarks: dict[str, int] = {}
    event_times: dict[str, int] = {}  # where event time is read → the greatest so far
    heard: dict[str, int] = {}  # where event time is read → the clock of the last batch that brought any
    tables: dict[str, TableRef] = {}
    table_version: int = 0
    sides: dict[str, SideRef] = {}
    counters: dict[str, FileRef] = {}
    feedback: dict[str, Any] = {}
    network: Network | None = None
    manifest: Manifest = {}
    keys: dict[str, int] = {}
    counts: Counts = {}
    manager: FileRef | None = None  # what the locality manager remembers
    outputs: dict[str, list[FileRef]] = {}
    sinks: dict[str, int] = {}  # operator → how many sinks are to have its outputs
    progress: Progress | None = None  # None: of a migration by an earlier version, or of an initial state
    end_of_input: bool = False
    layout: Layout | None = None
    # operators whose owners follow from layout and tables, see engine.task.ownership
    ranged: list[str] | None = None
    source: str = ""  # whose batches these are: the id of Spark's own query
    graph: dict[str, Any] = {}  # the application for those who look at it: Topology.outline
    # the source's number of the last batch that it has handed over, −1 before the first; batches without rows are ours
    source_batch: int | None = None
    input: Input | None = None
    mode: str = ""  # of the queries that go on from here, if another than the checkpoint began with

    @property
    def handed_over(self) -> int:
        """The source's number of the last batch of which this commit knows."""
        return self.batch if self.source_batch is None else self.source_batch


def plan_of(document: dict[str, Any]) -> BatchPlan:
    """Return the plan that a document of the checkpoint holds."""
    return msgspec.convert(_renamed(document), BatchPlan)


def commit_of(document: dict[str, Any]) -> Commit:
    """Return the commit that a document of the checkpoint holds."""
    return msgspec.convert(_renamed(document), Commit)


def _renamed(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of any version with the names of this one.

    Version 0.1 kept what routers hear under two names, one for Consistent and one for Weighted. A commit without
    progress had an empty one.

    >>> _renamed({"batch": 3, "signals": {"a": [[12, [1, -1]]]}, "times": {}, "progress": {}})
    {'batch': 3, 'progress': None, 'feedback': {'a': [[12, [1, -1]]]}}
    """
    for name in ("signals", "times"):
        if name in document:
            document["feedback"] = {**document.get("feedback", {}), **document.pop(name)}
    if document.get("progress") == {}:
        document["progress"] = None
    return document
