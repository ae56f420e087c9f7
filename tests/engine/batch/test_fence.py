"""Who works for a driver must see the checkpoint that the driver has claimed."""

from __future__ import annotations

import shutil

import pytest

from weir.engine.batch import fence
from weir.engine.batch.fence import Fence, check_shared
from weir.errors import CheckpointError
from weir.state.storage import Storage


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(fence, "VISIBLE_WITHIN", 0.0)


def test_another_place_of_the_same_name_is_refused(tmp_path):
    mine, theirs = Storage(tmp_path / "mine"), Storage(tmp_path / "theirs")
    claim = Fence(mine).claim
    check_shared(mine, claim)
    with pytest.raises(
        CheckpointError, match=r"theirs: on host .* drivers/00000001, .* is not there.* object store"
    ):
        check_shared(theirs, claim)
    # nor does an old copy do, in which another driver had the same turn
    Fence(theirs)
    with pytest.raises(CheckpointError, match="is not the one that the driver has written"):
        check_shared(theirs, claim)
    shutil.rmtree(tmp_path / "theirs")
    shutil.copytree(tmp_path / "mine", tmp_path / "theirs")
    check_shared(theirs, claim)


def test_one_that_worked_for_a_driver_before_is_told_so(tmp_path):
    storage = Storage(tmp_path)
    first, second = Fence(storage).claim, Fence(storage)
    second.forget_older()
    with pytest.raises(CheckpointError, match="another driver has taken over"):
        check_shared(storage, first)
