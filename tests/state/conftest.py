"""An S3 server for all tests here, and a bucket for each."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from s3_server import KEYS, Unreliable, create_bucket, running


@pytest.fixture
def no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is flushed to disk: for tests that write many files and pull no plug."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    with running() as endpoint:
        yield endpoint


@pytest.fixture
def bucket(s3: str) -> str:
    """A URI in a new bucket."""
    name = f"b{uuid.uuid4().hex[:12]}"
    create_bucket(s3, name)
    return f"s3://{name}/ckpt"


@pytest.fixture
def reliable(s3: str) -> dict[str, object]:
    """Options that lead to the server itself."""
    return {**KEYS, "endpoint": s3}


@pytest.fixture
def unreliable(s3: str) -> Iterator[Callable[..., tuple[Unreliable, dict[str, object]]]]:
    """A function that returns a proxy that lets things go wrong, and the options that lead there."""
    proxies: list[Unreliable] = []

    def make(rate: float = 0.0, seed: int = 0) -> tuple[Unreliable, dict[str, object]]:
        proxy = Unreliable(s3, rate, seed)
        proxies.append(proxy)
        return proxy, {**KEYS, "endpoint": proxy.endpoint, "timeout": "1s", "max_retries": 1}

    yield make
    for proxy in proxies:
        proxy.close()
