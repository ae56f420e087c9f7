"""Functions that numba compiles ahead of use: types are declared, results shared by all processes of a machine.

A query must not compile in mid-stream: it would stall servers, and on a new machine a stream may be over before
anything was learnt. So every compiled function of Weir declares its types (:func:`compiled`), and one call compiles
all of them (:func:`compile_all`, the command ``weir compile``). A function that is called before it was compiled is
compiled then, by one process while the others of the machine wait for it.

Compiled code is kept in the first of these folders that can be written: ``NUMBA_CACHE_DIR`` if that is set; else the
package's own ``__pycache__``, ``XDG_CACHE_HOME/weir`` (``~/.cache/weir``), or a private folder for temporary files.
All of them are read. What is found there is used only if it was made from the same source, by the same numba and
Python, for the same processor.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numba as nb
import numpy as np
from numba.core import serialize
from numba.core.compiler import CompileResult
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target

try:
    import fcntl
except ImportError:  # not on Windows: there two processes may compile the same function
    fcntl = None  # type: ignore[assignment]

# every module with compiled functions
MODULES = (
    "weir.hashing",
    "weir.state.index",
    "weir.operators.grouped",
    "weir.operators.aggregate.aggregate_functions",
    "weir.operators.windows",
    "weir.operators.deduplicate",
    "weir.operators.join",
    "weir.routing.lookup",
    "weir.routing.partial_key",
    "weir.routing.random_choices",
    "weir.routing.weighted",
    "weir.elasticity.keys",
    "weir.locality._hashmap",
    "weir.locality.key_affinity",
    "weir.locality.placement",
    "weir.locality.partition._coarsen",
    "weir.locality.partition._refine",
)
FUNCTIONS: dict[str, Compiled] = {}  # by full name
DIGEST = 12  # characters

# functions that compiled functions call: written out at each call, or compiled once for all of them
helper = nb.njit(inline="always")
subroutine = nb.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)


class Compiled:
    """A function with the types that it is compiled for; see :func:`compiled`."""

    def __init__(self, function: Callable[..., Any], signatures: list[tuple[nb.types.Type, ...]]) -> None:
        self.name = f"{function.__module__}.{function.__name__}"
        self.signatures = signatures
        self.__doc__, self.__module__, self.__wrapped__ = function.__doc__, function.__module__, function
        self._dispatcher = nb.njit(nogil=True, no_cfunc_wrapper=True)(function)
        self._cache = self._dispatcher._cache = _Cache(self.name, function)
        self._loaded = bool(nb.config.DISABLE_JIT)  # for a debugger: then it runs as it is written
        self._lock = threading.Lock()
        FUNCTIONS[self.name] = self

    def __call__(self, *arguments: Any) -> Any:
        if not self._loaded:
            self.load()
        try:
            return self._dispatcher(*arguments)
        except TypeError:
            pairs = list(zip(arguments, self.signatures[0], strict=True))
            if all(a.flags.c_contiguous for a, kind in pairs if isinstance(kind, nb.types.Array)):
                raise
        compact = [np.ascontiguousarray(a) if _is_read(kind) else a for a, kind in pairs]
        return self._dispatcher(*compact)

    @property
    def ready(self) -> bool:
        """Whether it is in the cache for all its types."""
        return self._loaded or all(self._cache.find(signature) for signature in self.signatures)

    def load(self, *, wait: bool = True) -> None:
        """Load it from the cache, or compile it; without ``wait``, not if another process is just doing that."""
        with self._lock, _one_process(self.name, wait) if not self.ready else nullcontext(True) as mine:
            if mine and not self._loaded:
                for signature in self.signatures:
                    self._dispatcher.compile(signature)
                self._dispatcher.disable_compile()  # other types are refused
                self._loaded = True


def compiled(*types: str, **alternatives: Sequence[str]) -> Callable[[Callable[..., Any]], Compiled]:
    """Compile a function for the types of its arguments, given by the names that NumPy has for them.

    Arrays are read only unless ``out`` stands before them; those must be contiguous and writable.
    A name can stand for several types, and the function is compiled for each of them. A call with other types is a
    ``TypeError``: nothing is ever compiled for types that nobody declared.

    >>> @compiled("T[]", "out float64[,]", "int64", T=("int32", "int64"))
    ... def spread(values, table, column):
    ...     for i in range(len(values)):
    ...         table[i, column] = values[i]
    >>> len(spread.signatures)
    2
    >>> import numpy as np
    >>> table = np.zeros((2, 2))
    >>> spread(np.array([3, 4]), table, 1)
    >>> table.tolist()
    [[0.0, 3.0], [0.0, 4.0]]
    """
    signatures = []
    for choice in itertools.product(*alternatives.values()):
        meant = dict(zip(alternatives, choice, strict=True))
        signatures.append(tuple(_type(text, meant) for text in types))
    return lambda function: Compiled(function, signatures)


def _is_read(kind: nb.types.Type) -> bool:
    return isinstance(kind, nb.types.Array) and not kind.mutable


def _type(text: str, meant: dict[str, str]) -> nb.types.Type:
    *out, text = text.split(" ")
    name, array, dimensions = text.partition("[")
    scalar = getattr(nb.types, {"bool": "boolean"}.get(name, meant.get(name, name)))
    if not array:
        return scalar
    return nb.types.Array(scalar, dimensions.count(",") + 1, "C", readonly=not out)


def folders() -> list[Path]:
    """Return where compiled code may be, those that can be written or not."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return [Path(chosen).absolute() / "weir"]  # a process may change its directory
    private = f"weir-{os.getuid() if hasattr(os, 'getuid') else os.environ.get('USERNAME', '')}"
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return [
        Path(__file__).parent / "__pycache__" / "compiled",
        user / "weir" / "compiled",
        Path(tempfile.gettempdir()) / private / "compiled",
    ]


