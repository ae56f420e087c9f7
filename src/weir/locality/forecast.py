"""Forecast whether a new table pays: its gain on rows it has not seen against the cost of moving the keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from weir.locality.config import Costs
from weir.locality.graph import KeyGraph
from weir.locality.stats import Edge

ROW_BYTES, STATE_BYTES = 200.0, 100.0  # before they are measured
ENOUGH = 1000  # rows, or keys, of which a batch tells the size: of few, headers count


@dataclass
class Sizes:
    """Bytes of a row between two operators, and of a key's state, as measured; what is given counts instead.

    >>> sizes = Sizes()
    >>> sizes.observe({(0, 1): (2000, 1_000_000)}, {1: (5, 1000)})  # of five keys, headers count
    >>> float(sizes.of_rows(2, Costs())[0, 1]), sizes.of_state(1, Costs()), sizes.of_state(1, Costs(state_bytes=8))
    (500.0, 100.0, 8)
    """

    rows: dict[Edge, float] = field(default_factory=dict)
    states: dict[int, float] = field(default_factory=dict)

    def observe(self, rows: Mapping[Edge, tuple[int, int]], states: Mapping[int, tuple[int, int]]) -> None:
        """Take in how many rows left their server in a batch, how many states were written, and the bytes of each."""
        for kept, came in ((self.rows, rows), (self.states, states)):
            mean: dict[Any, float] = kept  # type: ignore[assignment]
            for what, (count, size) in came.items():
                if count >= ENOUGH:
                    mean[what] = 0.5 * (mean.get(what, size / count) + size / count)

    def of_rows(self, operators: int, costs: Costs) -> NDArray[np.float64]:
        """Return the bytes of a row between any two operators, in either direction."""
        out = np.full((operators, operators), costs.row_bytes or ROW_BYTES)
        for (a, b), size in self.rows.items() if costs.row_bytes is None else ():
            out[a, b] = out[b, a] = size
        return out

    def of_state(self, operator: int, costs: Costs) -> float:
        """Return the bytes of a key's state."""
        return self.states.get(operator, STATE_BYTES) if costs.state_bytes is None else costs.state_bytes

    def state(self) -> list[Any]:
        """Return it as JSON-able data."""
        return [[[*edge, size] for edge, size in self.rows.items()], list(self.states.items())]

    @classmethod
    def restored(cls, saved: Any) -> Sizes:
        """Return what :meth:`state` was called on."""
        return cls({(a, b): size for a, b, size in saved[0]}, dict(saved[1]))


class Forecast(msgspec.Struct, frozen=True):
    """What a table would gain, measured on recent rows that it was not made from."""

    locality_now: float  # share of held-out rows whose next key is on the same server, with the present table
    locality_then: float  # and with the new one
    imbalance_now: list[float]  # per operator: busiest server over average
    imbalance_then: list[float]
    moved: int  # keys that would move
    bytes: float  # what moving them costs
    seconds: float
    gain: float  # bytes per batch that no longer leave their server
    break_even: float | None  # batches until the gain has paid for the move; None: it never does
    deviations: float  # the gain in standard deviations of pure chance
    pays: bool  # the verdict
    why: str


class Reconfiguration(msgspec.Struct):
    """One reconfiguration that was considered: its forecast, whether it was adopted, and its outcome.

    ``outcome`` is filled in by the batches that follow: their mean locality and their number.
    """

    batch: int
    version: int
    method: str
    adopted: bool
    forecast: Forecast | None
    seconds: float
    outcome: dict[str, float] = {}
    error: str | None = None  # why it could not be computed, if it could not

    def record(self, locality: float) -> None:
        """Add the locality of one more batch to the outcome."""
        n = self.outcome.get("batches", 0.0)
        self.outcome["locality"] = (self.outcome.get("locality", 0.0) * n + locality) / (n + 1)
        self.outcome["batches"] = n + 1


@dataclass(frozen=True)
class Moving:
    """Which keys a proposal moves."""

    states: int  # keys with state that would move
    changed: int  # keys that would have another home, those without state included
    keys: int  # that there are
    bytes: float | None = None  # of the states that would move, where these were measured


@dataclass(frozen=True)
class Balance:
    """What balance is judged by."""

    alpha: float = 1.03  # what a server may have, over its share
    shares: NDArray[np.float64] | None = None  # of servers; all alike if not given
    # per operator, whether balance gets clearly worse on the longer record, too: few held-out rows are never well
    # balanced, and only what both say counts against a proposal
    worsens: NDArray[np.bool_] | None = None
    row_seconds: NDArray[np.float64] | None = (
        None  # what a row takes of each operator: then all their time counts
    )
    relief: float = 0.1  # beyond its limit by so much, an operator is worth relieving


