"""Modules that only some applications need, and how to install them."""

from __future__ import annotations

import importlib
from types import ModuleType

from weir.errors import TopologyError


def require(module: str, extra: str) -> ModuleType:
    """Return an optional module, or say how to install it.

    >>> require("nonsense", "x")
    Traceback (most recent call last):
    weir.errors.TopologyError: nonsense is not installed here: pip install 'weir[x]', for the driver and the executors
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise TopologyError(
            f"{module} is not installed here: pip install 'weir[{extra}]', for the driver and the executors"
        ) from None