@cache
def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return _ours(folder)


def writable() -> Path | None:
    """Return where compiled code is kept; None if no folder can be written."""
    return next(filter(_is_writable, folders()), None)


def _ours(folder: Path) -> bool:
    """Whether what lies in a folder was put there by this user or by root: it will be executed."""
    with contextlib.suppress(OSError):
        return not hasattr(os, "getuid") or folder.stat().st_uid in (0, os.getuid())
    return False


class _Cache:
    """What numba asks of a cache, with a file for each specialisation of each function."""

    cache_path = None

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self._function = name, function

    def file(self, signature: Any) -> str:
        """Return the name of a specialisation's file: the function, its types, the machine, its source."""
        made_by = nb.__version__, sys.version_info[:3], _processor()
        digests = [_digest(repr(part)) for part in (tuple(signature), made_by)]
        return "-".join([self._name, *digests, _source(self._function)]) + ".nbc"

    def find(self, signature: Any) -> Path | None:
        """Return the file of a specialisation, None if there is none."""
        name = self.file(signature)
        there = (folder / name for folder in folders() if (folder / name).exists() and _ours(folder))
        return next(there, None)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return a specialisation, None if it has to be compiled."""
        target_context.refresh()
        path = self.find(sig)
        if path is None:
            return None
        try:
            data = path.read_bytes()
        except OSError:  # deleted meanwhile
            return None
        if data[:DIGEST] != _digest(data[DIGEST:]).encode():  # damaged: compiled again
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(data[DIGEST:]))

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a specialisation, and drop those made from an older source."""
        folder = writable()
        if folder is None:
            return
        path = folder / self.file(sig)
        with contextlib.suppress(OSError):  # a full disk: it is compiled again next time
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                body = serialize.dumps(data._reduce())
                file.write(_digest(body).encode() + body)
            os.replace(file.name, path)
            for old in folder.glob(f"{path.name.rsplit('-', 1)[0]}-*.nbc"):
                if old != path:
                    old.unlink(missing_ok=True)


@contextlib.contextmanager
def _one_process(name: str, wait: bool) -> Iterator[bool]:
    """Let one process of the machine at a time compile a function; yield whether it is this one."""
    folder = writable()
    if fcntl is None or folder is None:
        yield True
        return
    with open(folder / f"{name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


@cache
def _processor() -> Any:
    return cpu_target.target_context.codegen().magic_tuple()


@cache
def _source(function: Callable[..., Any]) -> str:
    """Return a digest of the files of a function and of all helpers that it calls."""
    files, pending = set(), [function]
    while pending:
        one = pending.pop()
        if one.__code__.co_filename in files and one is not function:
            continue
        files.add(one.__code__.co_filename)
        for name in one.__code__.co_names:
            called = one.__globals__.get(name)
            if isinstance(called, Dispatcher):
                pending.append(called.py_func)
    with contextlib.suppress(OSError):
        return _digest(*(Path(file).read_bytes() for file in sorted(files)))
    return _digest(function.__code__.co_code)  # a package in an archive


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()[:DIGEST]


def declared(modules: Iterable[str] | None = None) -> list[Compiled]:
    """Return the compiled functions of some modules; by default, of Weir's own and of all that are imported."""
    wanted = list(MODULES if modules is None else modules)
    for module in wanted:
        importlib.import_module(module)
    return [f for f in FUNCTIONS.values() if modules is None or f.__module__ in wanted]


def compile_all(
    modules: Iterable[str] | None = None,
    *,
    jobs: int | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> int:
    """Compile all functions of some modules that are not compiled yet, in processes of their own; return how many.

    ``tell`` is called with the number of functions that are done, and of all, while this goes on.
    """
    missing = [function for function in declared(modules) if not function.ready]
    if not missing or writable() is None:  # what can't be kept is compiled by whoever uses it
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jobs = min(len(missing), jobs or cores)
    command = [sys.executable, "-m", "weir.compiled", *(function.name for function in missing)]
    workers = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(jobs)
    ]
    try:
        while any(worker.poll() is None for worker in workers):
            if tell is not None:
                tell(sum(function.ready for function in missing), len(missing))
            time.sleep(0.1)
        for worker in workers:
            _, said = worker.communicate()
            if worker.returncode:
                raise RuntimeError(f"compiling failed: {said.decode().strip()}")
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    if tell is not None:
        tell(len(missing), len(missing))
    return len(missing)


def _main(names: list[str]) -> None:
    """Compile those of the named functions that no other process is compiling."""
    gc.disable()  # looking for garbage would take a quarter of the time
    for function in declared(sorted({name.rsplit(".", 1)[0] for name in names})):
        if function.name in names and not function.ready:
            function.load(wait=False)


if __name__ == "__main__":
    from weir import compiled as this  # not this copy, whose list of functions stays empty

    this._main(sys.argv[1:])
