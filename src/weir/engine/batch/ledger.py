"""The checkpoint's book-keeping: what has happened, what is about to, and what may be thrown away.

Per batch two small documents are written: the *plan* before anything runs, and the *commit* when everything the
tasks wrote is known. A batch has happened exactly when its commit exists. Nothing else decides anything. See
:mod:`weir.engine.checkpoint` for where they are.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from secrets import token_hex

import msgspec
import numpy as np

from weir.engine.batch import history
from weir.engine.batch.fence import Fence
from weir.engine.batch.restart_checks import compare
from weir.engine.checkpoint import COMMITS, CheckpointLayout
from weir.engine.documents import (
    BatchPlan,
    Commit,
    Counts,
    FileRef,
    Input,
    Layout,
    Manifest,
    Move,
    Network,
    TableRef,
    TaskReport,
    added,
    by_server,
)
from weir.engine.progress import Progress
from weir.engine.steering.rescale import Change
from weir.engine.task.event_times import heard, inputs, watermarks
from weir.engine.task.ownership import ranged, reassigned
from weir.engine.task.reports import feedback
from weir.engine.task.tables import refresh
from weir.errors import CheckpointError, CheckpointMismatch, EngineError
from weir.faults import reach
from weir.graph.model import HELD, Topology, fingerprint, flow_fingerprint
from weir.hashing import mix
from weir.operators.instance import END_OF_TIME
from weir.state.segment import MERGE_AT, SegmentRef, run_to_merge
from weir.state.storage import Storage

DAY = 86_400_000_000  # µs


class Clock:
    """Microseconds since 1970 for the plans of one run, not earlier than the last commit's.

    A host whose clock is wrong would let every key with a time to live expire, or none for ever. So a clock that is
    further from the last commit's than ``jump`` when a run begins, or that runs away from this process's own steady
    clock while it goes on, is refused before anything is planned by it. A clock of the user's own is believed.
    """

    def __init__(self, own: Callable[[], int] | None, jump: int) -> None:
        self._own, self._jump = own, jump
        self._seen: tuple[int, int] | None = None  # what this clock and the steady clock said last

    def read(self, last: int | None) -> int:
        """Return the time for the next plan; ``last`` is that of the last commit."""
        if self._own is not None:
            return max(self._own(), last or 0)
        now, steady = time.time_ns() // 1000, time.monotonic_ns() // 1000
        expected = last if self._seen is None else self._seen[0] + steady - self._seen[1]
        if expected and abs(now - expected) > self._jump:
            way = "ahead of" if now > expected else "behind"
            raise EngineError(
                f"the clock of this host is {abs(now - expected) / DAY:.1f} days {way} "
                f"{'the last commit' if self._seen is None else 'where it should be'}, and operators with a ttl, "
                "windows or timers live by it. Nothing was changed. Set the clock right; if the query really stood "
                'still for so long, start it with clock_jump="30 days" or more.'
            )
        self._seen = now, steady
        return max(now, last or 0)


# the mode of weir.testing: it is fed batches by hand, and so goes on from a checkpoint of any mode
IN_PROCESS, STREAMING = "in process", "streaming"
FOREVER = (1 << 63) - 1
TURNS = 4  # batches in which every server merges once, if it has something to merge,
MOST = 4 * MERGE_AT  # or sooner, with more segments than these


@dataclass(frozen=True)
class Terms:
    """What the driver decides about a batch; the rest of its plan follows from the last commit."""

    end_of_input: bool = False
    input: Input | None = None
    quiet_until: int | None = None  # until when no source had any rows, where the batch has none
    network: Network | None = None
    change: Change | None = None  # of servers, or of owners of state
    routing: tuple[dict[str, TableRef], int, list[Move]] | None = None  # learnt tables, their version, moves
    hot: dict[str, list[int]] = field(default_factory=dict)  # keys that are worked on where their rows are
    spare: dict[str, float] = field(default_factory=dict)  # parts of keys that may be worked on elsewhere
    counting: bool = True  # whether tasks count keys


class Ledger:
    """Plans and commits of one checkpoint, for one topology."""

    def __init__(
        self,
        storage: Storage,
        topology: Topology,
        mode: str,
        *,
        clock: Clock | None = None,
        retain: int = 10,
        drop_state: Iterable[str] = (),
        layout: Layout | None = None,
        identity: str | None = None,
    ) -> None:
        self.storage, self.checkpoint = storage, CheckpointLayout(storage)
        self.topology = topology
        self.fingerprint = self._planner = fingerprint(topology)
        self._flow = flow_fingerprint(topology)
        self.layout = layout
        self._changed: Manifest | None = None  # the state by its new owners, while these change
        self.retain = max(1, retain)
        self._clock = clock or Clock(None, FOREVER)
        self.last = self.checkpoint.latest_commit()
        self.identity = self._open(mode, identity)
        saved = self.last.signature if self.last else topology.signature()
        # whether owners of state change: the first plan says how
        self.needs_change = compare(saved, topology, storage.root, drop_state)
        self._same_servers = not self.needs_change
        if self.last is not None and self.last.ranged is None:
            self.needs_change = True  # keys live by the rule of an earlier version
        if self.last is not None and self.last.layout is not None and layout is None:
            self.needs_change = True  # keys live by key groups of another layout
        if self.needs_change:
            self.layout = None
        self.sinks: dict[str, int] = {}  # operator → how many take its outputs
        self._delivered: set[int] = set()
        self._recent: dict[str, Commit] = {}  # those that this run has written, to be cleaned up after
        self.fence = Fence(storage)
        self._check_still(layout)
        self._warm = False  # the first batch of a run loads modules and compiles: its times mean nothing

    def _check_still(self, layout: Layout | None) -> None:
        """Refuse to start from a commit that is not the last one any more, now that nobody else can add one."""
        last, now = self.last, self.checkpoint.latest_commit()
        moved = last and layout and last.layout and last.layout.key_groups != layout.key_groups
        if moved or (last and (last.batch, last.epoch)) != (now and (now.batch, now.epoch)):
            raise CheckpointError(
                f"{self.storage.root}: another driver was at work while this one started. Start it again."
            )

    def _open(self, mode: str, identity: str | None) -> str:
        if not self.checkpoint.check_head(self.last is not None):
            head = {"id": identity or uuid.uuid4().hex, "mode": mode, "created": int(time.time())}
            # what sinks know the query by: no two checkpoints share it, even if they share the seed of their routers
            head["query"] = uuid.uuid4().hex if identity else head["id"]
            # of a checkpoint whose routers' seed is given, all is to be the same each time
            given = blake2b((identity or "").encode(), digest_size=16).hexdigest()
            head["secret"] = given if identity else token_hex(16)
            self.storage.write_document(self.checkpoint.HEAD, "checkpoint", head)
        head = self.checkpoint.head()
        self.query = str(head.get("query", head["id"]))
        self._secret = str(head.get("secret", ""))  # "": begun by an earlier version
        began = (self.last.mode if self.last else "") or head["mode"]
        if mode not in (began, IN_PROCESS):
            remedy = "Use another checkpoint folder."
            if mode == STREAMING:
                remedy = (
                    "Use another checkpoint folder; a run with keep_open=True is one that start goes on from."
                )
            raise CheckpointMismatch(
                f"{self.storage.root}: belongs to a {began} run, this is a {mode} one; their batches count "
                f"differently. {remedy}"
            )
        return str(head["id"])

    @property
    def epoch(self) -> int:
        return self.last.epoch if self.last else 0

    @property
    def changing(self) -> bool:
        """Whether the batch that is planned changes owners of state."""
        return self._changed is not None

    @property
    def manifest(self) -> Manifest:
        """The segments of each operator on each server. Lists of segments are the commit's own: never change one."""
        if self._changed is not None:
            return {name: list(servers) for name, servers in self._changed.items()}
        saved = self.last.manifest if self.last else {}
        for name, servers in saved.items():
            if any(servers) and name.removesuffix(HELD) not in self.topology.by_name:
                raise CheckpointError(
                    f"{self.storage.root}: the last commit names state of {name!r}, which this application would drop. "
                    "Nothing was changed. Please report this with the settings before and after."
                )
        empty: list[list[SegmentRef]] = [[] for _ in range(self.topology.servers)]
        return {node.name: list(saved.get(node.name, empty)) for node in self.topology.stateful}

    @property
    def counts(self) -> Counts:
        """The keys of each operator on each server; None where nobody has counted them."""
        if self._changed is not None:
            return {}
        none: Counts = {n.name: [0] * self.topology.servers for n in self.topology.stateful}
        return self.last.counts if self.last else none

    @property
    def secrets(self) -> dict[str, str]:
        """What the second hash of each operator's keys is keyed with: as its state was written, or the checkpoint's."""
        known = self.last.signature.operators if self.last else {}
        saved = self.last.secrets if self.last else {}
        names = [node.name for node in self.topology.stateful]
        return {name: saved.get(name, "") if name in known else self._secret for name in names}

    # ------------------------------------------------------------------ plan

    def plan(self, batch: int, terms: Terms) -> BatchPlan:
        """Plan a batch, and save that. See :meth:`planned` for one that was planned before."""
        self.fence.check()
        name = self.checkpoint.plan(batch, self.epoch)
        # a plan that no longer fits, and was never committed: nothing of it counts
        self.storage.delete(name)
        last, clock, change = self.last, self.read_clock(), terms.change
        same = change is None or (self.needs_change and self._same_servers)
        version = 0 if last is None else last.table_version
        plan = BatchPlan(
            batch=batch,
            epoch=self.epoch,
            fingerprint=self._planner,
            flow=self._flow,
            servers=self.topology.servers if change is None else len(change.origin),
            seed=int(mix(np.uint64(int(self.identity[:15], 16)), np.uint64(batch))) >> 1,
            salt=int(self.identity[:15], 16),
            secrets=self.secrets,
            clock=clock,
            previous_clock=self.expired_until(),
            watermarks=self._watermarks(clock, terms.end_of_input, terms.quiet_until),
            previous_watermarks=last.watermarks if last else {},
            sides=refresh(self.storage, self.topology, batch, clock, last.sides if last else {}),
            # what routers have counted is about the servers there were
            counters=last.counters if last and same else {},
            feedback=last.feedback if last and same else {},
            network=terms.network,
            end_of_input=terms.end_of_input,
            ranged=True,
            input=terms.input,
            layout=self.layout,
            table_version=version,
        )
        if change is not None:
            plan.tables, plan.moves, plan.table_version = change.tables, change.moves, version + 1
            plan.layout = change.layout or self.layout
            plan.origin, plan.rewrites, plan.moved_keys = change.origin, change.rewrites, change.moved_keys
        else:
            plan.tables, plan.merges = last.tables if last else {}, self._merges(batch)
            if terms.routing is not None:
                plan.tables, plan.table_version, plan.moves = terms.routing
                plan.hot, plan.spare, plan.counting = terms.hot, terms.spare, terms.counting
        self.storage.write_document(name, "plan", plan)
        reach("plan-written", batch)
        return plan

    def adopt(self, topology: Topology, plan: BatchPlan) -> None:
        """Go over to the topology, layout and owners of a plan that changes them."""
        assert self.last is not None
        self.topology, self.layout = topology, plan.layout
        self._changed = reassigned(self.storage, self.last, plan, topology)
        self.fingerprint, self.needs_change = fingerprint(topology), False

    def read_clock(self) -> int:
        """Return the time for the next plan, in µs since 1970."""
        return self._clock.read(self.last.clock if self.last else None)

    def expired_until(self) -> int:
        """Return the clock until when all that was due is gone; 0 where an operator has gone on without its ttl."""
        before = self.last.graph.get("operators", {}) if self.last else {}
        again = any(n.ttl and before.get(n.name, {}).get("ttl") is None for n in self.topology.stateful)
        return self.last.clock if self.last and not again else 0

    def _watermarks(self, clock: int, end_of_input: bool, quiet_until: int | None) -> dict[str, int]:
        if end_of_input:
            return {node.name: END_OF_TIME for node in self.topology.nodes if node.times}
        return watermarks(self.topology, self.last, clock, quiet_until)

    def _merges(self, batch: int) -> dict[str, list[tuple[int, int] | None]]:
        """Return what to merge: servers and operators take turns, since most of them could do so in the same batch."""
        runs: dict[str, list[tuple[int, int] | None]] = {}
        for turn, (name, servers) in enumerate(self.manifest.items(), batch):
            due = [(turn + server) % TURNS == 0 or len(s) > MOST for server, s in enumerate(servers)]
            runs[name] = [run_to_merge(s) if now else None for s, now in zip(servers, due, strict=True)]
        return {name: r for name, r in runs.items() if any(r)}

    # ------------------------------------------------------------------ commit

    def planned(self, batch: int, end_of_input: bool | None = None) -> BatchPlan | None:
        """Return the plan of a batch, if it was planned before by this very application, and for such a batch.

        ``end_of_input`` says whether it is to end the input; None: either way.
        """
        name = self.checkpoint.plan(batch, self.epoch)
        if not self.storage.exists(name):
            return None
        plan = self.checkpoint.read_plan(name)
        # a plan whose servers have been taken over: there is no way back in this run
        if self._changed is None and end_of_input not in (None, plan.end_of_input):
            return None
        fits = plan.ranged and plan.fingerprint == self._planner and plan.flow in ("", self._flow)
        return plan if fits else None

    def commit(
        self,
        plan: BatchPlan,
        reports: list[TaskReport],
        progress: Progress,
        counts: Counts,
        manager: FileRef | None = None,
        source: str = "",
        source_batch: int | None = None,
    ) -> Commit:
        """Make a batch happen: one document, all or nothing."""
        manifest = self.manifest
        for server, mine in enumerate(by_server(reports, plan.servers)):
            made = [written for report in sorted(mine, key=lambda r: r.step) for written in report.segments]
            # merges first: they replace runs of what was there when the batch began
            for written in sorted(made, key=lambda w: w.replaces is None):
                refs, new = manifest[written.operator][server], [] if written.ref is None else [written.ref]
                start, end = written.replaces or (len(refs), len(refs))
                manifest[written.operator][server] = [*refs[:start], *new, *refs[end:]]
        keys = dict(self.last.keys) if self.last else {}
        event_times, clocks = heard(self.topology, plan, self.last, reports)
        progress.inputs = inputs(self.topology, event_times, clocks, plan.clock)
        counters = dict(plan.counters)
        for report in reports:
            for name, op in report.operators.items():
                if op.keys_delta or name not in keys:
                    keys[name] = keys.get(name, 0) + op.keys_delta
            counters.update(report.counters)
        commit = Commit(
            batch=plan.batch,
            epoch=plan.epoch,
            fingerprint=self.fingerprint,
            signature=self.topology.signature(),
            servers=self.topology.servers,
            secrets=plan.secrets,
            clock=plan.clock,
            watermarks=plan.watermarks,
            event_times=event_times,
            heard=clocks,
            tables=plan.tables,
            table_version=plan.table_version,
            sides=plan.sides,
            counters=counters,
            feedback=feedback(self.topology, plan, reports, self._warm),
            network=plan.network,
            manifest=manifest,
            keys={n.name: keys.get(n.name, 0) for n in self.topology.stateful},
            counts=counts,
            manager=manager or (self.last.manager if self.last else None),
            outputs=added([{}, *(report.outputs for report in reports)]),
            sinks=self.sinks,
            progress=progress,
            end_of_input=plan.end_of_input,
            layout=plan.layout,
            ranged=ranged(self.topology, plan.layout),
            source=source,
            source_batch=source_batch,
            input=None if plan.input is None else msgspec.structs.replace(plan.input, listing={}),
            mode=self.last.mode if self.last else "",
            graph=self.topology.outline(),
        )
        self._write_commit(commit)
        self._warm = True
        self._changed, self._planner = None, self.fingerprint
        reach("commit-written", plan.batch)
        return commit

    def replace(self, commit: Commit) -> None:
        """Put a commit in the place of the last one, of a later epoch: all or nothing. Then open the ledger again."""
        self._write_commit(commit)
        reach("commit-replaced", commit.batch)

    def _write_commit(self, commit: Commit) -> None:
        self.fence.check()
        name = self.checkpoint.commit(commit.batch, commit.epoch)
        self.storage.write_document(name, "commit", commit)
        self.last = self._recent[name] = commit

    # ------------------------------------------------------------------ sinks

    def was_delivered(self, batch: int) -> bool:
        return batch in self._delivered or self.storage.exists(self.checkpoint.delivered(batch))

    def delivered(self, batch: int) -> None:
        self.fence.check()
        self._delivered.add(batch)
        self.storage.write_document(self.checkpoint.delivered(batch), "delivery", {"batch": batch})
        reach("sink-delivered", batch)

    # ------------------------------------------------------------------ cleaning

    def clean(self) -> int:
        """Delete what no retained commit names; return the number of files."""
        self.fence.check()
        self.fence.forget_older()
        names = self.checkpoint.documents(COMMITS)
        if not names:
            return 0
        kept, at_hand = names[-self.retain :], self._recent
        self._recent = {name: at_hand.get(name) or self.checkpoint.read_commit(name) for name in kept}
        old = history.readable(self.checkpoint, names[: -self.retain], at_hand)
        history.add(self.storage, old, self._recent[kept[0]])
        return self.checkpoint.delete_older(self._recent)
