"""Where a checkpoint is: every spelling of a place becomes one, on the driver, before anybody else uses it."""

from __future__ import annotations

import os
import re
from typing import Literal, NamedTuple
from urllib.parse import unquote

from weir.errors import CheckpointError

HDFS = ("hdfs", "viewfs")
OBJECT_STORES = ("s3", "s3a", "s3n", "gs", "gcs", "az", "azure", "abfs", "abfss")
DBFS = "/dbfs"  # where Databricks shows its file system as folders
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(.*)", re.DOTALL)
_WINDOWS = re.compile(r"[a-zA-Z]:[\\/]")


class Place(NamedTuple):
    """A resolved location: resolving ``uri`` again gives the same place."""

    kind: Literal["local", "object", "hdfs"]
    uri: str  # an absolute path if local, else a URI without a slash at its end


def resolve(location: str | os.PathLike[str]) -> Place:
    """Return where a location is.

    Without a scheme it is a path on this machine's file system, made absolute here. Whatever begins like a scheme
    (two letters or more, then a colon) is one, so a mistyped scheme never becomes a folder.

    >>> resolve("file:///data/x/"), resolve("s3a://bucket//ckpt/"), resolve("hdfs:/x")
    (Place(kind='local', uri='/data/x'), Place(kind='object', uri='s3a://bucket/ckpt'), Place(kind='hdfs', uri='hdfs:///x'))
    >>> resolve("ckpt").uri == os.path.abspath("ckpt")
    True
    >>> resolve("s3:/bucket/ckpt")
    Traceback (most recent call last):
    weir.errors.CheckpointError: s3:/bucket/ckpt: names no bucket. Write s3://bucket/folder.
    """
    text = os.fspath(location)
    if not isinstance(text, str) or not text:
        raise CheckpointError(f"{location!r}: expected a folder or a URI for the checkpoint.")
    if _WINDOWS.match(text) and os.name != "nt":
        raise CheckpointError(
            f"{text}: a path of Windows, and this is another system. Name a folder of this system or a URI."
        )
    spelt = _SCHEME.match(text)
    if spelt is None or (os.name == "nt" and _WINDOWS.match(text)):
        return Place("local", os.path.abspath(text))
    scheme, rest = spelt[1].lower(), spelt[2]
    if scheme == "file":
        return Place("local", _local_path(text, rest))
    if scheme == "dbfs":
        return Place("local", _dbfs_path(text, rest))
    if scheme in OBJECT_STORES:
        return Place("object", _object_uri(text, scheme, rest))
    if not rest.startswith("/"):
        raise CheckpointError(
            f"{text}: {scheme!r} is no scheme that Weir knows. For a folder of that name write ./{text}"
        )
    if scheme not in HDFS:
        known = ", ".join(f"{scheme}://" for scheme in (*HDFS, *OBJECT_STORES))
        raise CheckpointError(
            f"{text}: {scheme}:// cannot be opened here. Locations are paths, file:/, dbfs:/, {known}"
        )
    rest = rest if rest.startswith("//") else "//" + rest
    return Place("hdfs", f"{scheme}:{rest.rstrip('/') if rest.strip('/') else rest}")


def _local_path(text: str, rest: str) -> str:
    path = rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
        if host not in ("", "localhost"):
            raise CheckpointError(
                f"{text}: names the host {host!r}; files of another host can't be reached by a path. "
                "Write file:///folder for this host, and use a file system that all hosts share."
            )
    if not path.startswith("/"):
        raise CheckpointError(f"{text}: not an absolute path. Write file:///folder, or the folder alone.")
    return os.path.abspath(unquote(path))


def _dbfs_path(text: str, rest: str) -> str:
    if not os.path.isdir(DBFS):
        raise CheckpointError(
            f"{text}: this machine does not show DBFS as a folder ({DBFS} is missing). On Databricks use a volume "
            "(/Volumes/…) or a cluster with the DBFS mount; elsewhere use an object store, e.g. s3://bucket/folder."
        )
    return os.path.abspath(f"{DBFS}/{rest.strip('/')}")


def _object_uri(text: str, scheme: str, rest: str) -> str:
    parts = [part for part in rest.split("/") if part]
    if not rest.startswith("//") or rest.startswith("///") or not parts:
        raise CheckpointError(f"{text}: names no bucket. Write {scheme}://bucket/folder.")
    if "?" in text or "#" in text:
        raise CheckpointError(
            f"{text}: '?' and '#' are not allowed here. Pass settings of the store as "
            "storage_options={…} or in the environment."
        )
    return f"{scheme}://{'/'.join(parts)}"
