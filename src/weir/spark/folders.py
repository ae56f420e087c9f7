"""Folders that path sinks write to, on whatever file system Hadoop reaches."""

from __future__ import annotations

from pyspark.sql import SparkSession

from weir.errors import CheckpointMismatch

MARKER = "_weir"  # readers of Parquet pass over names that begin with an underscore


def claim_folder(session: SparkSession, path: str, identity: str, fresh: bool) -> None:
    """Note in a folder which checkpoint writes to it; refuse one that another checkpoint has written to.

    Batches are numbered from 0 by every checkpoint: a fresh one would overwrite the first batches of another run.
    A checkpoint that is not ``fresh`` may take over a folder without a note: versions before wrote none.
    """
    context = session.sparkContext
    jvm, configuration = context._jvm, context._jsc.hadoopConfiguration()
    folder = jvm.org.apache.hadoop.fs.Path(path)
    marker = jvm.org.apache.hadoop.fs.Path(folder, MARKER)
    files = folder.getFileSystem(configuration)
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
    stream = files.create(marker, True)
    try:
        stream.writeBytes(identity)
    finally:
        stream.close()


def _foreign(path: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"sink {path}: has batches of another checkpoint, whose numbers this query would write again. Use another "
        "folder, or go on with the checkpoint that it was written from."
    )
