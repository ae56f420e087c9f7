"""The checkpoint's book-keeping: what has happened, what is about to, and what may be thrown away.

Per batch two small documents are written: the *plan* before anything runs, and the *commit* when everything the
tasks wrote is known. A batch has happened exactly when its commit exists. Nothing else decides anything.

============================  ======================================================================
``weir``                      written once: the checkpoint's identity and mode
``plans/B-E``                 what batch B will do (E counts changes of the topology)
``commits/B-E``               what batch B did: names every file of the state from then on
``delivered/B``               the sinks have had batch B
``state/OPERATOR/B/…``        segments; those that no commit names don't count
``outputs/OPERATOR/B/…``      rows for sinks, dead letters included
``tables/OPERATOR/B/…``       where keys live: learnt routing tables (bases and patches), and key groups of
                              keys once scaling has moved some
``routers/B/…``               counters of routers that have some
``side/OPERATOR/B/…``         side inputs, as of batch B
``moves/OPERATOR/B/…``        which keys' state moves where at the beginning of batch B
``manager/B/…``               what the locality manager remembers
``requests/ID``               what ``weir scale`` asks of the running query
``answers/ID…``               its answer: accepted or withdrawn, the decision, what came of it
``drivers/N``                 who drives: the driver with the highest number
``history/LEVEL-FIRST-LAST``  what commits that are deleted leave behind, see :mod:`weir.engine.batch.history`
``source/``                   Spark's own record of the source's offsets (streaming queries only)
============================  ======================================================================

Names of batches have twelve digits, so that they sort.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

import msgspec
import numpy as np

from weir.engine.batch import history
from weir.engine.batch.clock import Clock
from weir.engine.batch.fence import Fence
from weir.engine.batch.restart_checks import compare
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
    commit_of,
    plan_of,
)
from weir.engine.metrics.progress import Progress
from weir.engine.task.event_times import heard, watermarks
from weir.engine.task.feedback import feedback
from weir.engine.task.ownership import ranged, reassigned
from weir.engine.task.side_inputs import refresh
from weir.errors import CheckpointError, CheckpointMismatch
from weir.faults import reach
from weir.graph.model import HELD, Topology, fingerprint, flow_fingerprint
from weir.hashing import mix
from weir.operators.instance import END_OF_TIME
from weir.state.segment import SegmentRef, run_to_merge
from weir.state.storage import Storage

HEAD = "weir"
# the mode of weir.testing: it is fed batches by hand, and so goes on from a checkpoint of any mode
IN_PROCESS = "in process"
FOREVER = (1 << 63) - 1


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
        self.storage = storage
        self.topology = topology
        self.fingerprint = self._planner = fingerprint(topology)
        self._flow = flow_fingerprint(topology)
        self.layout = layout
        self._changed: Manifest | None = None  # the state by its new owners, while these change
        self.retain = max(1, retain)
        self._clock = clock or Clock(None, FOREVER)
        self.last = latest_commit(storage)
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
        last, now = self.last, latest_commit(self.storage)
        moved = last and layout and last.layout and last.layout.key_groups != layout.key_groups
        if moved or (last and (last.batch, last.epoch)) != (now and (now.batch, now.epoch)):
            raise CheckpointError(
                f"{self.storage.root}: another driver was at work while this one started. Start it again."
            )

    def _open(self, mode: str, identity: str | None) -> str:
        storage = self.storage
        if not storage.exists(HEAD):
            if self.last is not None:
                raise CheckpointError(
                    f"{storage.path(HEAD)}: missing, although there are commits. Restore it."
                )
            head = {"id": identity or uuid.uuid4().hex, "mode": mode, "created": int(time.time())}
            # what sinks know the query by: no two checkpoints share it, even if they share the seed of their routers
            head["query"] = uuid.uuid4().hex if identity else head["id"]
            storage.write_document(HEAD, "checkpoint", head)
        head = storage.read_document(HEAD, "checkpoint")
        self.query = str(head.get("query", head["id"]))
        if mode not in (head["mode"], IN_PROCESS):
            raise CheckpointMismatch(
                f"{storage.root}: belongs to a {head['mode']} run, this is a {mode} one; their batches count "
                "differently. Use another checkpoint folder."
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

    # ------------------------------------------------------------------ plan

    def plan(
        self,
        batch: int,
        *,
        end_of_input: bool = False,
        tables: dict[str, TableRef] | None = None,
        table_version: int | None = None,
        moves: list[Move] | None = None,
        hot: dict[str, list[int]] | None = None,
        network: Network | None = None,
        layout: Layout | None = None,
        origin: list[int] | None = None,
        rewrites: list[str] | None = None,
        moved_keys: int = 0,
        quiet_until: int | None = None,
        input: Input | None = None,
    ) -> BatchPlan:
        """Plan a batch, and save that. See :meth:`planned` for one that was planned before."""
        self.fence.check()
        name = f"plans/{batch:012d}-{self.epoch:04d}"
        # a plan that no longer fits, and was never committed: nothing of it counts
        self.storage.delete(name)
        last = self.last
        clock = self.read_clock()
        same = origin is None or (self.needs_change and self._same_servers)
        plan = BatchPlan(
            batch=batch,
            epoch=self.epoch,
            fingerprint=self._planner,
            flow=self._flow,
            servers=self.topology.servers if layout is None else layout.servers,
            seed=int(mix(np.uint64(int(self.identity[:15], 16)), np.uint64(batch))) >> 1,
            salt=int(self.identity[:15], 16),
            clock=clock,
            previous_clock=self._expired_until(),
            watermarks=self._watermarks(clock, end_of_input, quiet_until),
            previous_watermarks=last.watermarks if last else {},
            tables=tables if tables is not None else (last.tables if last else {}),
            table_version=table_version if table_version is not None else (last.table_version if last else 0),
            moves=moves or [],
            sides=refresh(self.storage, self.topology, batch, clock, last.sides if last else {}),
            hot=hot or {},
            # what routers have counted is about the servers there were
            counters=last.counters if last and same else {},
            feedback=last.feedback if last and same else {},
            network=network,
            merges=self._merges() if origin is None else {},
            end_of_input=end_of_input,
            layout=layout or self.layout,
            origin=origin,
            rewrites=rewrites or [],
            moved_keys=moved_keys,
            ranged=True,
            input=input,
        )
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

    def _expired_until(self) -> int:
        """Return the clock until when all that was due is gone; 0 where an operator has gone on without its ttl."""
        before = self.last.graph.get("operators", {}) if self.last else {}
        again = any(n.ttl and before.get(n.name, {}).get("ttl") is None for n in self.topology.stateful)
        return self.last.clock if self.last and not again else 0

    def _watermarks(self, clock: int, end_of_input: bool, quiet_until: int | None) -> dict[str, int]:
        if end_of_input:
            return {node.name: END_OF_TIME for node in self.topology.nodes if node.times}
        return watermarks(self.topology, self.last, clock, quiet_until)

    def _merges(self) -> dict[str, list[tuple[int, int] | None]]:
        runs = {name: [run_to_merge(s) for s in servers] for name, servers in self.manifest.items()}
        return {name: r for name, r in runs.items() if any(r)}

    # ------------------------------------------------------------------ commit

    def planned(self, batch: int, end_of_input: bool | None = None) -> BatchPlan | None:
        """Return the plan of a batch, if it was planned before by this very application, and for such a batch.

        ``end_of_input`` says whether it is to end the input; None: either way.
        """
        name = f"plans/{batch:012d}-{self.epoch:04d}"
        if not self.storage.exists(name):
            return None
        plan = plan_of(self.storage.read_document(name, "plan"))
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
        for report in reports:  # merges first: they replace runs of what was there when the batch began
            for written in report.segments:
                if written.replaces is not None:
                    start, end = written.replaces
                    segments = manifest[written.operator][report.server]
                    merged = [written.ref] if written.ref is not None else []
                    manifest[written.operator][report.server] = segments[:start] + merged + segments[end:]
        for report in sorted(reports, key=lambda r: r.step):
            for written in report.segments:
                if written.replaces is None and written.ref is not None:
                    servers = manifest[written.operator]
                    servers[report.server] = [*servers[report.server], written.ref]
        keys = dict(self.last.keys) if self.last else {}
        event_times, clocks = heard(self.topology, plan, self.last, reports)
        outputs: dict[str, list[FileRef]] = {}
        counters = dict(plan.counters)
        for report in reports:
            for name, op in report.operators.items():
                if op.keys_delta or name not in keys:
                    keys[name] = keys.get(name, 0) + op.keys_delta
            for sink, files in report.outputs.items():
                outputs.setdefault(sink, []).extend(files)
            counters.update(report.counters)
        commit = Commit(
            batch=plan.batch,
            epoch=plan.epoch,
            fingerprint=self.fingerprint,
            signature=self.topology.signature(),
            servers=self.topology.servers,
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
            outputs=outputs,
            sinks=self.sinks,
            progress=progress.to_dict(),
            end_of_input=plan.end_of_input,
            layout=plan.layout,
            ranged=ranged(self.topology, plan.layout),
            source=source,
            source_batch=source_batch,
            input=None if plan.input is None else msgspec.structs.replace(plan.input, listing={}),
            graph=self.topology.outline(),
        )
        self._write_commit(commit)
        self._warm = True
        self._changed, self._planner = None, self.fingerprint
        reach("commit-written", plan.batch)
        return commit

    def _write_commit(self, commit: Commit) -> None:
        self.fence.check()
        name = f"{commit.batch:012d}-{commit.epoch:04d}"
        self.storage.write_document(f"commits/{name}", "commit", commit)
        self.last = self._recent[name] = commit

    # ------------------------------------------------------------------ sinks

    def was_delivered(self, batch: int) -> bool:
        return batch in self._delivered or self.storage.exists(f"delivered/{batch:012d}")

    def delivered(self, batch: int) -> None:
        self.fence.check()
        self._delivered.add(batch)
        self.storage.write_document(f"delivered/{batch:012d}", "delivery", {"batch": batch})
        reach("sink-delivered", batch)

    # ------------------------------------------------------------------ cleaning

    def clean(self) -> int:
        """Delete what no retained commit names; return the number of files."""
        self.fence.check()
        storage = self.storage
        self.fence.forget_older()
        for folder in ("commits", "plans", "delivered", history.HISTORY):
            for name in storage.names(folder):
                if name.endswith(".tmp"):  # of a driver that died while writing it
                    storage.delete(f"{folder}/{name}")
        names = storage.names("commits")
        keep, old = names[-self.retain :], names[: -self.retain]
        if not keep:
            return 0
        horizon = int(keep[-1].split("-")[0])
        oldest = int(keep[0].split("-")[0])
        at_hand = self._recent
        self._recent = {name: at_hand.get(name) or read_commit(storage, name) for name in keep}
        living = set().union(*(commit.files for commit in self._recent.values()))
        history.add(storage, history.readable(storage, old, at_hand), self._recent[keep[0]])
        dead: list[str] = []
        for folder in ("state", "outputs", "tables", "routers", "moves", "manager", "side"):
            for file in storage.files(folder):
                batch = file.rsplit("/", 2)[-2]
                if file not in living and not (batch.isdigit() and int(batch) > horizon):
                    dead.append(file)
        storage.delete(*dead)
        for name in old:
            storage.delete(f"commits/{name}")
        for folder in ("plans", "delivered"):
            for name in storage.names(folder):
                if int(name.split("-")[0].split(".")[0]) < oldest:
                    storage.delete(f"{folder}/{name}")
        return len(dead)


def read_commit(storage: Storage, name: str) -> Commit:
    return commit_of(storage.read_document(f"commits/{name}", "commit"))


def latest_commit(storage: Storage) -> Commit | None:
    """Return the last commit of a checkpoint; None if there is none."""
    names = [n for n in storage.names("commits") if not n.endswith(".tmp")]
    return read_commit(storage, names[-1]) if names else None
