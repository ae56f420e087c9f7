"""``weir run``: run an application as a service, told by a configuration, ended by a signal.

Exit codes: 0, it has come to its end, or was told to stop and has committed and delivered its last batch; 1, it failed,
and may succeed when it is started again; 2, the command line, the configuration or the application is refused; 130 and
143, it was told to stop by SIGINT or SIGTERM, and a batch was cut off: that one runs again with the next start.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from weir.cli.configuration import LEVELS, LOGS, Configuration, imported, read
from weir.durations import microseconds
from weir.engine.batch.bootstrap import query_sinks
from weir.engine.batch.restart_checks import compare
from weir.engine.checkpoint import CheckpointLayout
from weir.errors import CheckpointMismatch, ConfigurationError, ParameterError, TopologyError, WeirError
from weir.flow import Application, Stream, parts_of
from weir.graph.declare import Assembly
from weir.logs import about, handler
from weir.options import Options, check_checkpoint
from weir.otel import Telemetry
from weir.state.storage import Storage

REFUSED = 2  # the exit code where starting again would not help
POLL = 0.2  # seconds between two looks whether a signal has come
TWICE = 1.0  # seconds after a signal from which another one is meant
LET_GO = 5.0  # seconds after the grace in which sinks and Spark are let go
CUT_OFF = "the batch under way was cut off; it runs again with the next start"

logger = logging.getLogger("weir.cli")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``weir run``."""
    add = parser.add_argument
    add(
        "app",
        metavar="APP",
        help="app.py:NAME or package.module:NAME: an application, or a function that takes a SparkSession and "
        "returns one",
    )
    add("--config", metavar="FILE", help="a TOML file: options of start(…) by name, [spark], checkpoint")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option over the file and the environment, as servers=8 or routing.period=50; may be repeated",
    )
    add("--checkpoint", help="where state and progress are kept; --set checkpoint=…")
    add(
        "--keep-open",
        action="store_true",
        help="at the end of a history: leave windows open, for a stream that goes on from this checkpoint",
    )
    add("--grace", metavar="DURATION", help="what a batch under way has to end after a signal (default 30s)")
    add("--log", choices=LOGS, help="log lines for people (default), or as JSON")
    add("--log-level", choices=LEVELS, help="from which level on (default info)")
    add("--check", action="store_true", help="check all that can be checked, and start nothing")


def failure_code(error: WeirError) -> int:
    """Return the exit code of an error."""
    refused = isinstance(error, ConfigurationError | ParameterError | TopologyError | CheckpointMismatch)
    return REFUSED if refused else 1


