"""The routers of one task: made from the plan alone, so that a task that runs again routes the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from weir.engine.checkpoint import ROUTERS, load_arrays, save_arrays
from weir.engine.metrics.traffic import places_of
from weir.engine.task.batch_context import BatchContext
from weir.engine.task.tables import grouping_in_force
from weir.engine.task.task_files import TaskFiles
from weir.graph.model import Edge, Node
from weir.hashing import mix
from weir.network.distance import distances
from weir.routing.base import Grouping, Instances, Keys, Router, RouterContext
from weir.routing.checks import answered, naming
from weir.rows import Rows

SHOWN_WEIGHTS = 64  # servers up to which reports tell the weights that each has for every other


class Routers:
    """Makes the router of each edge when it is first asked for, and saves what routers have counted.

    Where ``server`` is None, they are those of source task ``task``.
    """

    def __init__(self, job: BatchContext, server: int | None, task: int = 0) -> None:
        self._job, self._storage, self._server, self.task = job, job.storage, server, task
        self._source = job.plan.servers + task if server is None else server
        self._routers: dict[int, Router] = {}
        self._groupings: dict[str, Grouping] = {}  # operator → what is in force in front of it
        self._slowed = False

    def grouping(self, node: Node) -> Grouping:
        """Return the grouping in front of an operator that is in force in this batch."""
        if node.name not in self._groupings:
            declared = self._job.topology.grouping_of(node)
            self._groupings[node.name] = grouping_in_force(self._storage, self._job.plan, node.name, declared)
        return self._groupings[node.name]

    def router(self, edge: Edge, node: Node) -> Router:
        """Return the router of an edge."""
        router = self._routers.get(edge.index)
        if router is None:
            router = self._routers[edge.index] = self._make(edge, node)
        return router

    def _make(self, edge: Edge, node: Node) -> Router:
        plan, grouping = self._job.plan, self.grouping(node)
        context = RouterContext(
            n=len(node.placement),
            # the same for every batch and source: a key must keep its choices
            seed=int(mix(np.uint64(plan.salt), np.uint64(edge.index))) >> 1,
            source=self._source,
            local=-1 if self._server is None else node.instance_on.get(self._server, -1),
            distances=self._distances(node) if grouping.uses_distances else None,
        )
        saved = plan.counters.get(f"{edge.index}/{self._source}")
        counters = None if saved is None else load_arrays(self._storage, saved)
        with self._naming(edge):
            router = grouping.make_router(context)
            if counters is not None:
                router.restore(counters)
            if node.name in plan.feedback:
                router.listen(plan.feedback[node.name])
            if self._slowed:
                router.server_slowed()
        return router

    def _naming(self, edge: Edge) -> AbstractContextManager[None]:
        """Let errors name the operator, the grouping and the edge that they are about."""
        name, grouping = edge.target, self._groupings[edge.target]
        return naming(f"operator {name!r}: the router of {grouping} on the edge {edge.source} → {name}")

    def server_slowed(self) -> None:
        """Tell all routers of this batch that a server is much slower than when it was planned."""
        self._slowed = True
        for router in self._routers.values():
            router.server_slowed()

    def _distances(self, node: Node) -> NDArray[np.int8] | None:
        """Return how far receivers are by the plan, never by the place where this task happens to run.

        A source task has no place that the plan could know of, so all receivers are equally far from it.
        """
        places = places_of(self._job.plan.network)
        if not places or self._server is None:
            return None
        return distances([places[self._server]], [places[s] for s in node.placement])[0].astype(np.int8)

    def route(self, edge: Edge, node: Node, rows: Rows) -> Iterator[tuple[Rows, Instances]]:
        """Yield rows, and the instance to which each goes."""
        yield rows, self.choose(edge, node, rows.hash(node.key))

    def choose(self, edge: Edge, node: Node, keys: Keys) -> Instances:
        """Return the instance to which each key's row goes, as the router of the edge answers."""
        router = self.router(edge, node)
        with self._naming(edge):
            return answered(router.route(keys), len(keys), router.n)

    def shares(self) -> dict[int, list[int]]:
        """Return the weights of receivers by edge, where weights decide; none of many servers: reports stay short."""
        if self._job.plan.servers > SHOWN_WEIGHTS:
            return {}
        shares = {edge: router.shares() for edge, router in self._routers.items()}
        return {edge: weights for edge, weights in shares.items() if weights is not None}

    def save(self, files: TaskFiles) -> None:
        """Write what routers have counted, for the next batch to go on from."""
        for edge, router in self._routers.items():
            with self._naming(self._job.topology.edges[edge]):
                counters = router.counters()
            if counters:
                ref = save_arrays(files.storage, files.name(ROUTERS), counters)
                files.report.counters[f"{edge}/{self._source}"] = ref
