"""One run from a seed, in this process: an application is drawn, fed, steered, killed, and compared with Python."""

from __future__ import annotations

import logging
import os
import random
import shutil
import tempfile
from collections import Counter
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pyarrow as pa

from weir import Application
from weir.errors import EngineError, WeirError
from weir.flow import parts_of
from weir.testing import Crash, LocalQuery, start
from weir_evaluation.bench.chaos import outside
from weir_evaluation.bench.chaos.cases import SCHEMA, Keyed, Offset
from weir_evaluation.bench.chaos.compare import Truth, compare, compare_deliveries
from weir_evaluation.bench.chaos.draw import Drawn, draw, redraw, rows
from weir_evaluation.bench.chaos.injector import FAULTS, KILLS, Injector

TRIES = 40  # to get a batch through; whatever fails more often is stuck
KIND_WEIGHTS = {**dict.fromkeys(KILLS, 6), **dict.fromkeys(FAULTS, 1)}


@dataclass
class Result:
    """What came of a run."""

    seed: int
    drawn: str
    used: Counter[str] = field(default_factory=Counter)  # operators, the source and sinks
    happened: Counter[str] = field(default_factory=Counter)
    recovery: list[float] = field(default_factory=list)
    batches: int = 0
    scalings: int = 0
    restarts: int = 0
    lost: int = 0  # rows that a key should have had
    doubled: int = 0  # rows that a key had too many
    wrong: list[str] = field(default_factory=list)  # whatever else differs
    refused_wrongly: list[str] = field(default_factory=list)  # errors without a fault that explains them
    raw: list[str] = field(default_factory=list)  # errors that are no WeirError
    stalls: list[str] = field(default_factory=list)  # steering that decides nothing any more
    logged: list[str] = field(default_factory=list)  # errors in the log that no failure of the query explains

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.complaints)

    @property
    def complaints(self) -> list[str]:
        """All that was wrong besides the numbers of rows."""
        return [*self.wrong, *self.refused_wrongly, *self.raw, *self.stalls, *self.logged]