def forecast(
    held_out: KeyGraph,
    now: NDArray[np.int32],
    then: NDArray[np.int32],
    n: int,
    moving: Moving,
    *,
    batches: float,
    period: float,
    costs: Costs,
    judged_by: Balance = Balance(),  # noqa: B008 - it is frozen
    sizes: Sizes | None = None,
    far: NDArray[np.float64] | None = None,
) -> Forecast:
    """Compare two assignments on a graph of rows that neither was computed from.

    ``now`` and ``then`` are the servers of the vertices of ``held_out``, the keys and pairs of the latest ``batches``
    batches, at present and under the proposal. A ``period`` is that between two proposals, in batches. ``far`` is what
    a row costs between any two servers, 1 between the farthest; without it, all are equally far.

    Notes
    -----
    A proposal is worth it when (1) more held-out rows become local than become remote, by more than chance:
    of ``c`` rows whose fate changes, chance alone makes a difference of about ``√c``; and (2) the bytes saved
    until the horizon exceed the bytes moved, and (3) the gain is worth the disturbance (``min_gain``).
    Or, for balance, when an operator beyond its limit by a tenth (:attr:`Balance.relief`) comes down by half of that.

    Examples
    --------
    >>> from weir.locality.counts import count_keys, count_pairs
    >>> a, b = np.repeat(np.array([1, 2], np.uint64), 50), np.repeat(np.array([3, 4], np.uint64), 50)
    >>> rows = KeyGraph.build([count_keys(a), count_keys(b)], {(0, 1): count_pairs(a, b)})
    >>> apart, together = np.array([0, 1, 1, 0], np.int32), np.array([0, 1, 0, 1], np.int32)
    >>> result = forecast(rows, apart, together, 2, Moving(2, 2, 4), batches=1, period=10, costs=Costs())
    >>> result.locality_now, result.locality_then, result.break_even, result.pays
    (0.0, 1.0, 0.01, True)
    """
    tail = held_out.tails()
    was, will = now[tail] == now[held_out.indices], then[tail] == then[held_out.indices]
    cost = 1.0 - np.eye(n) if far is None else far
    saved = cost[now[tail], now[held_out.indices]] - cost[then[tail], then[held_out.indices]]
    saved *= held_out.edge_weight / 2
    rows = float(held_out.edge_weight.sum()) / 2
    won, lost = float(saved[saved > 0].sum()), float(-saved[saved < 0].sum())
    shares, moved = judged_by.shares, moving.states
    balance = held_out.together(judged_by.row_seconds)
    before, after = balance.overload(now, n, shares), balance.overload(then, n, shares)
    sizes = sizes or Sizes()
    between = held_out.operator[tail], held_out.operator[held_out.indices]
    gain = float((saved * sizes.of_rows(held_out.operators, costs)[between]).sum()) / max(batches, 1e-9)
    weight = moved * (costs.state_bytes or STATE_BYTES) if moving.bytes is None else moving.bytes
    break_even = weight / gain if gain > 0 else (0.0 if moved == 0 else None)
    deviations = (won - lost) / math.sqrt(won + lost) if won + lost > 0 else 0.0
    floor = np.maximum(judged_by.alpha, balance.floor(n, shares))
    excess_before, excess_after = np.maximum(before / floor - 1, 0), np.maximum(after / floor - 1, 0)
    relieves = bool(
        excess_before.max(initial=0) > judged_by.relief and excess_after.sum() < excess_before.sum() / 2
    )
    topples = (excess_after > np.maximum(excess_before, 0.1) + 0.1) & (
        True if judged_by.worsens is None else judged_by.worsens
    )
    if moving.changed == 0:
        pays, why = False, "nothing would move"
    elif relieves and deviations >= costs.confidence:
        pays, why = True, "keeps more rows on their server, and relieves an overloaded one"
    elif relieves:
        pays, why = True, "relieves an overloaded server"
    elif topples.any():
        pays, why = False, "would overload a server"
    elif deviations < costs.confidence:
        pays, why = False, "the gain may be chance"
    elif rows and (won - lost) / rows < costs.min_gain * moved / max(1, moving.keys):
        pays, why = False, "gains too little for so much to move"
    elif break_even is None or break_even > costs.horizon * period:
        pays, why = False, "moving costs more than it gains within the horizon"
    else:
        pays, why = True, "gains more than it costs"
    return Forecast(
        float(held_out.edge_weight[was].sum()) / 2 / rows if rows else 1.0,
        float(held_out.edge_weight[will].sum()) / 2 / rows if rows else 1.0,
        before.tolist(),
        after.tolist(),
        moved,
        weight,
        weight / costs.bytes_per_second,
        gain,
        break_even,
        deviations,
        pays,
        why,
    )
