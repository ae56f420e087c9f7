"""A recorded stream with communities, and the advice on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recorded import few_starts, planted, stream_of, write
from weir.advise import advise


@pytest.fixture(scope="module", autouse=True)
def hasty() -> Iterator[None]:
    with few_starts():
        yield


@pytest.fixture(scope="module")
def communities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("advise") / "communities.parquet", stream_of(*planted()))


@pytest.fixture(scope="module")
def advised(communities: Path) -> dict[str, Any]:
    return advise(communities, keys=["place", "topic"], servers=4, time="time")
