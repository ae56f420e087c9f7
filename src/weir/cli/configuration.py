"""What ``weir run`` is told: a TOML file, variables of the environment over it, and ``--set`` over both.

Every option of ``start`` has its name there. What is an object in Python is a table with a ``name``: a grouping, a
sink. Each value knows where it came from, so an error says the file and the line, the variable or the option.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import msgspec

import weir.sinks
from weir.elasticity.autoscale import Autoscale
from weir.errors import ConfigurationError, WeirError, did_you_mean
from weir.graph.declare import GROUPINGS
from weir.locality.config import Costs
from weir.network.racks import Racks
from weir.options import Options
from weir.routing.weighted import Weighted

PREFIX = "WEIR_"
LOGS, LEVELS = ("text", "json"), ("debug", "info", "warning", "error")
# beside the options of `start`: their defaults
OWN: dict[str, Any] = {
    "checkpoint": None,
    "grace": "30 s",
    "keep_open": False,
    "log": "text",
    "log_level": "info",
    "spark": {},
}
SINKS = {kind.lower(): kind for kind in weir.sinks.__all__ if kind not in ("Sink", "Delivery")}
KNOWN = (*OWN, *(option.name for option in fields(Options)), "sinks")
# of the environment, and no options
ELSEWHERE = ("WEIR_CACHE_MB", "WEIR_INBOX_MB", "WEIR_MASTER", "WEIR_WATCH_TOKEN", "WEIR_LAB_HOME")

Names = tuple[str, ...]  # the way to a value: ("routing", "period")


@dataclass
class Configuration:
    """Values by name, and where each was said.

    >>> told = Configuration()
    >>> told.put(("routing",), "locality", "weir.toml, line 3")
    >>> told.put(("routing", "period"), 50, "--set")
    >>> told.values, told.origin("routing", "period"), told.origin("routing")
    ({'routing': {'name': 'locality', 'period': 50}}, '--set', 'weir.toml, line 3')
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Names, str] = field(default_factory=dict)

    def put(self, names: Names, value: Any, origin: str) -> None:
        """Set a value, over what was there."""
        if names[0] not in KNOWN:
            raise ConfigurationError(f"{origin}: no option {names[0]!r}; {did_you_mean(names[0], KNOWN)}")
        at = self.values
        for name in names[:-1]:
            inner = at.get(name, {})
            if isinstance(inner, str):
                inner = {"name": inner}  # routing = "locality", with parameters over it
            if not isinstance(inner, dict):
                raise ConfigurationError(f"{origin}: {name!r} is no table that could have a {names[-1]!r}")
            at[name] = dict(inner)
            at = at[name]
        at[names[-1]] = value
        self.origins = {way: o for way, o in self.origins.items() if way[: len(names)] != names}
        self.origins[names] = origin

    def origin(self, *names: str) -> str:
        """Return where a value was said, or the table that it is in."""
        for length in range(len(names), 0, -1):
            if names[:length] in self.origins:
                return self.origins[names[:length]]
        return names[0]

    @contextmanager
    def at(self, *names: str) -> Iterator[None]:
        """Let errors about a value say where that is."""
        try:
            yield
        except ConfigurationError:
            raise
        except WeirError as error:
            raise ConfigurationError(f"{self.origin(*names)}: {error}") from None

    # ------------------------------------------------------------------ what is made of it

    def options(self) -> Options:
        """Return the options of ``start`` and ``run``."""
        given = {name: value for name, value in self.values.items() if name not in OWN}
        if {"sink", "sinks"} <= given.keys():
            raise ConfigurationError(
                f"{self.origin('sinks')}: sink and sinks are one option; use one of them"
            )
        made: dict[str, Any] = {}
        for name, value in given.items():
            option = "sink" if name == "sinks" else name
            with self.at(name):
                made[option] = self._made(name, option, value)
                Options(**{option: made[option]})  # checked alone, so that it can be told whose mistake it is
        return Options(**made)

    def own(self, name: str) -> Any:
        """Return a value that is no option of ``start``."""
        return self.values.get(name, OWN[name])

    def spark(self) -> dict[str, str]:
        """Return Spark's settings by their full names: of ``[spark]``, where ``spark.`` may be left out.

        >>> told = Configuration({"spark": {"master": "local[2]", "sql": {"ansi": {"enabled": True}}}})
        >>> told.spark()
        {'spark.master': 'local[2]', 'spark.sql.ansi.enabled': 'true'}
        """
        table = self.own("spark")
        if not isinstance(table, Mapping):
            raise ConfigurationError(f"{self.origin('spark')}: spark={table!r}: expected a table of settings")
        plain = {True: "true", False: "false"}
        return {
            ".".join(way if way[0] == "spark" else ("spark", *way)): plain[v]
            if isinstance(v, bool)
            else str(v)
            for way, v in _leaves(table)
        }

    def check(self) -> None:
        """Refuse what is missing, and values that are not of the few that are known."""
        if not isinstance(self.own("checkpoint"), str):
            raise ConfigurationError(
                'no checkpoint: say where state and progress are kept, as checkpoint = "ckpt/posts" in the file, '
                "WEIR_CHECKPOINT=ckpt/posts or --checkpoint ckpt/posts"
            )
        for name, known in (("log", LOGS), ("log_level", LEVELS)):
            if self.own(name) not in known:
                value = self.own(name)
                raise ConfigurationError(
                    f"{self.origin(name)}: {name}={value!r}: {did_you_mean(str(value), known)}"
                )
        if not isinstance(self.own("keep_open"), bool):
            raise ConfigurationError(
                f"{self.origin('keep_open')}: keep_open={self.own('keep_open')!r}: expected true or false"
            )

    def _made(self, name: str, option: str, value: Any) -> Any:
        """Return what a value of the configuration stands for in Python."""
        if value == "none":
            return None
        if option == "routing":
            return _grouping(value, self._where(name))
        if option in ("sink", "late", "dead_letters"):
            return _sinks(value, self._where(name), named=option != "dead_letters")
        if option == "autoscale" and isinstance(value, Mapping):
            return _call(Autoscale, value, self._where(name))
        if option == "racks" and isinstance(value, str):
            return imported(value) if ":" in value else Racks.from_file(value)
        if option == "clock" and isinstance(value, str):
            return imported(value)
        return value

    def _where(self, *names: str) -> Callable[..., str]:
        return lambda *inner: f"{self.origin(*names, *inner)}: "


