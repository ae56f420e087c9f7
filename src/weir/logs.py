"""Log lines for people, and as JSON: through the standard library's logging."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

# what the lines of a thread are about: the query and batch of a driver, the batch and number of a live server
about: ContextVar[Mapping[str, Any]] = ContextVar("about", default=MappingProxyType({}))
FIELDS = ("query", "batch", "operator", "rows")
_OPERATOR = re.compile(r"\boperator '([^']+)'")


class JsonFormatter(logging.Formatter):
    """A line of JSON per record: ``time``, ``level``, ``logger``, ``message``, and what it is about.

    That is ``query`` (its checkpoint), ``batch`` and ``operator``, where they are known; ``error`` has a traceback.

    >>> record = logging.makeLogRecord({"msg": "operator 'topics': no", "batch": 3})
    >>> told = json.loads(JsonFormatter().format(record))
    >>> told["message"], told["batch"], told["operator"]
    ("operator 'topics': no", 3, 'topics')
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        message = record.getMessage()
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told: dict[str, Any] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": message,
        }
        told |= about.get()
        told |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if "operator" not in told and (found := _OPERATOR.search(message)):
            told["operator"] = found[1]
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str, ensure_ascii=False)


def handler(kind: str) -> logging.Handler:
    """Return a handler that writes to standard error: ``"text"`` or ``"json"``."""
    made = logging.StreamHandler()
    if kind == "json":
        made.setFormatter(JsonFormatter())
    else:
        made.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    return made
