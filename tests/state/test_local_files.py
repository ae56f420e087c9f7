"""Files on a local file system: private, on disk, and without empty folders left behind."""

from __future__ import annotations

import errno
import os
import stat
import threading

import pytest

from support import watch_fsync
from weir.errors import CheckpointError
from weir.state.storage import Storage


def modes(root):
    return {
        os.path.relpath(path, root): stat.S_IMODE(os.stat(path).st_mode)
        for at, folders, files in os.walk(root)
        for path in [at, *(f"{at}/{name}" for name in [*folders, *files])]
    }


def fill(storage):
    storage.write("state/a/1/s0.arrow", b"rows")
    storage.write_document("commits/1", "commit", {})


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_a_checkpoint_is_private_whatever_the_umask(tmp_path, umask):
    storage = Storage(tmp_path / "new/ckpt")
    fill(storage)
    assert set(modes(storage.root).items()) == {
        *((name, 0o700) for name in (".", "state", "state/a", "state/a/1", "commits")),
        *((name, 0o600) for name in ("state/a/1/s0.arrow", "commits/1")),
    }


def test_files_follow_a_folder_that_was_there(tmp_path, umask):
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(0o2770)
    fill(Storage(root))
    found = modes(root)
    assert {found[name] & 0o777 for name in ("state", "state/a", "state/a/1", "commits")} == {0o770}
    assert {found[name] for name in ("state/a/1/s0.arrow", "commits/1")} == {0o660}


def test_clean_up_leaves_no_empty_folders(tmp_path):
    storage = Storage(tmp_path)
    for batch in range(20):
        storage.write(f"state/a/{batch}/s0.arrow", b"rows")
        storage.write(f"state/a/{batch}/s1.arrow", b"rows")
    for batch in range(19):
        storage.delete(f"state/a/{batch}/s0.arrow")
        assert os.listdir(tmp_path / f"state/a/{batch}") == ["s1.arrow"]
        storage.delete(f"state/a/{batch}/s1.arrow")
    assert os.listdir(tmp_path / "state/a") == ["19"]
    storage.write("state/b/7/s0.arrow", b"rows")
    storage.delete(*storage.files(""), "state/a/3/never-there")
    assert [at for at, _, _ in os.walk(tmp_path)] == [str(tmp_path), f"{tmp_path}/state"]
    storage.write("state/a/0/s0.arrow", b"again")
    assert storage.read("state/a/0/s0.arrow").to_pybytes() == b"again"


def test_folders_that_vanish_while_files_are_written_come_back(tmp_path):
    storage, stop = Storage(tmp_path), threading.Event()

    def clean():
        while not stop.is_set():
            storage.delete("state/a/1/nothing")

    cleaner = threading.Thread(target=clean)
    cleaner.start()
    try:
        for number in range(200):
            storage.write(f"state/a/1/{number}", b"rows")
            assert storage.read(f"state/a/1/{number}").to_pybytes() == b"rows"
            storage.delete(f"state/a/1/{number}")
    finally:
        stop.set()
        cleaner.join()


def test_a_folder_that_comes_back_is_put_on_disk_again(tmp_path, monkeypatch):
    storage = Storage(tmp_path / "ckpt")
    storage.write("state/a/1/x", b"rows")
    os.unlink(tmp_path / "ckpt/state/a/1/x")
    os.rmdir(tmp_path / "ckpt/state/a/1")  # as another process cleans up
    synced = watch_fsync(monkeypatch, tmp_path)
    storage.write("state/a/1/x", b"rows")
    assert synced == ["ckpt/state/a/1/x", "ckpt/state/a/1", "ckpt/state/a"]


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    storage = Storage(tmp_path)

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("weir.state.local_files._flushing", True)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"state/1: cannot be written \(.*No space left on device"):
        storage.write("state/1", b"rows")
    with pytest.raises(CheckpointError, match="commits/1: cannot be written"):
        storage.write_document("commits/1", "commit", {})
    monkeypatch.undo()
    assert storage.files("") == []


def test_permissions_that_differ_come_with_the_remedy(tmp_path, monkeypatch):
    def denied(*args):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(CheckpointError, match="create the checkpoint's folder first"):
        Storage(tmp_path).write("state/1", b"rows")


def test_a_file_system_without_links_keeps_documents(tmp_path, monkeypatch):
    def link(old, new):
        raise OSError(errno.ENOTSUP, "no links here")

    monkeypatch.setattr(os, "link", link)
    storage = Storage(tmp_path)
    storage.write_document("commits/1", "commit", {"batch": 1})
    with pytest.raises(CheckpointError, match="already written by another run"):
        storage.write_document("commits/1", "commit", {"batch": 2})
    assert storage.read_document("commits/1", "commit") == {"batch": 1}
    assert storage.names("commits") == ["1"]


def test_of_many_writers_of_a_document_one_wins(tmp_path):
    won: list[int] = []

    def write(number):
        try:
            Storage(tmp_path).write_document("commits/1", "commit", {"by": number})
        except CheckpointError:
            return
        won.append(number)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(won) == 1
    assert Storage(tmp_path).read_document("commits/1", "commit") == {"by": won[0]}
