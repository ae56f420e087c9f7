"""Files that are written while their task goes on: all there when it has settled, or an error."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from weir.engine.checkpoint import write_table
from weir.errors import CheckpointError
from weir.state import storage as storage_module
from weir.state.storage import Storage, WriteBehind


class Slow(Storage):
    """Writes nothing before the gate opens; to ``full`` it can't."""

    def __init__(self, root):
        super().__init__(root)
        self.gate = threading.Event()

    def write_chunks(self, name, chunks):
        self.gate.wait(10)
        if name == "full":
            raise self._unwritable(name, OSError(28, "No space left on device"))
        super().write_chunks(name, chunks)


def test_all_files_are_there_when_it_has_settled(tmp_path):
    storage = Slow(tmp_path)
    behind = WriteBehind(storage)
    names = [f"state/{number}" for number in range(50)]
    for name in names:
        behind.write(name, name.encode())
    refs = [write_table(behind, f"state/table {n}", pa.table({"n": [n]})) for n in range(3)]
    assert not storage.files("state")
    storage.gate.set()
    behind.settle()
    assert {name: storage.read(name).to_pybytes() for name in names} == {n: n.encode() for n in names}
    for ref in refs:
        storage.read_checked(ref.name, ref.bytes, ref.crc)


def test_what_can_not_be_written_is_raised_once_it_matters(tmp_path):
    storage = Slow(tmp_path)
    storage.gate.set()
    behind = WriteBehind(storage)
    behind.write("full", b"1")
    behind.write("other", b"2")
    with pytest.raises(CheckpointError, match="full.*No space left"):
        behind.settle()
    assert storage.read("other").to_pybytes() == b"2"


def test_a_task_with_much_to_write_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(storage_module, "MOST_BYTES", 10)
    storage = Slow(tmp_path)
    behind = WriteBehind(storage)
    behind.write("one", b"12345678")
    threading.Timer(0.2, storage.gate.set).start()
    behind.write("two", b"12345678")
    assert storage.exists("one")
    behind.settle()
    assert storage.exists("two")
