"""What the engine does for locality-aware routing: tasks count, the driver learns, plans change tables.

The counterparts of the paper's messages: a task's :class:`KeyCounter` answer GET_METRICS with every batch; the
:class:`Learner` is the manager; a plan with a new table and its moves is RECONFIGURE, saved before anything
happens; the batch that carries it is PROPAGATE and MIGRATE in one, and its commit is the acknowledgement.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weir.engine.checkpoint import MANAGER, CheckpointLayout, load_arrays, save_arrays
from weir.engine.documents import BatchPlan, FileRef, Layout, Move, TableRef, TaskReport, added
from weir.engine.progress import RoutingProgress
from weir.engine.task.key_counting import Learning
from weir.engine.task.look_ahead import Ahead
from weir.engine.task.ownership import write_moves
from weir.engine.task.reports import instance_load
from weir.engine.task.tables import changed_table, key_groups_in_force, load_table
from weir.errors import CheckpointError, CheckpointMismatch, TopologyError
from weir.graph.model import Node, Topology
from weir.locality.config import Locality
from weir.locality.key_homes import Where
from weir.locality.manager import LocalityManager, Plan
from weir.locality.proposal import Proposal, propose
from weir.locality.stats import BatchStats
from weir.routing.base import Grouping
from weir.routing.table import Table
from weir.state.move import Moves
from weir.state.storage import Storage

logger = logging.getLogger("weir.engine")
# bytes of a batch's statistics up to which they are taken in before the next one is planned
AT_ONCE = 4 << 20
ENTRY_BYTES = 16  # of a key or a pair, on average
SAVE_EVERY = 10  # batches, where the manager remembers much
LIGHT = 20_000  # keys, and half the pairs, that it may remember to be saved with every batch


def governed(topology: Topology) -> list[Node]:
    """Return the operators whose keys are placed by learning."""
    return [n for n in topology.stateful if topology.grouping_of(n).learnt]


def sources(topology: Topology) -> list[Node]:
    """Files that are read on servers: where, is learnt like any key's home, or given and learnt from."""
    return [n for n in topology.nodes if n.operator.reads_source and n.operator.recurs]


def consecutive(topology: Topology) -> list[tuple[str, str]]:
    """Return the pairs of governed operators that rows pass one after the other; stateless ones between don't count.

    Files that are read on servers are the first of such pairs.
    """
    names = {n.name for n in [*sources(topology), *governed(topology)]}
    before: dict[str, set[str]] = {s: set() for s in topology.sources}
    pairs: list[tuple[str, str]] = []
    for node in topology.nodes:
        last = {p for e in topology.edges if e.target == node.name for p in before[e.source]}
        if node.operator.stateful or node.operator.reads_source:
            pairs += [(a, node.name) for a in sorted(last) if a in names and node.name in names]
            before[node.name] = {node.name}
        else:
            before[node.name] = last
    return list(dict.fromkeys(pairs))


Counted = dict[Any, tuple[int, int]]  # how many, and their bytes


