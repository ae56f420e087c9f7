"""Open a checkpoint for an application: as it was left, or changed since."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from weir.durations import microseconds
from weir.engine.batch.driver import Driver
from weir.engine.batch.initial import begin_with
from weir.engine.batch.ledger import FOREVER, Clock, Ledger
from weir.engine.batch.runner import Runner
from weir.engine.batch.source_batching import SourceBatching, SplittableSource
from weir.engine.checkpoint import CheckpointLayout
from weir.engine.documents import Layout
from weir.engine.steering.rescale import Build
from weir.errors import TopologyError
from weir.graph.declare import Assembly, added
from weir.graph.model import DEAD, DEAD_LETTERS, LATE, Topology, fingerprint
from weir.operators.read import FileFeed
from weir.options import Options, sinks_of
from weir.state.storage import Storage


def open_query(
    parts: Assembly,
    options: Options,
    runner: Runner,
    identity: str | None = None,
    collect: Callable[[str], Any] | None = None,
) -> Driver:
    """Open the checkpoint of a runner for an application and return the driver that goes on from there.

    ``identity`` names a new checkpoint, and seeds its routers; any other one if not given. See :func:`query_sinks` for
    ``collect``.
    """
    sinks = query_sinks(parts, options, collect)
    build = partial(parts.topology, routing=options.routing, sinks=list(sinks), prune=options.prune)
    storage = runner.storage
    layout, topology, declared = _placed(storage, options.servers, build, runner.room)
    open_ledger = partial(
        Ledger,
        storage,
        topology,
        runner.mode,
        clock=Clock(options.clock, _clock_jump(topology, options)),
        retain=options.retain,
        drop_state=options.drop_state,
        layout=layout,
        identity=identity,
    )
    ledger = open_ledger()
    if parts.initial and getattr(options.routing, "tables", None) is not None:
        raise TopologyError(
            "initial= and Locality(tables=…): the homes of an initial state are by hash until others are learnt; leave "
            "tables= out"
        )
    if begin_with(ledger, parts.initial):
        ledger = open_ledger()
    source_batching = _source_batching(topology, parts.feeds, options)
    return Driver(topology, ledger, runner, sinks, options, build, declared, source_batching)


def _source_batching(
    topology: Topology, feeds: Mapping[str, SplittableSource], options: Options
) -> SourceBatching | None:
    """Return what cuts topics, and listings of files, into batches."""
    target = None if options.target_batch is None else microseconds(options.target_batch) / 1e6
    files = {name: FileFeed(most) for name, most in topology.listings.items() if name not in feeds}
    feeds = {**feeds, **files}
    if target is not None and not feeds:
        raise TopologyError(
            "target_batch= is for weir.kafka and weir.files: of other sources Spark decides what a batch brings"
        )
    return SourceBatching(feeds, target) if feeds else None


def _placed(
    storage: Storage, servers: int | Literal["auto"], build: Build, room: Callable[[int | None], int]
) -> tuple[Layout | None, Topology, str]:
    """Return the layout and topology to go on with, and what the application declares, as a fingerprint.

    They are as scaling has left them, unless the application has changed. ``"auto"`` keeps the checkpoint's servers.
    """
    last = CheckpointLayout(storage).latest_commit()
    layout = None if last is None else last.layout
    if last is not None and layout is not None and servers == "auto":
        topology = build(layout.servers, layout.placements)
        if topology.signature() == last.signature:
            room(topology.servers)
            return layout, topology, layout.declared
    if servers == "auto":
        servers = room(None) if last is None else last.servers
    topology = build(servers, None)
    declared = fingerprint(topology)
    if last is not None and layout is not None and layout.declared == declared:
        topology = build(layout.servers, layout.placements)
    elif last is not None and layout is not None and last.signature == topology.signature():
        # the code has caught up with what scaling did
        layout = msgspec.structs.replace(layout, declared=declared)
    else:
        layout = None
    room(topology.servers)
    return layout, topology, declared


def _clock_jump(topology: Topology, options: Options) -> int:
    """Return how far the clock may jump, in µs: any way where nothing lives by it."""
    lives = any(node.ttl is not None or node.wakes for node in topology.stateful)
    return microseconds(options.clock_jump) if lives else FOREVER


def query_sinks(
    parts: Assembly, options: Options, collect: Callable[[str], Any] | None = None
) -> dict[str, tuple[Any, ...]]:
    """Return all sinks by name: those that streams were given, and those of the options.

    ``collect(name)``, if given, makes one more for everything that a sink could get.
    """
    late = [d.name for d in parts.declared if d.drops_late]
    diverting = [d.name for d in parts.declared if d.on_error == "divert"]
    given = {
        **_by_operator("sink", options.sink, parts.leaves, "nothing follows"),
        **{
            name + LATE: sink
            for name, sink in _by_operator("late", options.late, late, "have windows").items()
        },
        DEAD_LETTERS: options.dead_letters,
    }
    taken = dict(parts.sinks)
    for name, sinks in given.items():
        taken[name] = added(taken.get(name, ()), sinks_of(sinks))
    if collect is not None:
        heard = [
            *taken,
            *(() if isinstance(options.sink, Mapping) else parts.leaves),
            *(n + LATE for n in late),
        ]
        taken = {name: (collect(name), *taken.get(name, ())) for name in heard if name != DEAD_LETTERS}
        if diverting or late:
            taken[DEAD_LETTERS] = (collect(DEAD_LETTERS), *sinks_of(options.dead_letters))
    taken = {name: sinks for name, sinks in taken.items() if sinks}
    for name in diverting:
        if DEAD_LETTERS not in taken and name + DEAD not in taken:
            raise TopologyError(
                f"operator {name!r} diverts failing rows, but nobody takes them: pass dead_letters=, or put "
                "dead_letter_sink(…) behind it"
            )
    return taken


def _by_operator(option: str, given: Any, names: Sequence[str], which: str) -> Mapping[str, Any]:
    """Return an option that is a sink for the only operator that can have one, or names operators, as the latter."""
    if given is None or isinstance(given, Mapping):
        return given or {}
    if len(names) != 1:
        raise TopologyError(
            f"{option}= is for one operator, and there are {len(names)} that {which} ({', '.join(names)}); name the "
            f"operator of each, {option}={{'name': …}}, or put stream.{'late_' * (option == 'late')}sink(…) behind each"
        )
    return {names[0]: given}
