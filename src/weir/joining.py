"""Streams put together by key: what :class:`~weir.Stream` offers for joins, lookups and duplicates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from weir.durations import Duration, microseconds
from weir.errors import TopologyError
from weir.graph.declare import JoinOptions, Key, Part, declared_time
from weir.operators.base import Operator
from weir.operators.deduplicate import Deduplicate
from weir.operators.join import Join
from weir.operators.lookup import Lookup

if TYPE_CHECKING:
    from weir.flow import Stream


class Joining:
    """The methods of a stream that bring rows of one key together."""

    ends: tuple[Part, ...]

    def _then(
        self,
        operator: Operator,
        method: str,
        allowed: Any,
        options: Mapping[str, Any],
        other: Stream | None = None,
    ) -> Stream:
        """Return the stream behind an operator that takes this one, and as its other side ``other``."""
        raise NotImplementedError

    def join(
        self,
        other: Stream,
        on: Key,
        *,
        how: str = "inner",
        within: Duration | tuple[Duration, Duration] | None = None,
        time: str | tuple[str, str] | None = None,
        lateness: Duration = 0,
        suffix: str = "_right",
        **options: Unpack[JoinOptions],
    ) -> Stream:
        """Join rows of this stream with those of another that have the same key and a time within a bound.

        Parameters
        ----------
        on
            The key: a column or columns that both streams have, of one type.
        how
            ``"inner"``; ``"left"``: rows of this stream that never find a partner follow alone, with nulls, when none
            can come any more; ``"full"``: those of both streams.
        within
            How far the times of two rows may be apart; as a pair, how much earlier and how much later the row of the
            other stream may be. None: no bound, for inner joins; all rows are kept, or those of the last ``ttl``.
        time
            The event-time column, or that of this stream and that of the other; if not given, those that the streams
            have declared (:meth:`~weir.Stream.event_time`).
        lateness
            How much later than newer ones rows may arrive. Rows later than that are dropped and counted.
        suffix
            Appended to columns of the other stream that this one has, too.
        null_keys, ttl, name, routing, parallelism, placement, on_error, timeout
            See :meth:`keyed`.

        See :class:`weir.operators.Join` for what is guaranteed.

        >>> from weir import source
        >>> ads = source("ad string, shown timestamp", "ads")
        >>> clicks = source("ad string, clicked timestamp", "clicks")
        >>> ads.join(clicks, "ad", within=("0 s", "1 h"), time=("shown", "clicked"), name="seen")
        Stream(ads → clicks → seen)
        """
        check_stream(other, "join")
        if within is not None and options.get("ttl") is not None:
            raise TopologyError("join: rows leave by within=; ttl= is for joins without a bound")
        bounds = within if isinstance(within, tuple) else (within, within)
        if within is not None and time is None:
            declared = declared_time(self.ends), declared_time(other.ends)
            time = None if None in declared else declared  # type: ignore[assignment]
        operator = Join(
            how,
            None if within is None else _pair(bounds, "within", microseconds),
            None if time is None else _pair(time if isinstance(time, tuple) else (time, time), "time", str),
            microseconds(lateness),
            suffix,
        )
        return self._then(operator, "join", JoinOptions, {"key": on, **options}, other)

    def lookup(
        self,
        table: Stream,
        on: Key,
        *,
        how: str = "left",
        latest: str | None = None,
        deleted: str | None = None,
        suffix: str = "_right",
        **options: Unpack[JoinOptions],
    ) -> Stream:
        """Add to each row what a table says about its key: the latest row that the stream ``table`` has brought.

        ``how`` is ``"left"`` (rows without an answer go on, with nulls) or ``"inner"``; ``latest`` a column of the
        table by which the latest row is told, ``deleted`` a boolean one that removes a key. See
        :class:`weir.operators.Lookup`; the other parameters are those of :meth:`join`.
        """
        check_stream(table, "lookup")
        if options.get("ttl") is not None:
            raise TopologyError("lookup: rows of a table stay until they change; it takes no ttl=")
        operator = Lookup(how, latest, deleted, suffix)
        return self._then(operator, "lookup", JoinOptions, {"key": on, **options}, table)

    def deduplicate(
        self,
        key: Key,
        *,
        within: Duration | None = None,
        time: str | None = None,
        lateness: Duration = 0,
        **options: Unpack[JoinOptions],
    ) -> Stream:
        """Pass on one row of a key, and drop those that follow less than ``within`` before or after it.

        ``time`` is the event-time column, and ``lateness`` how late rows may be; without ``time`` the wall clock
        counts, without ``within`` a key passes once for ever. See :class:`weir.operators.Deduplicate` for what is
        guaranteed, and :meth:`keyed` for the other parameters.
        """
        if options.get("ttl") is not None:
            raise TopologyError("deduplicate: say within= instead of ttl=")
        bound = None if within is None else microseconds(within)
        operator = Deduplicate(bound, time, microseconds(lateness))
        if within is not None and time is None:
            options["ttl"] = within
        return self._then(operator, "deduplicate", JoinOptions, {"key": key, **options})


def _pair(given: Any, name: str, read: Callable[[Any], Any]) -> tuple[Any, Any]:
    if len(given) != 2:
        raise TopologyError(f"join: {name}={given!r}: expected one, or a pair of them")
    return read(given[0]), read(given[1])


def check_stream(stream: Any, where: str) -> None:
    """Refuse anything but a stream."""
    if not isinstance(stream, Joining):
        raise TopologyError(f"{where}(…) takes streams, made by weir.source or weir.files, not {stream!r}")
