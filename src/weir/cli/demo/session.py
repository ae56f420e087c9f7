"""Start Spark for the demo, with nothing on the screen but the demo."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weir.errors import EngineError, WeirError


def start_spark(master: str, log: Path) -> Any:
    """Return a new session; what Spark writes to standard error while it starts goes to the file ``log``."""
    from weir.spark.session import embedded

    try:
        with _errors_to(log):
            return embedded(master, "weir-demo", **{"spark.driver.memory": "2g"})
    except WeirError:
        raise
    except Exception as error:
        condition = error.getCondition() if hasattr(error, "getCondition") else None
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise EngineError(
            f"Spark did not start ({condition or type(error).__name__}); it needs a Java 17+ runtime. "
            f"Its last line of output: {lines[-1] if lines else 'none'}"
        ) from None


def handle_interrupts() -> None:
    """Replace PySpark's handler of Ctrl-C, which calls the JVM while another call may be under way."""

    def interrupt(*_: object) -> None:
        logging.disable(logging.CRITICAL)  # py4j would log the call that was cut short, with a traceback
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)


@contextlib.contextmanager
def _errors_to(path: Path) -> Iterator[None]:
    """Redirect standard error to a file, for this process and those that it starts meanwhile."""
    sys.stderr.flush()
    saved = os.dup(2)
    with open(path, "ab") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
