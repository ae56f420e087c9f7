"""What sending a row costs by distance, and the weights of channels that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weir.errors import ParameterError
from weir.network.distance import Distance

ByDistance = tuple[float, float, float, float]  # process, node, rack, any


@dataclass(frozen=True)
class Profile:
    """Latency, bandwidth and serialisation by distance: four numbers each, nearest first.

    Examples
    --------
    >>> PAPER.seconds(Distance.PROCESS) < PAPER.seconds(Distance.NODE) < PAPER.seconds(Distance.ANY)
    True
    """

    latency_s: ByDistance  # seconds from sending to arrival of an empty message
    bandwidth_Bps: ByDistance  # bytes per second through one channel
    # seconds of a processor's time to write a byte and read it again; 0 where a pointer is passed
    serialise_s_per_byte: ByDistance = (0.0, 0.0, 0.0, 0.0)
    handling_s: float = 0.0  # seconds that an instance works on a row, however it came
    row_bytes: float = 100.0  # size of the row that is meant where none is given

    def __post_init__(self) -> None:
        for name in ("latency_s", "bandwidth_Bps", "serialise_s_per_byte"):
            values = tuple(float(v) for v in getattr(self, name))
            if len(values) != len(Distance) or not all(isfinite(v) and v >= 0 for v in values):
                raise ParameterError(
                    f"{name} must be four numbers from 0 up (process, node, rack, any), got {values}"
                )
            object.__setattr__(self, name, values)
        if min(self.bandwidth_Bps) <= 0:
            raise ParameterError(f"bandwidth_Bps must be above 0 at every distance, got {self.bandwidth_Bps}")
        for name, value in (("handling_s", self.handling_s), ("row_bytes", self.row_bytes)):
            if not (isfinite(value) and value >= 0):
                raise ParameterError(f"{name} must be a number from 0 up, got {value}")
        if min(self.seconds(d) for d in Distance) <= 0:
            raise ParameterError(
                "a row must cost some time at every distance: give latency_s or handling_s, got 0"
            )

    def seconds(self, distance: int, row_bytes: float | None = None) -> float:
        """Return the time of one row over a free channel of this distance, the work on it included.

        >>> [round(1e6 * PAPER.seconds(d)) for d in Distance]
        [30, 96, 287, 535]
        """
        size = self.row_bytes if row_bytes is None else row_bytes
        return self.handling_s + size * self.serialise_s_per_byte[distance] + self.travel(distance, size)

    def travel(self, distance: int, row_bytes: float | None = None) -> float:
        """Return the time of one row from the sender to the receiver, without work on either side."""
        size = self.row_bytes if row_bytes is None else row_bytes
        return self.latency_s[distance] + size / self.bandwidth_Bps[distance]


# Latency and bandwidth: Table 1 of Squirrel. The rest follows from its Fig. 3 (wordcount between two operators):
# 33,000 rows/s within a process are 30.3 µs of handling; 2.5 times fewer within a rack, where the wire is no
# bottleneck, are 45.5 µs more, the serialisation; 3.6 times fewer at any distance are 109 µs, which is the time
# of 1,091 bytes at 10 MB/s.
PAPER = Profile(
    latency_s=(100e-9, 20e-6, 200e-6, 350e-6),
    bandwidth_Bps=(20e9, 2.5e9, 100e6, 10e6),
    serialise_s_per_byte=(0.0, 41.7e-9, 41.7e-9, 41.7e-9),
    handling_s=30.3e-6,
    row_bytes=1091.0,
)


def initial_weights(
    distances: ArrayLike,
    profile: Profile = PAPER,
    *,
    scale: int = 64,
    near: float = 1.0,
    row_bytes: float | None = None,
) -> NDArray[np.int64]:
    """Return the weights of one upstream instance's channels: the closer, the heavier.

    The nearest channel there is weighs ``scale``; another one less in proportion to how much longer a row takes
    over it (:meth:`Profile.seconds`), but at least 1. Only proportions matter: channels of one distance
    weigh the same, however far that is.

    ``near`` is an exponent, how much nearness counts: 0 not at all, 1 as much as it saves, more than that beyond.
    Shares are finer with a greater ``scale``, rounds longer.

    >>> initial_weights([0, 1, 2, 2, 3]).tolist()
    [64, 20, 7, 7, 4]
    >>> initial_weights([0, 1, 2, 2, 3], near=1.5).tolist()
    [64, 11, 2, 2, 1]
    >>> initial_weights([2, 2, 2]).tolist(), initial_weights([0, 2], near=0).tolist()
    ([64, 64, 64], [64, 64])
    """
    far = np.asarray(distances, dtype=np.int64)
    if far.ndim != 1 or not len(far) or far.min() < 0 or far.max() > max(Distance):
        raise ParameterError(f"distances must be a list of 0 (process) … 3 (any), got {far.tolist()}")
    if scale < 1 or not near >= 0:
        raise ParameterError(f"scale must be at least 1 and near at least 0, got {scale} and {near}")
    seconds = np.array([profile.seconds(d, row_bytes) for d in Distance])
    # a profile may have a far channel no slower than a near one; it must not weigh more
    seconds = np.maximum.accumulate(seconds)[far]
    return np.maximum(1, np.rint(scale * (seconds.min() / seconds) ** near)).astype(np.int64)
