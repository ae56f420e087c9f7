"""Everything Weir raises on purpose, in one tree.

Each message says what is wrong, where, and what to do about it.
"""

from __future__ import annotations

import difflib
import functools
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_PACKAGE = str(Path(__file__).parent)


class WeirError(Exception):
    """Base of every error that Weir raises on purpose."""


class ParameterError(WeirError, ValueError):
    """A parameter has a value that it cannot have."""


class ConfigurationError(WeirError):
    """What ``weir run`` was told is refused: names the file and the line, the variable or the option."""


class TopologyError(WeirError):
    """The application as written cannot run: raised when it is built, before any work starts."""


class UnknownColumn(TopologyError):
    """A column was named that the stream does not have."""


class GroupingError(TopologyError):
    """A grouping and an operator that do not fit each other."""


class CheckpointError(WeirError):
    """A checkpoint that cannot be used: damaged, of another application, or of another version."""


class CheckpointMismatch(CheckpointError):
    """A sound checkpoint, but of another application."""


class OperatorError(WeirError):
    """A user's function failed; names the operator, the key and the row."""


class NullKeyError(OperatorError):
    """A row without a key reached an operator whose ``null_keys`` policy is ``"error"``."""


class SourceError(WeirError):
    """A file or topic of a source that is missing, damaged, or not what the application expects; names it."""


class SourceUnavailable(SourceError):
    """A source cannot be reached now; the query waits and tries again."""


class SinkError(WeirError):
    """A sink cannot take its rows, and waiting would not help: another schema, a table that is missing, no right."""


class SinkUnavailable(SinkError):
    """A sink cannot be reached now, or does not know what became of a delivery; the query waits and tries again."""


class EngineError(WeirError):
    """The engine cannot run here or was asked for something impossible in its present state."""


class HandoffLost(EngineError):
    """Rows that a server left on its host for another one are not there; the batch runs again without such."""


class LiveFailed(EngineError):
    """Live servers could not finish a batch; it runs again as step jobs."""


def revived(kind: str, message: str) -> WeirError | None:
    """Return an error of another process again, given its class and its message; None if it is not one of ours."""
    cls = globals().get(kind)
    return cls(message) if isinstance(cls, type) and issubclass(cls, WeirError) else None


def refuse(where: str, *rules: tuple[object, str], error: type[WeirError] = TopologyError) -> None:
    """Raise the first of some messages whose condition holds.

    >>> refuse("window: ", (False, "too long"), (True, "too short"))
    Traceback (most recent call last):
    weir.errors.TopologyError: window: too short
    """
    for wrong, why in rules:
        if wrong:
            raise error(where + why)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The part of a message that helps with a misspelt name.

    >>> did_you_mean("hastag", ["state", "hashtag"])
    "did you mean 'hashtag'? Known: 'hashtag', 'state'"
    >>> did_you_mean("x", ["state"])
    "known: 'state'"
    """
    names = sorted(known)
    listed = ", ".join(repr(n) for n in names) or "none"
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}? Known: {listed}" if close else f"known: {listed}"


def renamed(**names: str) -> Callable[[F], F]:
    """Let a function or a class refuse parameters by their names of the last version, and say the new ones.

    >>> renamed(machines="servers")(lambda servers=1: servers)(machines=2)
    Traceback (most recent call last):
    weir.errors.TopologyError: machines= is called servers= now
    """

    def wrap(function: Any) -> Any:
        if isinstance(function, type):
            function.__init__ = wrap(function.__init__)  # type: ignore[misc]
            return function

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for old in names.keys() & given.keys():
                raise TopologyError(f"{old}= is called {names[old]}= now")
            return function(*args, **given)

        return call

    return wrap


def said(error: BaseException) -> str:
    """Return the text of an error, whatever its class makes of that.

    >>> said(ValueError("no"))
    'no'
    """
    try:
        return str(error)
    except Exception:
        return "(its message cannot be read)"


def raised_at(error: BaseException) -> str:
    """Return the file and the line of the user's own code that an error comes from."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_PACKAGE) and "site-packages" not in frame.filename:
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""