class ErrorLog(logging.Handler):
    """Collects errors that Weir logs, but for the end of a query: that is raised, and judged by who catches it."""

    def __init__(self, into: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._into = into

    def emit(self, record: logging.LogRecord) -> None:
        if ": failed: " not in record.getMessage():
            self._into.append(self.format(record))


class Stuck(Exception):
    """A batch does not get through although nothing fails any more."""


def run(seed: int) -> Result:
    """Run the story of a seed."""
    rng = random.Random(seed)
    drawn = draw(rng)
    result = Result(seed, drawn.describe())
    injector = Injector(rng)
    folder = tempfile.mkdtemp(prefix="weir-chaos-")
    log, errors = logging.getLogger("weir"), ErrorLog(result.logged)
    log.addHandler(errors)
    try:
        with (
            injector.loose(),
            outside.reachable(),
            mock.patch("weir.engine.batch.delivery.FIRST_PAUSE", 0.001),
        ):
            Story(rng, drawn, folder, injector, result).play()
    except Stuck as error:
        result.refused_wrongly.append(str(error))
    finally:
        log.removeHandler(errors)
        shutil.rmtree(folder, ignore_errors=True)
        result.happened = injector.happened
        Offset.batch = 0
    return result


class Story:
    """Feeds batches, and lets things happen between and in them."""

    def __init__(
        self, rng: random.Random, drawn: Drawn, folder: str, injector: Injector, result: Result
    ) -> None:
        self.rng, self.drawn, self.injector, self.result = rng, drawn, injector, result
        self.truth = Truth(drawn)
        self.checkpoint = f"{folder}/checkpoint"
        self.failed = False  # whether the query must be started again before it is used
        own = random.Random(f"sinks {result.seed}")  # sinks change nothing else in the story of a seed
        leaf = own.choice(parts_of(drawn.application()).leaves)
        self.kinds = outside.kinds()
        chosen = own.sample(sorted(self.kinds), own.choice([0, 1, 1, 2]))
        name = f"rows_{os.getpid()}_{result.seed}_{own.randrange(1 << 30)}"
        self.sinks = {leaf: {kind: self.kinds[kind].make(folder, name) for kind in chosen}}
        self.topic = outside.Topic(own) if own.random() < 0.3 else None
        result.used.update([f"source: {'Kafka, ' + self.topic.format if self.topic else 'rows'}"])
        result.used.update(f"sink: {kind}" for kind in chosen)
        result.used.update(part.case.name for part in drawn.parts)
        self.query = self._start()

    def _start(self) -> LocalQuery:
        seed = self.rng.randrange(1000)
        sources = self.rng.randint(1, 3)
        application, settings = self._application(), self.drawn.settings()
        own = {name: list(sinks.values()) for name, sinks in self.sinks.items()}
        sinks: dict[str, Any] = {**dict.fromkeys(parts_of(application).leaves, ()), **own}
        return start(application, self.checkpoint, seed=seed, source_tasks=sources, sink=sinks, **settings)

    def _application(self) -> Application:
        return self.drawn.application(SCHEMA if self.topic is None else self.topic.stream())

    def play(self) -> None:
        rng, total = self.rng, self.rng.choice([3, 6, 6, 12, 24])
        for batch in range(total):
            if batch and rng.random() < 0.5:
                self._steer()
            self._feed(batch, rng.choice([0, 30, 80, 150]))
        self.injector.calm()
        total += self._await_decision(total)
        self._attempt(self.query.finish)
        self.result.batches = total
        self._compare()
        self.query.stop()

    def _feed(self, batch: int, count: int) -> None:
        table = rows(self.result.seed, batch, count)
        Offset.batch = batch
        self.truth.feed(table)
        if self.topic is not None:
            self.topic.write(table)
        self._get_through(table, batch)

    def _await_decision(self, batch: int) -> int:
        """Feed two periods more, in which steering must decide something; return how many batches that were."""
        learner: Any = self.query._driver.learner  # another one after a crash
        if learner is None or learner.config.period is None or not learner.manager.edges:
            return 0
        before, fed = learner.manager.batch, 0
        while fed < 2 * learner.config.period:
            self._feed(batch + fed, 80)
            fed += 1
            learner = self.query._driver.learner
            futures.wait([learner._pool.submit(int)])  # it computes as fast as batches come
        if not any(decision.batch >= before for decision in self.query.decisions):
            self.result.stalls.append(
                f"no decision in {fed} batches: {learner.manager.stalled() or 'no reason given'}"
            )
        return fed

    def _get_through(self, table: pa.Table, batch: int) -> None:
        """Hand a batch over until it is committed and delivered."""
        given = None if self.topic else table
        for attempt in range(TRIES):
            if attempt < TRIES // 2 and self.rng.random() < (0.9 if attempt == 0 else 0.4):
                kind = self.rng.choices(list(KIND_WEIGHTS), list(KIND_WEIGHTS.values()))[0]
                if batch or kind != "clock jumps":  # nobody can tell that the first clock of all is wrong
                    self.injector.schedule(kind, self.query.topology.steps)
            if attempt >= TRIES // 2:
                self.injector.calm()
            if self._attempt(lambda: self.query.feed(given, number=batch)):
                self.result.recovery += self.injector.recovered()
                self.injector.calm()
                return
        raise Stuck(f"batch {batch} did not get through in {TRIES} tries")

    def _attempt(self, work: Any) -> bool:
        """Do something that a fault may disturb, if need be after a restart; return whether it was done."""
        try:
            if self.failed:
                self.query.restart()
                self.failed = False
            work()
            return True
        except Crash:
            pass
        except WeirError as error:
            if not self.injector.excuses:
                self.result.refused_wrongly.append(f"{type(error).__name__}: {error}")
        except Exception as error:
            self.result.raw.append(f"{type(error).__name__}: {error}")
        self.injector.excuses = self.injector.clock_offset = 0
        self.failed = True  # whoever runs a query starts it again when it has failed
        return False

    def _steer(self) -> None:
        """Change servers, tables or settings before the next batch."""
        query, rng = self.query, self.rng
        what = rng.choice(["out", "in", "reconfigure", "reconfigure", "restart"])
        if what == "restart":
            self.drawn = redraw(rng, self.drawn)
            self.result.restarts += 1
            self.result.drawn += " | " + self.drawn.describe()
            for _ in range(TRIES):
                if self._attempt(lambda: query.restart(self._application(), **self.drawn.settings())):
                    return
            raise Stuck("the query does not start any more")
        if what == "reconfigure":
            if query._driver.learner is not None:
                self._attempt(lambda: query.reconfigure(wait=True))
            return
        if query.progress is None or not self._scales():
            return
        if what == "in" and query.topology.servers == 1:
            return
        try:
            query.situation()
        except EngineError:  # no rates yet: the driver has just been started again
            return
        change, by = (query.scale_out, rng.randint(1, 2)) if what == "out" else (query.scale_in, 1)
        self.result.scalings += self._attempt(lambda: change(by))

    def _scales(self) -> bool:
        topology = self.query.topology
        return all(topology.grouping_of(node).scales for node in topology.stateful)

    # ------------------------------------------------------------------ the comparison

    def _compare(self) -> None:
        for number, part in self.drawn.keyed:
            if isinstance(part.case, Keyed) and part.case.truth is not None:
                found = compare(self.truth, number, self.query.state(part.name).to_pylist())
                self.result.lost += found.lost
                self.result.doubled += found.doubled
                self.result.wrong += found.wrong
        for number in self.drawn.leaves:
            part = self.drawn.parts[number]
            deliveries = [(b, t.to_pylist()) for name, b, t in self.query.deliveries if name == part.name]
            self.result.wrong += compare_deliveries(self.truth, number, deliveries)
        for name, sinks in self.sinks.items():
            output = self.query.output(name)
            delivered = _counted(output)
            for kind, sink in sinks.items():
                # one that has had no row need not be there
                there = _counted(self.kinds[kind].content(sink, output.schema) if delivered else None)
                lacks, more = (there_not.total() for there_not in (delivered - there, there - delivered))
                if lacks or more:
                    self.result.wrong.append(f"{name}: {sink!r} lacks {lacks} rows and has {more} too many")


def _counted(table: pa.Table | None) -> Counter[str]:
    return Counter() if table is None else Counter(map(repr, table.to_pylist()))
