"""What Spark raises when a task has failed, as the error that the task itself raised."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark import cloudpickle
from pyspark.errors import PySparkException

from weir.errors import EngineError, TopologyError, WeirError, revived
from weir.graph.model import Declared
from weir.operators.read import vanished

_OURS = re.compile(
    r"weir\.errors\.(\w+): (.*?)(?:\n\s*\n|\n\tat |\nDriver stacktrace|\Z| SQLSTATE)", re.DOTALL
)
_DIED = re.compile(r"Python worker exited unexpectedly|Python worker .*?(?:crashed|failed to connect back)")
_GONE = re.compile(r"\[FAILED_READ_FILE\.FILE_NOT_EXIST\] .*? reading file (.+?)\. File does not exist")


class Stopped(Exception):
    """A batch is given up because its query is being stopped.

    Spark tells that from a failure by these words, and says nothing then.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
        )


def _is_said(record: logging.LogRecord) -> bool:
    """Return whether what py4j logs is an end or an error that Weir has told of already."""
    return bool(record.exc_info) and isinstance(record.exc_info[1], Stopped | WeirError)  # type: ignore[index]


logging.getLogger("py4j.clientserver").addFilter(lambda record: not _is_said(record))


def translated(error: PySparkException | Py4JJavaError) -> Exception:
    """Return the error that a task raised, if it was one of ours; else the one that Spark raised."""
    text = str(error)
    ours = _OURS.search(text)
    if ours and (again := revived(ours[1], ours[2].strip())) is not None:
        return again
    if gone := _GONE.search(text):
        return vanished(unquote(gone[1]))
    if _DIED.search(text):
        return EngineError(
            "a Python worker died while it ran a batch: killed for its memory, or by a function of yours (os._exit, a "
            "crash in native code). Look at the worker's log; leave Python workers more memory "
            "(spark.executor.memoryOverhead). The batch has not happened: start the query again, and it runs again."
        )
    if re.search(r"No module named '(weir|pyarrow|numba|msgspec)", text):
        return EngineError(
            "the Python of the executors lacks Weir or what it needs. Install weir there, and start Spark with "
            "PYSPARK_PYTHON pointing to that Python (on one machine: the one that runs this)."
        )
    return error


def send_by_value(module: ModuleType) -> None:
    """Send the functions and classes of a module itself, for executors that cannot import it."""
    cloudpickle.register_pickle_by_value(module)


def check_sendable(declared: Iterable[Declared]) -> None:
    """Raise a TopologyError that names the first operator whose functions can't be sent to the executors."""
    for one in declared:
        try:
            cloudpickle.dumps(one.operator)
        except Exception as error:
            raise TopologyError(
                f"operator {one.name!r} can't be sent to the executors ({type(error).__name__}: {error}). Its function "
                "uses something that lives in this process alone: a connection, a lock, a SparkSession, an open file. "
                "Create that inside the function, once per worker, or pass plain data."
            ) from None


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """Let Spark's errors within be raised as :func:`translated` says."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise translated(error) from error
