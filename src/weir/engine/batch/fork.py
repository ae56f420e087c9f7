"""A copy of a checkpoint from which another program goes on while the first one runs.

A checkpoint is documents, which are small, and files that never change, of which the last commit names all that count.
So a fork is that commit and the files that it names, by hard links where both are on one file system, copied within
the object store where both are in one bucket, and copied through this process else. A link holds however far the
first query goes: its clean-up deletes its own name of a file, and the other stays. The first query need not know, so
there is nothing that it could forget to look at.

The fork has another name for sinks, and owes them nothing: the batches up to here are the first query's to deliver.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from weir.engine.checkpoint import SOURCE, CheckpointLayout, files_of
from weir.engine.documents import Commit
from weir.errors import CheckpointError
from weir.state.storage import Option, Storage

TRIES = 20  # commits to begin with, where clean-up is faster than we are


def fork(
    checkpoint: str,
    new: str,
    *,
    storage_options: dict[str, Option] | None = None,
    source_checkpoint: tuple[str, str] | None = None,
) -> int:
    """Make a copy of a checkpoint by reference, from which a changed program can start while the old one runs on.

    The new checkpoint has the state and the positions of all sources as the last commit left them. Sinks know its
    query as another one. Returns the batch that it goes on behind.

    Parameters
    ----------
    checkpoint
        The folder or URI of a query, which may be running.
    new
        An empty folder, or a URI where nothing is. On the same file system state is linked, not copied.
    storage_options
        Settings of the object store that both are in, as in :class:`weir.Options`.
    source_checkpoint
        Where Spark keeps its own offsets, and where it shall keep those of the fork, if the query was started with
        ``source_checkpoint=``.

    Examples
    --------
    >>> import tempfile, weir, weir.testing
    >>> folder = tempfile.mkdtemp()
    >>> counts = weir.source("place string").count("place")
    >>> with weir.testing.start(counts, f"{folder}/blue", servers=2) as blue:
    ...     blue.feed([{"place": "FR"}])
    ...     batch = weir.fork(f"{folder}/blue", f"{folder}/green")
    ...     blue.feed([{"place": "FR"}])
    >>> with weir.testing.start(counts, f"{folder}/green", servers=2) as green:
    ...     batch, green.state("place").to_pylist()
    (0, [{'place': 'FR', 'count': 1}])
    """
    source, target = Storage(checkpoint, storage_options), Storage(new, storage_options)
    layout = CheckpointLayout(source)
    if target.files(""):
        raise CheckpointError(
            f"{target.root}: not empty. Name a new folder; what a fork that was cut off has left can be deleted"
        )
    target.write(layout.FORKING, b"")  # until the end: a start refuses what is here
    for _ in range(TRIES):
        commit, head = layout.commit_of(), layout.head()
        if _take_files(source, target, commit):
            break
    else:
        raise CheckpointError(
            f"{source.root}: files of {TRIES} commits were deleted before they could be copied. Raise retain= of the "
            "running query, or stop it for as long as the copy takes"
        )
    identity = ""
    if commit.source:
        places = source_checkpoint or (f"{source.location}/{SOURCE}", f"{target.location}/{SOURCE}")
        offsets = [Storage(place, storage_options) for place in places]
        identity = _take_offsets(offsets[0], offsets[1], commit)
    taken = msgspec.structs.replace(commit, outputs={}, sinks={}, source=identity)
    target.write_document(layout.commit(commit.batch, commit.epoch), "commit", taken)
    origin = {"checkpoint": source.location, "query": head.get("query", head["id"]), "batch": commit.batch}
    about: dict[str, Any] = {**head, "created": int(time.time()), "query": uuid.uuid4().hex, "forked": origin}
    target.write_document(layout.HEAD, "checkpoint", about)
    target.delete(layout.FORKING)
    return commit.batch


def _take_files(source: Storage, target: Storage, commit: Commit) -> bool:
    """Take over the files that a commit names; return False if one was deleted meanwhile."""
    names = {ref.name for ref in files_of(msgspec.structs.replace(commit, outputs={}))}
    for name in sorted(names):
        if target.exists(name):  # from an attempt with an earlier commit
            continue
        try:
            target.take(source, name)
        except CheckpointError:
            if source.exists(name):
                raise
            return False
    return True


def _take_offsets(source: Storage, target: Storage, commit: Commit) -> str:
    """Take over what Spark has noted of the source, up to a commit, under a new id of its query; return that id.

    Of a batch that Spark has planned since, the fork knows nothing: it plans its own.
    """
    names = source.files("")
    last = f"offsets/{commit.handed_over}"
    if last not in names:
        raise CheckpointError(
            f"{source.root}: Spark's own offsets of batch {commit.handed_over} are not here. If the query was started "
            "with source_checkpoint=, say where they are, and where the fork shall keep its own: "
            "source_checkpoint=(old, new), or --source-checkpoint OLD NEW"
        )
    for name in names:
        folder, _, file = name.rpartition("/")
        number = file.strip(".").partition(".")[0]
        ahead = folder in ("offsets", "commits") and not (
            number.isdigit() and int(number) <= commit.handed_over
        )
        if file not in ("metadata", ".metadata.crc") and not ahead and not file.endswith(".tmp"):
            target.take(source, name)
    identity = str(uuid.uuid4())
    target.write("metadata", msgspec.json.encode({"id": identity}))
    return identity
