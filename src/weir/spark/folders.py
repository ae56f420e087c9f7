"""Folders that path sinks write to, on whatever file system Hadoop reaches."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from weir.errors import CheckpointMismatch

MARKER = "_weir"  # readers of Parquet pass over names that begin with an underscore


def check_folder(session: SparkSession, path: str, identity: str, fresh: bool) -> None:
    """Refuse a folder that another checkpoint has written to.

    Batches are numbered from 0 by every checkpoint: a fresh one would overwrite the first batches of another run.
    A checkpoint that is not ``fresh`` may take over a folder without a note: versions before wrote none.
    """
    folder, marker, files = _open(session, path)
    jvm = session.sparkContext._jvm
    if files.exists(marker):
        stream = files.open(marker)
        try:
            owner = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8").strip()
        finally:
            stream.close()
        if owner != identity:
            raise _foreign(path)
        return
    batches = files.exists(folder) and any(
        status.getPath().getName().startswith("batch_id=") for status in files.listStatus(folder)
    )
    if batches and fresh:
        raise _foreign(path)


def mark_folder(session: SparkSession, path: str, identity: str) -> None:
    """Note in a folder which checkpoint writes to it."""
    _, marker, files = _open(session, path)
    stream = files.create(marker, True)
    try:
        stream.writeBytes(identity)
    finally:
        stream.close()


def _open(session: SparkSession, path: str) -> tuple[Any, Any, Any]:
    """Return a folder, the file in it that names its checkpoint, and their file system."""
    context = session.sparkContext
    folder = context._jvm.org.apache.hadoop.fs.Path(path)
    marker = context._jvm.org.apache.hadoop.fs.Path(folder, MARKER)
    return folder, marker, folder.getFileSystem(context._jsc.hadoopConfiguration())


def _foreign(path: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"sink {path}: has batches of another checkpoint, whose numbers this query would write again. Use another "
        "folder, or go on with the checkpoint that it was written from."
    )
