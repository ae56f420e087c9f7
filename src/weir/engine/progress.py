"""What a batch did, as a typed structure: ``progress.edges["a → b"].locality``."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import msgspec

from weir.errors import EngineError
from weir.locality.forecast import Reconfiguration
from weir.locality.former import BACK
from weir.notebook import share, table


class Record(msgspec.Struct, kw_only=True):
    """A structure that is read by attribute.

    Fields in ``OPTIONAL`` are left out of :meth:`to_dict` where they are None.

    >>> seconds = Seconds(plan=0.1, job=0.5)
    >>> seconds.job, seconds.to_dict()
    (0.5, {'plan': 0.1, 'job': 0.5})
    """

    OPTIONAL: ClassVar[frozenset[str]] = frozenset()

    def __getitem__(self, name: Any) -> NoReturn:
        kind = type(self).__name__
        raise EngineError(
            f"{kind} is read by attribute, as in progress.rows; a dict is progress.to_dict()[{name!r}]"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as ``--json`` prints it and commits keep it."""
        names = zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True)
        values = ((n, getattr(self, name)) for n, name in names)
        return {n: _plain(value) for n, value in values if value is not None or n not in self.OPTIONAL}


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, dict):
        return {k: v if v.__class__ in _SCALAR else _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [v if v.__class__ in _SCALAR else _plain(v) for v in value]
    return msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value


_SCALAR = frozenset({int, float, str, bool, type(None)})  # most values, some for every server and operator
Traffic = dict[str, dict[str, int]]  # distance → rows, bytes
Percentiles = dict[str, float]  # "p50", "p95", "p99" → seconds


class EdgeProgress(Record):
    """What crossed one edge between operators."""

    local: int = 0  # rows handed on in memory
    remote: int = 0
    bytes: int = 0
    locality: float | None = None
    distance: Traffic = {}


class OperatorProgress(Record):
    """What one operator did on all servers.

    ``busy`` is seconds of work, without waiting for input; ``imbalance`` the rows of the busiest server over the
    average; ``execution`` and ``waiting`` the mean seconds of a row on each server, None where no row came. ``queued``
    is, for each server, the most rows that waited for it at once; live servers alone have such queues. ``spent`` says
    of an operator with a function of the user's what a row costs, in mean seconds: ``fetching`` states, in the
    ``function``, ``encoding`` (rows and states to Python and back) and ``writing``.
    """

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"spent"})

    rows_in: int = 0
    rows_out: int = 0
    busy: float = 0.0
    null_keys: int = 0
    pairs: int = 0
    late: int = 0
    ahead: int = 0
    diverted: int = 0
    imbalance: float | None = None
    latency: Percentiles | None = None
    rows_by_server: list[int] = []
    execution: list[float | None] = []
    waiting: list[float | None] = []
    queued: list[int] = []
    spent: dict[str, float] | None = None


class ServerProgress(Record):
    """What one server did, in all operators and steps."""

    rows: int = 0
    busy: float = 0.0
    host: str = ""
    execution: float | None = None
    waiting: float | None = None
    spilled: int = 0  # bytes of rows that waited in files, on live servers


class LoadProgress(Record):
    """Rates over the last batches: what scaling decisions start from."""

    utilisation: float = 0.0
    lag: float = 0.0
    congestion: float = 1.0
    congested: list[str] = []
    rates: dict[str, list[float]] = {}  # operator → input, processing, emit, instances
    edges: list[list[str]] = []
    placement: dict[str, list[int]] = {}
    everywhere: list[str] = []
    servers: int = 0
    speeds: list[float] = []  # of servers, relative to the usual; empty while all are alike


class RoutingProgress(Record):
    """What locality-aware routing has decided so far; ``new`` is what was decided for this batch."""

    decisions: int = 0
    new: list[Reconfiguration] = []
    last_decision: Reconfiguration | None = None
    standing: Reconfiguration | None = (
        None  # the decision behind the tables in force, and what has come of it
    )
    stalled: str | None = None  # why no decision comes, where one should
    tables: dict[str, int] = {}  # operator → listed keys
    # operator → share of rows whose keys were not too rare to be reported, last time
    counted: dict[str, float] = {}
    counting: bool = True  # whether servers counted this batch
    # of a batch that was counted before it was planned: the part of its rows that stay on their server because of that
    ahead: float | None = None
    speeds: list[float] | None = None  # of servers, where shares follow them; None: all are alike
    split: dict[str, int] = {}  # operator → keys too hot for one server, worked on by several
    spare: dict[str, float] = {}  # operator → part of its keys that may be worked on elsewhere
    needs: dict[str, float] = {}  # operator that cannot split → servers that its hottest key alone would need

    def lines(self) -> list[str]:
        """Return what was decided and why, in sentences."""
        out = []
        if (last := self.last_decision) is not None:
            verdict = "adopted" if last.adopted else "refused"
            why = last.error or "asked for" if last.forecast is None else last.forecast.why
            said = f"the last proposal was {verdict}"
            if last.method == BACK:
                said = "the last ones did not pay and were taken back"
            out.append(f"tables: {sum(self.tables.values()):,} keys; {said}: {why}")
        if (now := self.standing) is not None and now.forecast is not None and now.outcome:
            before, then, came = (
                now.forecast.locality_now,
                now.forecast.locality_then,
                now.outcome["locality"],
            )
            out.append(
                f"tables in force since batch {now.batch}: {before:.0%} of the rows between operators stayed on their "
                f"server, {then:.0%} were to, {came:.0%} have in {now.outcome['batches']:.0f} batches"
            )
        if self.speeds is not None:
            speeds = ", ".join(f"{speed:.2g}" for speed in self.speeds)
            out.append(f"servers differ in speed ({speeds}): each gets the keys that it can carry")
        if self.ahead is not None:
            out.append(
                f"counted before it was planned: {self.ahead:.0%} of the rows more stay on their server"
            )
        for name, keys in self.split.items():
            out.append(f"{name}: {keys} hot key{'s' if keys != 1 else ''} worked on by several servers")
        out += [
            f"{name}: up to {part:.0%} of its keys level the load"
            for name, part in self.spare.items()
            if part
        ]
        return out + self.warnings()

    def warnings(self) -> list[str]:
        """Return what only the user can change."""
        return [
            f"the hottest key of {name} needs {servers:.1f} servers: let the operator merge, so that it can be split"
            for name, servers in self.needs.items()
        ]