Where = Callable[..., str]  # of a parameter, as the beginning of a message


def read(
    path: str | None, environment: Mapping[str, str], settings: Sequence[tuple[str, str]]
) -> Configuration:
    """Return what a file, the environment and pairs of names and texts say; the last to speak wins."""
    told = Configuration()
    if path is not None:
        _read_file(told, path)
    for variable, text in sorted(environment.items()):
        names = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if not variable.startswith(PREFIX) or variable in ELSEWHERE:
            continue
        if names[0] in KNOWN and names[0] != "spark":
            told.put(names, parsed(text), f"${variable}")
        elif close := difflib.get_close_matches(names[0], KNOWN, n=1, cutoff=0.8):
            raise ConfigurationError(f"${variable}: no option {names[0]!r}; did you mean {close[0]!r}?")
    for name, text in settings:
        told.put(tuple(name.split(".")), parsed(text), f"{name}={text}")
    if "WEIR_MASTER" in environment:
        told.put(("spark", "master"), environment["WEIR_MASTER"], "$WEIR_MASTER")
    told.check()
    return told


def parsed(text: str) -> Any:
    """Return a value as TOML writes it; what is none is a text.

    >>> parsed("8"), parsed("auto"), parsed("true"), parsed('["a"]'), parsed("s3://bucket/ckpt")
    (8, 'auto', True, ['a'], 's3://bucket/ckpt')
    """
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text


def imported(path: str) -> Any:
    """Return an object by ``package.module:name``, or by ``file.py:name``, whose neighbours can be imported, too."""
    module, _, name = path.rpartition(":")
    if not module:
        raise ConfigurationError(f"{path}: expected app.py:NAME or package.module:NAME")
    file = Path(module)
    folder = str(file.resolve().parent) if file.suffix == ".py" else os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if file.suffix == ".py":
        found = _module_of(file)
    else:
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # a module that this one needs
            raise ConfigurationError(f"{path}: there is no module {module!r} to import") from None
    if not name or not hasattr(found, name):
        names = [
            n for n, value in vars(found).items() if not n.startswith("_") and not inspect.ismodule(value)
        ]
        raise ConfigurationError(f"{path}: {found.__name__} has no {name!r}; {did_you_mean(name, names)}")
    return getattr(found, name)


def _module_of(file: Path) -> ModuleType:
    """Return a file as a module, run once however many of its objects are asked for."""
    known = sys.modules.get(file.stem)
    if known is not None and getattr(known, "__file__", None) == str(file.resolve()):
        return known
    if not file.is_file():
        raise ConfigurationError(f"{file}: there is no such file")
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(found)
    except BaseException:
        del sys.modules[file.stem]  # as import does: the next try runs it again
        raise
    return found


def _read_file(told: Configuration, path: str) -> None:
    try:
        text = Path(path).read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise ConfigurationError(f"{path}: the configuration cannot be read ({why})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path}: no TOML: {error}") from None
    lines = _lines(text)
    for name, value in tables.items():
        first = next((line for way, line in lines.items() if way[0] == name), 1)
        told.put((name,), value, f"{path}, line {first}")
    for way, line in lines.items():
        told.origins.setdefault(way, f"{path}, line {line}")


