"""Open a checkpoint for an application: as it was left, or changed since."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from weir.durations import microseconds
from weir.engine.batch.clock import Clock
from weir.engine.batch.delivery import Sinks
from weir.engine.batch.driver import Driver, Runner
from weir.engine.batch.ledger import FOREVER, Ledger, latest_commit
from weir.engine.batch.source_batching import SourceBatching, SplittableSource
from weir.engine.documents import Layout
from weir.engine.steering.rescale import Build
from weir.errors import TopologyError
from weir.graph.model import DEAD_LETTERS, LATE, Topology, fingerprint
from weir.operators.file_feed import FileFeed
from weir.options import Options, sinks_of
from weir.state.storage import Storage


def open_driver(
    build: Callable[..., Topology],
    checkpoint: str,
    mode: str,
    runner: Runner,
    sinks: Sinks,
    options: Options,
    identity: str | None = None,
    feeds: Mapping[str, SplittableSource] | None = None,
) -> Driver:
    """Open a checkpoint for an application and return the driver that goes on from there.

    ``build(servers, placements=None)`` returns the application on so many servers. ``identity`` names a new checkpoint,
    and seeds its routers; any other one if not given. ``feeds`` are the sources that the driver cuts into batches.
    """
    topology = build(options.servers)
    storage = Storage(checkpoint, options.storage_options)
    declared = fingerprint(topology)
    layout, topology = _scaled(storage, topology, declared, build)
    ledger = Ledger(
        storage,
        topology,
        mode,
        clock=Clock(options.clock, _clock_jump(topology, options)),
        retain=options.retain,
        drop_state=options.drop_state,
        layout=layout,
        identity=identity,
    )
    source_batching = _source_batching(topology, feeds or {}, options)
    return Driver(topology, storage, ledger, runner, sinks, options, build, declared, source_batching)


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


def _scaled(
    storage: Storage, topology: Topology, declared: str, build: Build
) -> tuple[Layout | None, Topology]:
    """Return the layout and topology to go on with: as scaling has left them, unless the application has changed."""
    last = latest_commit(storage)
    if last is None or last.layout is None:
        return None, topology
    if last.layout.declared == declared:
        return last.layout, build(last.layout.servers, last.layout.placements)
    if last.signature == topology.signature():  # the code has caught up with what scaling did
        return msgspec.structs.replace(last.layout, declared=declared), topology
    return None, topology


def _clock_jump(topology: Topology, options: Options) -> int:
    """Return how far the clock may jump, in µs: any way where nothing lives by it."""
    lives = any(node.ttl is not None or node.wakes for node in topology.stateful)
    return microseconds(options.clock_jump) if lives else FOREVER


def check_sinks(
    leaves: Sequence[str],
    diverting: Sequence[str],
    sink: Any,
    dead_letters: Any,
    late: Any = None,
    windowed: Sequence[str] = (),
) -> dict[str, tuple[Any, ...]]:
    """Return the sinks of each operator; refuse one sink for several ends, and diverted rows that nobody takes."""
    taken: dict[str, Any] = {}
    if isinstance(sink, Mapping):
        taken.update(sink)
    elif sink is not None:
        if len(leaves) != 1:
            raise TopologyError(
                f"the application ends in {len(leaves)} operators ({', '.join(leaves)}); "
                "say which sink is whose: sink={'name': …}"
            )
        taken[leaves[0]] = sink
    if late is not None and not isinstance(late, Mapping):
        if len(windowed) != 1:
            raise TopologyError(
                f"late= takes the late rows of one operator, and {len(windowed)} have windows; say which sink is "
                "whose, late={'name': …}"
            )
        late = {windowed[0]: late}
    taken.update({name + LATE: taker for name, taker in (late or {}).items()})
    if dead_letters is not None:
        taken[DEAD_LETTERS] = dead_letters
    if diverting and dead_letters is None:
        raise TopologyError(
            f"operator {diverting[0]!r} diverts failing rows, but there is no dead_letters= sink for them"
        )
    return {name: sinks for name, one in taken.items() if (sinks := sinks_of(one))}