class Scaling(Record, rename={"before": "from"}):
    """What was decided about the number of servers: a change, or why there was none."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {"operation", "strategy", "why", "from", "to", "moved_keys", "servers", "released", "refused"}
    )

    operation: str | None = None  # "out" or "in"; None: it was planned before a restart
    strategy: str | None = None
    why: str | None = None  # in plain text
    before: int | None = None  # servers
    to: int | None = None
    moved_keys: int | None = None
    servers: int | None = None  # that were asked for, where it was refused
    released: list[str] | None = None  # executors that were given back
    refused: str | None = None


class InputProgress(Record):
    """Event time at one place where it is read, up to this batch; all in microseconds since 1970."""

    time: int | None = None  # the greatest so far, None before the first row
    heard: int = 0  # the clock of the last batch with rows of it
    idle: bool = False  # whether nobody waits for it any more


class Seconds(Record):
    """Where the time of a batch went, after the seconds of ``waiting`` for it.

    ``commit``, ``deliver`` and ``batch``, which is all but waiting, are known when it has been delivered.
    """

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"waiting", "commit", "deliver", "batch"})

    waiting: float | None = None
    plan: float = 0.0
    job: float = 0.0
    commit: float | None = None
    deliver: float | None = None
    batch: float | None = None


class Progress(Record):
    """One batch."""

    OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {"ran_again", "scaled", "scalings", "routing", "moved_keys", "before", "sink_waits", "sources"}
    )

    batch: int = 0
    time: float = 0.0  # seconds since 1970, when its tasks had ended
    restarted: bool = False  # whether it is the first one after a restart
    rows: int = 0  # what came from the sources
    bytes_in: int = 0
    rows_local: int = 0  # rows between operators that stayed on their server
    rows_exchanged: int = 0  # and those that did not
    bytes_exchanged: int = 0
    bytes_left_on_host: int = 0  # of the latter, what passed through files of one host
    locality: float | None = None  # rows_local over all rows between operators
    distance: Traffic = {}  # rows and bytes by distance
    partials: Traffic = {}  # the same for partial states on their way home
    places: list[dict[str, str]] = []
    # rows per round that each instance gets from each server, on edges where weights decide; up to 64 servers
    weights: dict[str, dict[str, list[float]]] = {}
    edges: dict[str, EdgeProgress] = {}
    entered: dict[str, Traffic] = {}  # the same for edges from sources: rows and bytes by distance
    operators: dict[str, OperatorProgress] = {}
    sinks: dict[str, Percentiles | None] = {}
    servers: list[ServerProgress] = []
    state_keys: dict[str, int] = {}
    state_bytes_written: int = 0
    table_version: int = 0
    watermarks: dict[str, int] = {}
    inputs: dict[str, InputProgress] = {}  # where event time is read, as "part.column"
    moved_servers: list[int] = []
    seconds: Seconds = msgspec.field(default_factory=Seconds)
    ran_again: str | None = None  # why the batch had to run twice, if it did
    execution: str = "jobs"  # or "live"
    load: LoadProgress = msgspec.field(default_factory=LoadProgress)
    scaled: dict[str, int] | None = None  # "from", "to" (servers), "moved_keys"
    scalings: list[Scaling] | None = None  # what was decided about servers since the last batch, and why
    before: Seconds | None = None  # of the batch before, now that all of it is known
    routing: RoutingProgress | None = None
    moved_keys: int | None = None
    # sources that are cut into batches → "lag": what was left when the batch was planned, and more
    sources: dict[str, dict[str, Any]] | None = None
    # sinks that were away when the batch was delivered → "tries", "seconds", "why"
    sink_waits: dict[str, dict[str, Any]] | None = None

    def _repr_html_(self) -> str:
        took = self.seconds.batch or self.seconds.plan + self.seconds.job
        about: list[list[object]] = [
            ["batch", self.batch],
            ["rows", self.rows],
            ["seconds", took],
            ["locality", share(self.locality)],
        ]
        operators = (
            [n, o.rows_in, o.rows_out, self.state_keys.get(n), o.busy, o.imbalance]
            for n, o in self.operators.items()
        )
        heads = ["operator", "rows in", "rows out", "keys", "busy s", "busiest / average"]
        return table(about) + table(operators, heads)