def _lines(text: str) -> dict[Names, int]:
    """Return the first line of every table and key; tables of a list are told apart by numbers.

    >>> _lines('servers = 2\\n[[sinks]]\\nname = "delta"\\n[[sinks]]\\nname = "kafka"')
    {('servers',): 1, ('sinks', '0'): 2, ('sinks', '0', 'name'): 3, ('sinks', '1'): 4, ('sinks', '1', 'name'): 5}
    """
    found: dict[Names, int] = {}
    table: Names = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]", line)
        key = re.match(
            r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""", line
        )
        if header:
            table = _names(header[2])
            if header[1] == "[[":
                count = len({way[len(table)] for way in found if way[: len(table)] == table})
                table = (*table, str(count))
            found.setdefault(table, number)
        elif key:
            found.setdefault((*table, *_names(key[1])), number)
    return found


def _names(dotted: str) -> Names:
    return tuple(part.strip().strip("\"'") for part in re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", dotted))


def _leaves(table: Mapping[str, Any], way: Names = ()) -> Iterator[tuple[Names, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*way, name))
        else:
            yield (*way, *name.split(".")), value


def _grouping(value: Any, where: Where) -> Any:
    """Return a grouping by its name, or by a table of its name and its parameters."""
    if not isinstance(value, Mapping):
        return value
    name, parameters = _named(value, GROUPINGS, "grouping", where)
    make = imported(name) if ":" in name else GROUPINGS[name]
    if name == "weighted":
        make, parameters = Weighted, {"default": "hash", **parameters}
    for inner in ("default", "split_hot"):
        if isinstance(parameters.get(inner), Mapping | str):
            table = {"name": parameters[inner]} if isinstance(parameters[inner], str) else parameters[inner]
            parameters[inner] = _grouping(table, lambda *names, inner=inner: where(inner, *names))
    if isinstance(parameters.get("forecast"), Mapping):
        parameters["forecast"] = _call(
            Costs, parameters["forecast"], lambda *names: where("forecast", *names)
        )
    return _call(make, parameters, where)


def _sinks(value: Any, where: Where, named: bool) -> Any:
    """Return sinks: of an operator each, if they name it, else of the only one there is."""
    tables = value if isinstance(value, list) else [value]
    if not all(isinstance(table, Mapping) for table in tables):
        return value  # paths
    made: dict[str | None, list[Any]] = {}
    for number, table in enumerate(tables):
        at = (lambda *names, n=str(number): where(n, *names)) if isinstance(value, list) else where
        parameters = dict(table)
        operator = parameters.pop("operator", None) if named else None
        name, parameters = _named(parameters, SINKS, "sink", at)
        make = imported(name) if ":" in name else getattr(weir.sinks, SINKS[name])
        made.setdefault(operator, []).append(_call(make, parameters, at))
    if None in made and len(made) > 1:
        raise ConfigurationError(f'{where()}say operator = "…" for every sink, or for none')
    return made.get(None, made)


def _named(
    table: Mapping[str, Any], known: Mapping[str, Any], what: str, where: Where
) -> tuple[str, dict[str, Any]]:
    """Return the name in a table, and its other entries."""
    parameters = dict(table)
    name = parameters.pop("name", None)
    if not isinstance(name, str) or (name not in known and ":" not in name):
        raise ConfigurationError(
            f"{where('name')}name={name!r}: no {what} of ours; {did_you_mean(str(name), known)}; or yours, as "
            '"module:Class"'
        )
    return name, parameters


def _call(make: Any, parameters: Mapping[str, Any], where: Where) -> Any:
    """Call a class with parameters from the configuration, after looking at their names and simple types."""
    called = getattr(make, "__name__", "it")
    try:
        signature = inspect.signature(make)
        hints = get_type_hints(make.__init__ if inspect.isclass(make) else make)
    except (TypeError, ValueError, NameError):
        raise ConfigurationError(f"{where()}{called} is nothing to call with parameters") from None
    accepted = {
        n: p for n, p in signature.parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }
    anything = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    given = {name: None if value == "none" else value for name, value in parameters.items()}
    for name, value in given.items():
        if name not in accepted and not anything:
            raise ConfigurationError(
                f"{where(name)}{called} takes no {name!r}; {did_you_mean(name, accepted)}"
            )
        try:
            msgspec.convert(value, hints.get(name, Any), strict=True)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"{where(name)}{name}={value!r} of {called}: {error}") from None
        except TypeError:
            pass  # a type of ours, which its class looks at itself
    missing = [n for n, p in accepted.items() if p.default is p.empty and n not in given]
    if missing:
        raise ConfigurationError(f"{where()}{called} needs {', '.join(missing)}")
    try:
        return make(**given)
    except WeirError as error:
        at = next((where(name) for name in given if str(error).startswith(f"{name}=")), where())
        raise ConfigurationError(f"{at}{error}") from None
