"""A handle on a query, whoever runs it: what it is doing, and how to steer it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from weir.elasticity.decision import Decision, Situation, Strategy, text
from weir.engine.batch.driver import Driver
from weir.engine.batch.events import Listener
from weir.engine.documents import Commit
from weir.engine.progress import Progress, Scaling
from weir.engine.steering.requests import SLOT_WAIT, Request
from weir.engine.task.tables import table_in_force
from weir.errors import EngineError, did_you_mean, renamed
from weir.graph.model import Topology
from weir.locality.forecast import Reconfiguration
from weir.notebook import share, table
from weir.routing.table import Table


class Page(Protocol):
    """A page that is served beside a query."""

    @property
    def url(self) -> str:
        """The link to it."""

    def stop(self) -> None:
        """Serve it no longer."""


class QueryHandle(ABC):
    """What every query offers. It only asks its driver; the driver does the work."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._page: Page | None = None

    @property
    def id(self) -> str:
        """The checkpoint's identity; the same after a restart."""
        return self._driver.ledger.identity

    @property
    def checkpoint(self) -> str:
        """Folder or URI of the checkpoint."""
        return self._driver.storage.location

    @property
    def page(self) -> str | None:
        """Link to the page that shows the query as it runs, if it was started with ``watch=``."""
        return None if self._page is None else self._page.url

    @property
    def topology(self) -> Topology:
        """The application as it is placed now."""
        return self._driver.topology

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether it takes batches."""

    @property
    def status(self) -> dict[str, Any]:
        """What the query is doing right now."""
        last = self._driver.ledger.last
        return {
            "active": self.is_active,
            "message": "failed" if self._driver.lifecycle.error else self._driver.lifecycle.message,
            "batch": None if last is None else last.batch,
            "servers": self.topology.servers,
        }

    def _repr_html_(self) -> str:
        last, status = self.progress, self.status
        rows: list[list[Any]] = [["query", self.checkpoint], ["status", status["message"]]]
        rows += [["batch", status["batch"]], ["servers", status["servers"]]]
        if last is not None:
            rows += [["rows", last.rows], ["locality", share(last.locality)]]
        if self.page is not None:
            rows.append(["page", (self.page, self.page)])
        return table(rows)

    @property
    def progress(self) -> Progress | None:
        """What the last batch did; None before the first."""
        recent = self._driver.lifecycle.recent
        return recent[-1] if recent else None

    @property
    def recent_progress(self) -> list[Progress]:
        """What the last batches did, oldest first."""
        return list(self._driver.lifecycle.recent)

    def exception(self) -> Exception | None:
        """Return why the query stopped, if it failed."""
        return self._driver.lifecycle.error

    def _commit(self, name: str, batch: int | None) -> Commit:
        """Return the commit to read the state of an operator from: that of a batch, or the last one."""
        last = self._driver.ledger.last
        if last is None:
            raise EngineError("no batch has been committed yet, so there is no state to read")
        if name not in self.topology.by_name:
            raise EngineError(f"no operator {name!r}; {did_you_mean(name, self.topology.by_name)}")
        return last if batch in (None, last.batch) else self._driver.ledger.checkpoint.commit_of(batch)

    def add_listener(self, listener: Listener) -> None:
        """Call a function with every event of the query from now on; :mod:`weir.events` has their classes.

        It is called on the thread that runs the batches, so it should return soon. What it raises is logged.
        """
        self._driver.listeners.add(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Call a listener no more."""
        self._driver.listeners.remove(listener)

    def explain(self) -> None:
        """Print the application as it is placed, and the steps of a batch."""
        print(self.describe())

    def describe(self) -> str:
        """Return what :meth:`explain` prints."""
        n, steps = self.topology.servers, self.topology.steps
        chosen = ' (servers="auto")' if self._driver.automatic else ""
        lines = [self.topology.draw()]
        lines.append(f"{n} servers{chosen}, {steps} exchange{'s' if steps != 1 else ''} per batch")
        lines.append(f"batches run {self._driver.runner.execution}")
        edges = self.progress.edges if self.progress is not None else {}
        for edge in self.topology.edges:
            columns = ", ".join(edge.schema.names)
            line = f"edge {edge.source} → {edge.target}: {edge.grouping.name}, carries {columns}"
            last = edges.get(f"{edge.source} → {edge.target}")
            if last is not None and last.locality is not None:
                line += f"; {last.locality:.0%} stayed on their server in the last batch"
            lines.append(line)
        if self.progress is not None and self.progress.routing is not None:
            lines += self.progress.routing.lines()
        if self._driver.learner is not None:
            lines += [
                f"{node.name} is not steered: homes are learnt of operators on all {n} servers, "
                f"and parallelism= or placement= gives it {len(node.placement)}"
                for node in self.topology.stateful
                if len(node.placement) < n
            ]
        return "\n".join(lines)

    def reconfigure(self, wait: bool = False) -> None:
        """Ask for a reconfiguration of the routing tables, to be adopted at a batch boundary if it pays.

        The tables are computed in the background while batches go on; with ``wait``, before this returns.
        """
        if self._driver.learner is None:
            raise EngineError(
                "there is nothing to reconfigure: the query was started without routing=weir.Locality(…)"
            )
        self._driver.learner.request(wait)

    @property
    def decisions(self) -> list[Reconfiguration]:
        """Every reconfiguration that was considered: what was forecast, what was done, what came of it."""
        learner = self._driver.learner
        return [] if learner is None else list(learner.manager.decisions)

    def routing_table(self, name: str) -> Table:
        """Return the table in force for an operator."""
        learner = self._driver.learner
        if learner is None or name not in learner.learnt:
            names = [] if learner is None else learner.learnt
            raise EngineError(
                f"operator {name!r} is not routed by a learnt table; {did_you_mean(name, names)}"
            )
        return table_in_force(self._driver.storage, self._driver.ledger.last, self.topology.by_name[name])

    @renamed(machines="servers")
    def scale_out(
        self,
        servers: int = 1,
        *,
        dry_run: bool = False,
        wait: float = 0.0,
        strategy: str | Strategy = "stela",
        timeout: float = SLOT_WAIT,
        share_slots: bool = False,
        whole_hosts: bool = False,
    ) -> Decision:
        """Add servers with the next batch; keys move there with their state, and the stream goes on.

        Operators with a fixed parallelism get instances on the new servers by the strategy, Stela's by default:
        congested ones first, those on which most of the output depends before others. What lives everywhere gets
        an instance on every new server. Existing instances stay where they are.

        Parameters
        ----------
        servers
            How many to add; each needs a task slot.
        whole_hosts
            Count hosts instead: as many servers are added for each as the hosts of now have on average.
        dry_run
            Only say what would be done; :meth:`explain_scaling` prints it.
        wait
            Seconds to wait until the change is committed; 0 returns at once, and the next batch makes it.
        strategy
            ``"stela"``, or a :class:`weir.elasticity.Strategy` of your own.
        timeout
            Seconds to wait for executors, where there are too few slots and the cluster can be asked for more.
        share_slots
            Let servers take turns on the slots there are.
        """
        request = Request("out", servers, (), strategy, timeout, share_slots, whole_hosts=whole_hosts)
        return self._scale(request, dry_run, wait)

    @renamed(machines="servers")
    def scale_in(
        self,
        servers: int = 1,
        *,
        hosts: Sequence[str] = (),
        dry_run: bool = False,
        wait: float = 0.0,
        strategy: str | Strategy = "stela",
        release: bool = True,
        whole_hosts: bool = False,
    ) -> Decision:
        """Let servers go with the next batch; the others take over their keys, with their state.

        The servers whose instances matter least to the output go first (lowest sum of effective throughput
        percentage); with ``whole_hosts``, the hosts whose servers matter least; with ``hosts``, those that are named.
        Executors that are no longer needed are given back to the cluster, unless ``release`` is False. See
        :meth:`scale_out` for the other parameters.
        """
        request = Request("in", servers, tuple(hosts), strategy, release=release, whole_hosts=whole_hosts)
        return self._scale(request, dry_run, wait)

    def situation(self) -> Situation:
        """Return the application as a scaling strategy sees it: graph, rates, placement."""
        return self._driver.load.situation()

    def scale_by(
        self, decision: Decision, *, timeout: float = SLOT_WAIT, share_slots: bool = False
    ) -> Decision:
        """Let the next batch carry out a decision that was made elsewhere; parameters as of :meth:`scale_out`."""
        return self._driver.scaler.ask_for(decision, timeout, share_slots).decision

    def _scale(self, request: Request, dry_run: bool, wait: float) -> Decision:
        scaler = self._driver.scaler
        if not dry_run and not self.is_active:
            raise EngineError(
                "only a running streaming query scales; start another number of servers otherwise"
            )
        pending = scaler.ask(request, dry_run=dry_run)
        if not dry_run and wait:
            if not pending.done.wait(wait) and scaler.withdraw(pending):
                raise EngineError(
                    f"no batch began within {wait:g} s, so the request was withdrawn and nothing has changed"
                )
            if pending.error is not None:
                raise pending.error
        return pending.decision

    def explain_scaling(self, decision: Decision) -> None:
        """Print what a scaling decision does and why: congestion, ETP, chosen operators, and the DAG."""
        print(text(decision, self.situation()))

    @property
    def scalings(self) -> list[Scaling]:
        """Every change of servers since this start, those refused in automatic mode included."""
        return list(self._driver.scaler.history)