def run(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run the application until it ends, or is told to."""
    told = read(args.config, os.environ, _settings(args))
    grace = _grace(told)
    app = _application(args.app)  # whose folder may have groupings and sinks that are named
    options, checkpoint = told.options(), check_checkpoint(told.own("checkpoint"))
    if args.check:
        return _check(app, told, options, checkpoint)
    _log(told)
    # before Spark starts, which has a handler of its own for Ctrl-C
    shutdown = Shutdown(grace)
    from weir.spark.session import service

    session = service(told.spark(), options.name or Path(checkpoint).name)
    shutdown.listen()
    try:
        application, parts = _built(app, session)
        if _is_bounded(parts):
            query = application.run(checkpoint, options, keep_open=told.own("keep_open"))
            shutdown.done = True
            logger.info("%s: %s", query.checkpoint, _went_through(query, told.own("keep_open")))
        else:
            _check_stream(told)
            query = application.start(checkpoint, options)
            about.set({"query": query.checkpoint})
            logger.info("%s", _started(query, session))
            if importlib.util.find_spec("opentelemetry") is not None:
                query.add_listener(Telemetry())
            while query.is_active and not shutdown.asked.wait(POLL):
                pass
            if shutdown.asked.is_set():
                logger.info("%s: stops after the batch under way, within %g s", query.checkpoint, grace)
            # where it has ended by itself, nothing is cut off
            shutdown.done = query.stop(grace=grace) if shutdown.asked.is_set() else True
            query.await_termination()  # raises what it has failed with
        cut_off = shutdown.asked.is_set() and not shutdown.done
        if cut_off:
            logger.warning("%s: %s", query.checkpoint, CUT_OFF)
    finally:
        session.stop()
    last = query.status["batch"]
    return {"checkpoint": query.checkpoint, "batch": last, "exit": shutdown.exit_code if cut_off else 0}


def exit_code(result: dict[str, Any]) -> int:
    """Return how it ended."""
    return int(result.get("exit", 0))


def show(result: dict[str, Any], console: Console) -> None:
    """Print what was checked; of a query the log has said all."""
    for line in result.get("checked", []):
        console.print(f"✓ {line}", highlight=False, markup=False, soft_wrap=True)
    for line in result.get("not_checked", []):
        console.print(f"· not checked: {line}", highlight=False, markup=False, soft_wrap=True)


class Shutdown:
    """How a signal ends the service: the first one lets the batch end, the second one or the bound does not.

    ``asked`` is set by the first, ``done`` once the batch has ended. What sends a signal to a whole process group may
    send it twice, so the second one counts after a second.
    """

    def __init__(self, grace: float) -> None:
        self.grace, self.asked, self.done = grace, threading.Event(), False
        self.exit_code = 0
        self._since = 0.0
        self.listen()

    def listen(self) -> None:
        """Handle SIGTERM and SIGINT from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked.is_set():
            if time.monotonic() - self._since >= TWICE:
                self._end()
            return
        self.exit_code, self._since = 128 + number, time.monotonic()
        self.asked.set()
        bound = threading.Timer(self.grace + LET_GO, self._end)
        bound.daemon = True
        bound.start()

    def _end(self) -> None:
        """End this process at once; Spark's goes with it."""
        if not self.done:
            os.write(2, f"weir: {CUT_OFF}\n".encode())
        os._exit(0 if self.done else self.exit_code)


def _settings(args: argparse.Namespace) -> list[tuple[str, str]]:
    pairs = []
    for text in args.set:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigurationError(f"--set {text}: expected NAME=VALUE, as in --set servers=8")
        pairs.append((name.strip(), value.strip()))
    for name in ("checkpoint", "grace", "log", "log_level"):
        if getattr(args, name) is not None:
            pairs.append((name, getattr(args, name)))
    if args.keep_open:
        pairs.append(("keep_open", "true"))
    return pairs


def _grace(told: Configuration) -> float:
    with told.at("grace"):
        return microseconds(told.own("grace")) / 1e6


def _log(told: Configuration) -> None:
    """Let what Weir logs go to standard error."""
    logging.basicConfig(level=logging.WARNING, handlers=[handler(told.own("log"))])
    logging.getLogger("weir").setLevel(told.own("log_level").upper())


def _application(path: str) -> Any:
    """Return what APP names, so that Spark's workers have it, too."""
    found = application_of(path)
    file = Path(path.rpartition(":")[0])
    # Spark's workers on this machine find the neighbours of a file by the variable
    folder = str(file.resolve().parent) if file.suffix == ".py" else os.getcwd()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    if file.suffix == ".py":
        from weir.spark.failures import send_by_value

        send_by_value(sys.modules[file.stem])  # hosts elsewhere do not have the file
    return found


def application_of(path: str) -> Any:
    """Return what APP names: an application, or a function that returns one, of a file or of a module."""
    found = imported(path)
    if not isinstance(found, Application | Stream) and not callable(found):
        raise ConfigurationError(
            f"{path}: expected an application, or a function that takes a SparkSession and returns one, not "
            f"{type(found).__name__}"
        )
    return found


@contextmanager
def built_here(app: Any, settings: Mapping[str, str]) -> Iterator[tuple[Application, Assembly]]:
    """Yield the application that is not to be started; a function that wants a session gets one of this machine."""
    session = None
    if not isinstance(app, Application | Stream) and inspect.signature(app).parameters:
        from weir.spark.session import service

        here = {name: value for name, value in settings.items() if name != "spark.master"}
        session = service({**here, "spark.master": "local[1]"}, "weir-check")
    try:
        yield _built(app, session)
    finally:
        if session is not None:
            session.stop()


def _built(app: Any, session: Any) -> tuple[Application, Assembly]:
    """Return the application; where it is a function, call it."""
    if not isinstance(app, Application | Stream):
        name = getattr(app, "__name__", "the function")
        app = app(session) if inspect.signature(app).parameters else app()
        if not isinstance(app, Application | Stream):
            raise TopologyError(
                f"{name}(…) returned {app!r}: expected an application, or a stream that ends one"
            )
    application = app if isinstance(app, Application) else Application(app)
    return application, parts_of(application)


def _is_bounded(parts: Assembly) -> bool:
    """Return whether all sources have an end: those are run, and streams are started."""
    return bool(parts.frames) and not parts.feeds and not any(f.isStreaming for f in parts.frames.values())


def _check_stream(told: Configuration) -> None:
    """Refuse what is for a history alone."""
    if told.own("keep_open"):
        raise ConfigurationError(
            f"{told.origin('keep_open')}: keep_open is for sources that end; a stream leaves its windows open anyway"
        )


def _went_through(query: Any, keep_open: bool) -> str:
    done = "has gone through all rows"
    return f"{done}; a stream can go on from here" if keep_open else done


def _started(query: Any, session: Any) -> str:
    servers, last = query.topology.servers, query.status["batch"]
    begin = "starts from the beginning" if last is None else f"goes on after batch {last}"
    page = f", page at {query.page}" if query.page else ""
    return f"{query.checkpoint}: {begin}, on {servers} servers of {session.sparkContext.master}{page}"


def _check(app: Any, told: Configuration, options: Options, checkpoint: str) -> dict[str, Any]:
    """Check what can be checked without a start of the query; raise what a start would raise."""
    from weir.extras import require_spark

    require_spark()
    from weir.spark.failures import check_sendable

    checked, missing = ["the configuration"], []
    with built_here(app, told.spark()) as (application, parts):
        application._check_frames()
        if _is_bounded(parts):
            options.check_bounded()
        else:
            _check_stream(told)
        sinks = query_sinks(parts, options)
        servers = 2 if options.servers == "auto" else options.servers
        topology = parts.topology(servers, routing=options.routing, sinks=list(sinks), prune=options.prune)
        check_sendable(parts.declared)
        names = ", ".join(operator.name for operator in parts.declared)
        checked.append(f"the application: {names}, with their groupings and sinks")
        storage = Storage(checkpoint, options.storage_options)
        last = CheckpointLayout(storage).latest_commit()
        if last is not None:
            compare(last.signature, topology, storage.root, options.drop_state)
            checked.append(
                f"the checkpoint {checkpoint}, after batch {last.batch}: it goes on with this application"
            )
        else:
            checked.append(f"the checkpoint {checkpoint}: nothing has been committed there")
        missing.append("whether brokers, tables and the cluster can be reached")
    return {"checked": checked, "not_checked": missing}