class Learner:
    """The manager of a running query: takes in statistics, computes in the background, changes plans."""

    def __init__(self, config: Locality, topology: Topology, storage: Storage) -> None:
        self.config, self.topology, self.storage = config, topology, storage
        nodes = [*sources(topology), *governed(topology)]
        self.names = [n.name for n in nodes]
        groupings = {i: topology.grouping_of(n) for i, n in enumerate(nodes)}
        self.learnt = [n.name for i, n in enumerate(nodes) if groupings[i].learnt]
        self.manager = LocalityManager(
            config,
            self.names,
            consecutive(topology),
            topology.servers,
            fixed={i: _given(g) for i, g in groupings.items() if not g.learnt},
            free=[i for i, n in enumerate(nodes) if not n.operator.stateful],
            splits=[i for i, g in groupings.items() if config.split_hot and g.splits_keys],
        )
        self.learning = Learning.of(self.names, self.manager.edges, topology.servers, config)
        self.ahead: Ahead | None = None
        if config.look_ahead:
            # left to itself, routing looks ahead where it can
            with (
                contextlib.nullcontext() if config.look_ahead is True else contextlib.suppress(TopologyError)
            ):
                self.ahead = Ahead.of(topology, self.names, self.manager.edges, config)
        self._coming: tuple[int, BatchStats] | None = (
            None  # a batch, and what was counted of it before its plan
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="weir-manager")
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="weir-manager-beside")
        self._taking_in: Future[None] | None = None
        self._computing: Future[Proposal] | None = None
        self._saving: Future[FileRef] | None = None
        self._lock = threading.RLock()  # of the manager; what goes on beside batches holds it for long
        self._much = False  # whether the last statistics were so many that no batch waits for them
        self._ready: Plan | None = None  # made beside the last batch, for the next one
        self._astray = False  # whether the manager has failed, and no longer knows what is in force
        self._told: Any = None  # the last decision that progress has told of
        self._stalled = False  # whether that was logged
        self._listed: dict[str, int] = {}  # operator → keys in its table
        self.counted: dict[str, float] = {}  # operator → share of the last batch's rows that were counted

    # ------------------------------------------------------------------ begin, or begin again

    def start(self, tables: dict[str, TableRef], saved: FileRef | None, layout: Layout | None = None) -> None:
        """Go on from a commit: its tables are the truth, saved statistics are a help."""
        if saved is not None:
            state = load_arrays(self.storage, saved)
            if self.manager.understands(state):
                self.manager.restore(state)
        key_groups = self._key_groups(layout)
        # what was learnt still holds; where keys live is said by the commit alone, also if it names no table
        if self.manager.servers != self.topology.servers:
            self.manager.resize(self.topology.servers, key_groups=key_groups)
        else:
            self.manager.fall_back(key_groups)
        self._told = next(reversed(self.manager.decisions), None)
        self.agree(tables)

    def rescale(self, topology: Topology, tables: dict[str, TableRef], layout: Layout | None) -> None:
        """Go on with other servers: what was learnt stays, and a reconfiguration is asked for."""
        self._catch_up()
        with self._lock:
            self.topology = topology
            self.learning = Learning.of(self.names, self.manager.edges, topology.servers, self.config)
            self._computing = None  # it was for other servers
            self.manager.resize(topology.servers, key_groups=self._key_groups(layout))
            self.agree(tables)

    def _key_groups(self, layout: Layout | None) -> dict[int, NDArray[np.int32]]:
        homes = {o: key_groups_in_force(self.storage, layout, name) for o, name in enumerate(self.names)}
        return {o: groups for o, groups in homes.items() if groups is not None}

    def weights(self, name: str, hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Recent rows of an operator's keys; each counts for a row at least."""
        if name not in self.names:
            return np.ones(len(hashes))
        return np.maximum(self.manager.weights(self.names.index(name), hashes), 1.0)

    def start_tables(self) -> dict[int, Table]:
        """Return the tables made offline that the user wants to begin with."""
        start = self.config.tables
        if start is None:
            return {}
        stateful = [n.name for n in governed(self.topology)]
        files = start if isinstance(start, dict) else _table_files(str(start), stateful)
        tables: dict[int, Table] = {}
        for name, path in files.items():
            if name not in self.names:
                raise CheckpointMismatch(
                    f"{path}: a table for operator {name!r}, but locality-aware routing governs {self.names}"
                )
            table = Table.from_file(path, n=self.topology.servers)
            node = self.topology.by_name[name]
            if table.keys is not None:
                ours = [(k, node.input.field(k).type) for k in node.key]
                theirs = [(f.name, f.type) for f in table.keys.schema]
                if [t for _, t in ours] != [t for _, t in theirs]:
                    raise CheckpointMismatch(
                        f"{path}: its keys are {theirs}, those of operator {name!r} are {ours}; "
                        "make a table from this application's data"
                    )
            tables[self.names.index(name)] = table
        return tables

    def agree(self, tables: dict[str, TableRef]) -> None:
        """Make the manager believe what the tables in force say."""
        self._catch_up()
        ours = self._ours(tables).items()
        in_force = {self.names.index(name): load_table(self.storage, ref) for name, ref in ours}
        with self._lock:
            self.manager.agree_with(in_force)
        self._ready, self._astray = None, False

    def _ours(self, tables: dict[str, TableRef]) -> dict[str, TableRef]:
        """Without those of sources that the application no longer has, or no longer lets move."""
        return {name: ref for name, ref in tables.items() if name in self.learnt}

    # ------------------------------------------------------------------ learn

    def observe(
        self, counted: list[bytes], plan: BatchPlan, reports: list[TaskReport], warm: bool = True
    ) -> None:
        """Take in what the tasks of a batch counted and how long they worked, and start computing if it is time.

        Much is taken in beside the next batch, whose plan does not wait for it: then tables change one batch later.
        The first batch of a run is not ``warm``: how long it took says nothing of its servers.
        """
        self._catch_up()
        if warm and self.config.balance == "time":
            nodes = governed(self.topology)
            loads = {self.names.index(n.name): instance_load(n, self.topology, plan, reports) for n in nodes}
            with self._lock:
                self.manager.observe_load(
                    {o: load.rows for o, load in loads.items()},
                    {o: load.busy for o, load in loads.items()},
                    self._weighed(reports),
                )
        with self._lock:
            self.manager.sizes.observe(*self._sizes(reports))
            self.manager.budget.tell(plan.clock)
        coming, self._coming = self._coming, None
        stats: list[bytes] | BatchStats = counted
        if coming is not None and coming[0] == plan.batch and not plan.counting:
            stats = coming[1]
            self._much = stats.entries > AT_ONCE // ENTRY_BYTES
        elif counted:
            self._much = sum(map(len, counted)) > AT_ONCE
        else:
            if not plan.counting:
                self.manager.pass_over()
            return
        if self._much:
            self._taking_in = self._beside.submit(self._take_in_and_plan, stats)
        else:
            self._take_in(stats)

    def _weighed(self, reports: list[TaskReport]) -> dict[int, NDArray[np.float64]]:
        """Return the rows of each server as they weigh, of operators whose keys were timed."""
        out: dict[int, NDArray[np.float64]] = {}
        for report in reports:
            for name, did in report.operators.items():
                if did.weighed and report.server is not None:
                    servers = np.zeros(self.topology.servers)
                    out.setdefault(self.names.index(name), servers)[report.server] += did.weighed
        return out

    def _sizes(self, reports: list[TaskReport]) -> tuple[Counted, Counted]:
        """Return rows that left their server in a batch, and states that were written, and the bytes of both."""
        rows: dict[Any, list[tuple[int, int]]] = {}
        states: dict[Any, list[tuple[int, int]]] = {}
        number = {name: o for o, name in enumerate(self.names)}
        for report in reports:
            for index, crossed in report.edges.items():
                edge = self.topology.edges[index]
                if edge.source in number and edge.target in number:
                    ends = number[edge.source], number[edge.target]
                    rows.setdefault(ends, []).append((crossed.remote, crossed.bytes))
            for made in report.segments:
                if made.operator in number and made.ref is not None and made.replaces is None:
                    written = made.ref.rows, made.ref.bytes
                    states.setdefault(number[made.operator], []).append(written)
        return {e: added(of) for e, of in rows.items()}, {o: added(of) for o, of in states.items()}

    def _catch_up(self) -> None:
        """Wait until all statistics are taken in."""
        taking_in, self._taking_in = self._taking_in, None
        if taking_in is not None:
            taking_in.result()

    def _take_in_and_plan(self, counted: list[bytes] | BatchStats) -> None:
        """Take statistics in, and plan what follows, unless the last such plan is still waiting for its batch."""
        self._take_in(counted)
        with self._lock:
            if self._ready is None and not self.looks_ahead:
                self._ready = self._plan_tables()

    def _take_in(self, counted: list[bytes] | BatchStats) -> None:
        with self._lock, self._steering("take in statistics"):
            whole = counted
            if not isinstance(whole, BatchStats):
                whole = BatchStats.decode(*whole, capacity=self.config.capacity, seed=self.config.seed)
            self.counted = {self.names[o]: round(share, 4) for o, share in whole.counted.items()}
            self.manager.observe(whole)
            if self._computing is None and self.manager.due:
                self._computing = self._pool.submit(propose, self.manager.snapshot())

    @contextlib.contextmanager
    def _steering(self, what: str) -> Iterator[None]:
        """Log an error and go on as before: steering must never stop the data."""
        try:
            yield
        except CheckpointError:
            raise  # that is about the data
        except Exception as error:
            logger.exception("locality-aware routing could not %s; tables stay as they are", what)
            self.manager.fail(f"{type(error).__name__}: {error}")

    @property
    def hot(self) -> dict[str, list[int]]:
        """Return the hashes of keys that are worked on where their rows are, by operator."""
        return {self.names[o]: hashes.tolist() for o, hashes in self.manager.hot.items() if len(hashes)}

    @property
    def spare(self) -> dict[str, float]:
        """Return the part of each operator's keys whose rows may be worked on elsewhere."""
        return {self.names[o]: part for o, part in self.manager.spare.items()}

    @property
    def counting(self) -> bool:
        """Whether the keys of the next batch are to be counted."""
        judging = self._computing is not None and not self._computing.done()
        return self.manager.counting and not (judging and self.manager.undecided)

    @property
    def looks_ahead(self) -> bool:
        """Whether the next batch should be looked at before it is planned."""
        return self.ahead is not None and self.manager.foresight.active

    def request(self, wait: bool = False) -> None:
        """Ask for a reconfiguration; with ``wait``, compute it now, to be adopted with the next batch."""
        with self._lock:
            self.manager.request()
            if self._computing is None and self.manager.due:
                self._computing = self._pool.submit(propose, self.manager.snapshot())
            computing = self._computing
        if wait and computing is not None:
            futures.wait([computing])  # a failure is told by the next plan

    # ------------------------------------------------------------------ plan

    def next_plan(
        self, batch: int, tables: dict[str, TableRef], version: int, coming: BatchStats | None = None
    ) -> tuple[dict[str, TableRef], int, list[Move]]:
        """Return the tables and moves of the next batch, written to the checkpoint before any plan names them.

        ``coming`` is what the batch will bring, where that is known.
        """
        self._coming = None if coming is None else (batch, coming)
        kept = {n.name for n in self.topology.stateful}  # among them fixed tables that scaling has changed
        tables = {name: ref for name, ref in tables.items() if name in self.learnt or name in kept}
        waits = coming is not None or self._astray  # for what is still being taken in
        if self._ready is None and (waits or self._taking_in is None or self._taking_in.done()):
            self._catch_up()
            with self._lock:
                if batch == 0 and not tables and (start := self.start_tables()):
                    self.manager.start_from(start)
                    for name, table in ((self.names[o], table) for o, table in start.items()):
                        entries = table.hashes, table.instances
                        tables[name] = changed_table(self.storage, None, name, batch, *entries)
                    return tables, version + 1, []
                if self._ready is None and not self._astray:
                    self._ready = self._plan_tables(coming)
                if self._astray:
                    self.agree(tables)  # nothing of what it had begun to change is in force
        plan = self._ready
        if plan is None:
            return tables, version, []
        self._ready = None
        moves: list[Move] = []
        for number, patch in plan.patches.items():
            name = self.names[number]
            tables[name] = changed_table(
                self.storage, tables.get(name), name, batch, patch.hashes, patch.instances
            )
            leaving = plan.moves.get(number)
            if leaving is not None and len(leaving) and number not in self.manager.free:
                own = Moves(leaving.hashes, leaving.source, leaving.target, leaving.source)
                moves.append(write_moves(self.storage, name, batch, own))
        return tables, version + 1, moves

    def _plan_tables(self, coming: BatchStats | None = None) -> Plan | None:
        """Return what follows from all that was taken in; None if nothing does, or the manager is astray."""
        if self._computing is not None and self._computing.done():
            computing, self._computing = self._computing, None
            with self._steering("compute a reconfiguration"):
                self.manager.offer(computing.result())
        plan, failures = None, self.manager.failures
        with self._steering("plan the next tables"):
            if coming is not None:
                self.manager.look_ahead(coming)
            plan = self.manager.plan_next()
        self._astray = self.manager.failures > failures
        self._listed = {name: self.manager.listed(o) for o, name in enumerate(self.names)}
        return plan

    def memory(self, batch: int) -> FileRef | None:
        """Return the file of the manager's memory: of this batch if it is little, else one written meanwhile."""
        if self.light:
            return self.save(batch)
        if batch % SAVE_EVERY == SAVE_EVERY // 2:  # long before the next clean-up
            self.save_beside(batch)
        return self.saved()

    @property
    def light(self) -> bool:
        """Whether the manager remembers so little that it may be saved with every batch."""
        keys, pairs = self.manager.known
        return keys < LIGHT and pairs < 2 * LIGHT

    def save(self, batch: int) -> FileRef:
        """Return the manager's memory, to go on from after a restart."""
        with self._lock:
            return save_arrays(self.storage, _memory_file(batch), self.manager.state(copy=False))

    def save_beside(self, batch: int) -> None:
        """Begin to save the manager's memory as it is now, while batches go on; nothing if that is going on already."""
        if self._saving is None and self._much:  # statistics wait for their turn: nothing need be copied
            self._saving = self._beside.submit(self.save, batch)
        elif self._saving is None:
            with self._lock:
                state = self.manager.state()
            self._saving = self._beside.submit(save_arrays, self.storage, _memory_file(batch), state)

    def saved(self) -> FileRef | None:
        """Return the file in which the manager's memory was saved since the last call; None if there is none."""
        if self._saving is None or not self._saving.done():
            return None
        ref, self._saving = self._saving.result(), None
        # one that took until after a clean-up, with no commit to name it, is gone
        return ref if self.storage.exists(ref.name) else None

    def summary(self, plan: BatchPlan) -> RoutingProgress:
        """Return what progress says of routing."""
        decisions = list(self.manager.decisions)  # at once: some are made beside the batch
        new = list(itertools.takewhile(lambda one: one is not self._told, reversed(decisions)))[::-1]
        self._told = decisions[-1] if decisions else None
        return RoutingProgress(
            decisions=len(decisions),
            new=new,
            last_decision=self._told,
            stalled=self._check_stalled(),
            tables={
                name: self._listed.get(name, 0) if name in self.learnt else len(load_table(self.storage, ref))
                for name, ref in plan.tables.items()
            },
            counted=self.counted,
            counting=plan.counting,
            ahead=round(self.manager.gained, 3) if self._coming is not None else None,
            standing=self.manager.standing,
            **self.manager.decided(self.learnt),
        )

    def _check_stalled(self) -> str | None:
        """Return why no decision comes, where one should; log it when that begins."""
        stalled = self.manager.stalled(computing=self._computing is not None)
        if stalled is not None and not self._stalled:
            logger.warning("locality-aware routing stalls: %s", stalled)
        self._stalled = stalled is not None
        return stalled

    def close(self) -> None:
        for pool in (self._pool, self._beside):
            pool.shutdown(wait=False, cancel_futures=True)


def _memory_file(batch: int) -> str:
    return CheckpointLayout.new_file(MANAGER, batch, "state")


def _given(grouping: Grouping) -> Where:
    """Return where partitions are read that don't move."""
    return lambda hashes, n: grouping.router(n).route(hashes)


def _table_files(start: str, names: list[str]) -> dict[str, str]:
    """A folder with one file per operator, as ``weir advise --out`` writes it."""
    return {name: f"{start.rstrip('/')}/{name}.arrow" for name in names}


def learner_of(topology: Topology, storage: Storage) -> Learner | None:
    """Return the manager of an application that learns where keys live; None if none of its operators does."""
    if not governed(topology):
        return None
    settings: list[Any] = []
    for edge in topology.edges:
        if edge.grouping.learnt and edge.grouping.settings not in settings:
            settings.append(edge.grouping.settings)
    if len(settings) > 1:
        raise TopologyError(
            "operators name different weir.Locality(…) settings; one manager places the keys of all, so use one"
        )
    return Learner(settings[0], topology, storage)
