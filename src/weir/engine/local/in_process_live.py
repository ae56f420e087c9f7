"""Live servers as threads of this process, over real sockets: what Spark has no part in can be tested without it."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

from weir.engine.documents import BatchPlan, Manifest
from weir.engine.exchange.wire import Answers
from weir.engine.live.coordinator import LiveCoordinator
from weir.engine.live.loads import LoadAggregator
from weir.engine.live.source import push
from weir.engine.live.worker import LiveWorker
from weir.engine.local.in_process import InProcessRunner, Tables
from weir.engine.task.batch_context import BatchContext, Pace
from weir.engine.task.key_counting import Learning
from weir.engine.task.reports import BatchResult, result_of
from weir.graph.model import Topology

HOST = "127.0.0.1"


class LiveThreads:
    """Runs batches on live servers, each a thread; ``fallback`` runs step by step what they can't do.

    In every other batch, rows come from the driver instead of source tasks, as those of small batches do on Spark. Rows
    beyond ``limit`` bytes wait in files; ``sealed`` is whether servers encrypt what they send.
    """

    def __init__(self, fallback: InProcessRunner, limit: int = 1 << 20, sealed: bool = False) -> None:
        self.storage, self.mode, self.sources = fallback.storage, fallback.mode, fallback.sources
        self.tasks = self.machines = fallback
        self.room, self.start = fallback.room, fallback.start
        self.locate, self.committed = fallback.locate, fallback.committed
        self.limit, self.sealed = limit, sealed
        self._fallback = fallback
        self._group: LiveCoordinator | None = None
        self._jobs: dict[bytes, BatchContext] = {}
        self._pace = Pace()
        self._origin: list[int] | None = None  # of servers that change with the next batch

    @property
    def execution(self) -> str:
        return "on live servers, threads of this process"

    def run(self, rows: Tables, plan: BatchPlan, manifest: Manifest, before: Manifest | None) -> BatchResult:
        fallback = self._fallback
        if not fallback.topology.steps:
            return fallback.run(rows, plan, manifest, before)
        job = replace(fallback.job(plan, manifest, before), pace=self._pace)
        name = str(plan.batch).encode()
        self._jobs.clear()
        self._jobs[name] = job
        try:
            group = self._group = self._group or self._start()
            if self._origin is not None:
                group.change(self._origin, lambda members: self._serve(group, members), 30.0)
                self._origin = None
            aggregator = LoadAggregator(job, group.tell_load)

            def source() -> Answers:
                parts = fallback.cut(rows)
                if plan.batch % 2:
                    return group.feed(job, parts)
                tasks = enumerate(parts)
                said = [push(job, task, [part], group.generation, group.addresses) for task, part in tasks]
                return [answer for answers in said for answer in answers]

            answers = group.run(plan.batch, name, source, aggregator)
        except Exception as error:
            self.close()
            return replace(fallback.run(rows, plan, manifest, before), ran_again=str(error))
        result = result_of(answers, "live")
        self._pace = aggregator.pace(result.reports)
        return fallback.placed(result)

    def rescale(self, topology: Topology, origin: list[int], learning: Learning | None) -> None:
        self._fallback.rescale(topology, origin, learning)
        self._pace = Pace()
        if self._group is not None:
            self._origin = origin

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = self._origin = None

    def _start(self) -> LiveCoordinator:
        group = LiveCoordinator(self._fallback.topology.servers, HOST, sealed=self.sealed)
        self._serve(group, list(range(self._fallback.topology.servers)))
        try:
            group.gather(30.0)
        except Exception:
            group.close()
            raise
        return group

    def _serve(self, group: LiveCoordinator, members: list[int]) -> None:
        for member in members:
            worker = partial(
                LiveWorker,
                member,
                group.address,
                group.generation,
                self._jobs.__getitem__,
                limit=self.limit,
            )
            name = f"weir-server-{member}"
            threading.Thread(target=lambda w=worker: w().run(), daemon=True, name=name).start()
