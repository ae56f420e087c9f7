"""Files in an object store (S3, Google Cloud Storage, Azure), through obstore.

Object stores create an object only if there is none of its name, atomically: two writers of one document never both
succeed. Requests are tried again with growing pauses. What its answer does not show (a request that times out
may still have arrived) is found out by reading the object back.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, JoinError
from obstore.store import from_url

from weir.errors import CheckpointError

if TYPE_CHECKING:
    from weir.state.storage import Files

T = TypeVar("T")
ATTEMPTS = 5  # each with obstore's own retries within it
PAUSE = 0.1  # seconds before the second attempt; doubles from then on
PART = 8 << 20  # bytes of a large object that are sent at a time
_CLIENT = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
    "read_timeout",
    "root_certificate",
    "timeout",
    "user_agent",
)
_RETRY = ("max_retries", "retry_timeout")
_TRANSIENT = (GenericError, JoinError, TimeoutError, ConnectionError)
_REFUSED = (BaseError, PermissionError, ValueError)


class ObjectFiles:
    """Objects below a prefix of a bucket.

    Credentials come by the store's usual chain: environment, web identity, instance. ``options`` are settings of
    obstore by name, e.g. ``endpoint``, ``region``, ``access_key_id``; of its HTTP client, e.g. ``timeout="30s"``,
    ``allow_http=True``; and ``max_retries``, ``retry_timeout`` (seconds).
    """

    def __init__(self, uri: str, options: dict[str, Any]) -> None:
        self.root = uri
        scheme, _, rest = uri.partition("://")
        bucket, _, self._prefix = rest.partition("/")
        scheme = {"s3n": "s3", "gcs": "gs"}.get(scheme, scheme)
        self._bucket = f"{scheme}://{bucket}"
        self._store = _open_store(uri, self._bucket, options)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}".strip("/")

    def exists(self, name: str) -> bool:
        try:
            if name:
                self._attempt("looked up", name, lambda: obstore.head(self._store, self._key(name)))
                return True
        except FileNotFoundError:
            pass
        listing: list[Any] = self._attempt("listed", name, lambda: next(iter(self._list(name)), []))
        return bool(listing)

    def size(self, name: str) -> int:
        meta = self._attempt("looked up", name, lambda: obstore.head(self._store, self._key(name)))
        return int(meta["size"])

    def names(self, folder: str) -> list[str]:
        prefix = self._key(folder)
        listing = self._attempt(
            "listed", folder, lambda: obstore.list_with_delimiter(self._store, prefix or None)
        )
        paths = [*listing["common_prefixes"], *(o["path"] for o in listing["objects"])]
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def files(self, folder: str) -> list[str]:
        cut = len(self._prefix) + 1 if self._prefix else 0
        objects = self._attempt("listed", folder, lambda: [o for page in self._list(folder) for o in page])
        return [o["path"][cut:] for o in objects]

    def _list(self, folder: str) -> Any:
        return obstore.list(self._store, self._key(folder) or None)

    def read(self, name: str) -> pa.Buffer:
        # copied, for numpy wants numbers at even addresses, and slices of an answer keep all of it in memory
        data = self._attempt("read", name, lambda: bytes(obstore.get(self._store, self._key(name)).bytes()))
        return pa.py_buffer(data)

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        starts, ends = [start for start, _ in ranges], [end for _, end in ranges]

        def read() -> list[pa.Buffer]:
            try:
                pieces = obstore.get_ranges(self._store, self._key(name), starts=starts, ends=ends)
            except _TRANSIENT:
                if max(ends) <= self.size(name):
                    raise
                pieces = [b""] * len(ends)  # no part of a range beyond the end can be had
            return [pa.py_buffer(bytes(piece)) for piece in pieces]

        return self._attempt("read", name, read)

    def write(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        """Write an object; several chunks in parts, of which none is visible before the last has arrived."""
        key = self._key(name)
        try:
            if isinstance(chunks, list) and len(chunks) == 1:
                data = bytes(chunks[0])
                self._attempt("written", name, lambda: obstore.put(self._store, key, data))
            else:
                self._write_parts(name, chunks)
        except FileNotFoundError as error:
            raise self._error("written", name, error) from None

    def _write_parts(self, name: str, chunks: Iterable[bytes | pa.Buffer]) -> None:
        writer = obstore.open_writer(self._store, self._key(name), buffer_size=PART)
        try:
            for chunk in chunks:
                with self._errors("written", name):
                    writer.write(bytes(chunk))
            with self._errors("written", name):
                writer.close()
        except BaseException:
            # parts of an upload that is not completed are kept, and paid for; an object can be deleted
            with contextlib.suppress(Exception):
                writer.close()
            with contextlib.suppress(CheckpointError):
                self.delete(name)
            raise

    def create(self, name: str, data: bytes) -> None:
        """Write an object if there is none of this name.

        ``data`` must be unlike anything that others write: an object that holds it is this call's own, from a request
        whose answer was lost.
        """
        key = self._key(name)
        trouble: Exception | None = None
        for attempt in range(ATTEMPTS):
            _pause(attempt)
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
                return
            except AlreadyExistsError as error:
                trouble = error
            except FileNotFoundError as error:
                raise self._error("written", name, error) from None
            except _TRANSIENT as error:
                trouble = error
                continue
            except _REFUSED as error:
                raise self._error("written", name, error) from None
            held = self._held(name)
            if held == data:
                return
            if held is not None:
                raise FileExistsError(key)
        if self._held(name) == data:
            return
        assert trouble is not None
        raise self._error("written", name, trouble)

    def _held(self, name: str) -> bytes | None:
        try:
            return self.read(name).to_pybytes()
        except FileNotFoundError:
            return None

    def link(self, others: Files, name: str) -> bool:
        """Let the store copy an object of the same bucket: its bytes do not come here."""
        if not isinstance(others, ObjectFiles) or others._bucket != self._bucket:
            return False
        source, target = others._key(name), self._key(name)
        try:
            self._attempt("copied", name, lambda: obstore.copy(self._store, source, target))
        except FileNotFoundError:
            return False
        return True

    def delete(self, *names: str) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._attempt("deleted", name, partial(obstore.delete, self._store, self._key(name)))

    def delete_folder(self, name: str) -> None:
        self.delete(*self.files(name))

    # ------------------------------------------------------------------ errors

    def _attempt(self, done: str, name: str, call: Callable[[], T]) -> T:
        """Return what a call returns; try it again where that may help, and name the object where it does not."""
        for attempt in range(ATTEMPTS):
            _pause(attempt)
            try:
                return call()
            except _TRANSIENT as error:
                trouble = error
            except _REFUSED as error:
                raise self._error(done, name, error) from None
        raise self._error(done, name, trouble) from None

    @contextlib.contextmanager
    def _errors(self, done: str, name: str) -> Any:
        try:
            yield
        except (OSError, *_TRANSIENT, *_REFUSED) as error:
            raise self._error(done, name, error) from None

    def _error(self, done: str, name: str, error: Exception) -> CheckpointError:
        remedy = "The query can be started again; it goes on where it was."
        if isinstance(error, (FileNotFoundError, *_REFUSED)) and not isinstance(error, _TRANSIENT):
            remedy = "Check that the bucket exists, and its region, endpoint and credentials."
        return CheckpointError(f"{self.root}/{name}: could not be {done} ({_brief(error)}). {remedy}")


def _open_store(uri: str, bucket: str, options: dict[str, Any]) -> Any:
    client = {key: value for key, value in options.items() if key in _CLIENT}
    endpoints = [options.get("endpoint"), *map(os.environ.get, ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"))]
    if next(filter(None, endpoints), "").startswith("http://"):
        client.setdefault("allow_http", True)
    retry: dict[str, Any] = {key: value for key, value in options.items() if key in _RETRY}
    if "retry_timeout" in retry:
        retry["retry_timeout"] = timedelta(seconds=float(retry["retry_timeout"]))
    config = {key: value for key, value in options.items() if key not in (*_CLIENT, *_RETRY)}
    try:
        return from_url(bucket, config=config, client_options=client or None, retry_config=retry or None)
    except BaseException as error:
        # a setting of the client among those of the store panics, which is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(
            f"{uri}: the object store cannot be opened ({_brief(error)}). Check storage_options and the environment."
        ) from None


def _pause(attempt: int) -> None:
    if attempt:
        time.sleep(PAUSE * 2 ** (attempt - 1) * random.uniform(0.5, 1.5))


def _brief(error: BaseException) -> str:
    """Return the part of an obstore error that tells a person what happened."""
    text = str(error).partition("\n\nDebug source")[0]
    text = re.sub(r"\?\S+", "?…", text)  # the query of a URL may hold a signature
    return " ".join(text.split())[:400] or type(error).__name__
