"""How far two instances are apart: same process, same host, same rack, or none of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Distance(IntEnum):
    """Network distances, nearest first; smaller is nearer.

    >>> Distance.PROCESS < Distance.ANY
    True
    """

    PROCESS = 0  # one process: a pointer is passed
    NODE = 1  # one host: through its loopback device
    RACK = 2  # one rack: through one switch
    ANY = 3  # further: through several


@dataclass(frozen=True)
class Place:
    """Where an instance runs."""

    # names the process on its host, e.g. an executor's id. Processes of different hosts may share a
    # name
    process: str
    host: str  # names the machine
    # names the rack. Where racks are unknown it stays empty, and all such hosts count as one rack
    rack: str = ""


def distances(a: Sequence[Place], b: Sequence[Place]) -> NDArray[np.int8]:
    """Return the distance of every place in ``a`` (rows) and every place in ``b`` (columns).

    One host is one host, whatever a faulty rack map says of it.

    >>> one, two, three = Place("1", "x"), Place("2", "x"), Place("3", "y")
    >>> distances([one, two], [one, two, three]).tolist()
    [[0, 1, 2], [1, 0, 2]]
    """
    process = _same([(p.host, p.process) for p in a], [(p.host, p.process) for p in b])
    host = _same([p.host for p in a], [p.host for p in b])
    rack = _same([p.rack for p in a], [p.rack for p in b])
    far = np.where(rack, np.int8(Distance.RACK), np.int8(Distance.ANY))
    near = np.where(process, np.int8(Distance.PROCESS), np.int8(Distance.NODE))
    return np.where(host, near, far)


def _same(a: Sequence[object], b: Sequence[object]) -> NDArray[np.bool_]:
    ids: dict[object, int] = {}
    left = np.array([ids.setdefault(x, len(ids)) for x in a], np.int64)
    right = np.array([ids.setdefault(x, len(ids)) for x in b], np.int64)
    return left[:, None] == right[None, :]
