"""The queries on Spark's ``transformWithStateInPandas``, and the Python functions that Weir runs for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Frames = dict[str, Any]


def gains(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return by how much the final prices of auctions have risen, and whether each is its auction's first."""
    first = pc.equal(batch.column("change"), "insert").cast(pa.int64())
    gain = pc.subtract(batch.column("price"), pc.fill_null(batch.column("old_price"), 0))
    return pa.record_batch([batch.column("category"), gain, first], ["category", "gain", "first"])


def in_time(batch: pa.RecordBatch) -> pa.Array:
    """Return which bids were made while their auction was open."""
    time = batch.column("time")
    after = pc.greater_equal(time, batch.column("opened"))
    return pc.and_(after, pc.less_equal(time, batch.column("expires")))


def _processor() -> Any:
    from pyspark.sql.streaming import StatefulProcessor

    class Processor(StatefulProcessor):  # type: ignore[misc]
        def close(self) -> None:
            pass

    return Processor


def _both(one: Any, other: Any) -> Any:
    return one.unionByName(other, allowMissingColumns=True)


def q3(frames: Frames) -> Any:
    import pandas as pd

    class Sellers(_processor()):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.persons = handle.getListState("persons", "name string, city string, state string")
            self.auctions = handle.getListState("auctions", "auction long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            new = pd.concat(list(rows))
            persons = [
                tuple(r) for r in new[new.name.notna()][["name", "city", "state"]].itertuples(index=False)
            ]
            auctions = [(int(a),) for a in new.auction.dropna()]
            known, sold = list(self.persons.get()), list(self.auctions.get())
            pairs = [(a, p) for a in auctions for p in [*known, *persons]]
            pairs += [(a, p) for a in sold for p in persons]
            if persons:
                self.persons.appendList(persons)
            if auctions:
                self.auctions.appendList(auctions)
            if pairs:
                yield pd.DataFrame(
                    [(key[0], int(a[0]), *p) for a, p in pairs],
                    columns=["person", "auction", "name", "city", "state"],
                )

    schema = "person long, auction long, name string, city string, state string"
    rows = _both(frames["auctions"], frames["persons"])
    return rows.groupBy("person").transformWithStateInPandas(Sellers(), schema, "append", "none")


def q4(frames: Frames) -> Any:
    import pandas as pd

    class Prices(_processor()):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.auction = handle.getValueState(
                "auction", "category long, opened timestamp, expires timestamp"
            )
            self.best = handle.getValueState("best", "price long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            new = pd.concat(list(rows))
            about = new[new.category.notna()]
            if len(about):
                first = about.iloc[0]
                self.auction.update((int(first.category), first.opened, first.expires))
            auction = self.auction.get()
            if auction is None:
                return
            category, opened, expires = auction
            bids = new[new.price.notna()]
            bids = bids[(bids.time >= opened) & (bids.time <= expires)]
            if not len(bids):
                return
            before, best = self.best.get(), int(bids.price.max())
            if before is None or best > before[0]:
                self.best.update((best,))
                gain = best - (0 if before is None else before[0])
                yield pd.DataFrame({"category": [category], "gain": [gain], "first": [int(before is None)]})

    class Averages(_processor()):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.sums = handle.getValueState("sums", "total long, auctions long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            total, auctions = self.sums.get() or (0, 0)
            for part in rows:
                total, auctions = total + int(part.gain.sum()), auctions + int(part["first"].sum())
            self.sums.update((total, auctions))
            yield pd.DataFrame({"category": [key[0]], "total": [total], "auctions": [auctions]})

    rows = _both(frames["bids"], frames["auctions"])
    prices = rows.groupBy("auction").transformWithStateInPandas(
        Prices(), "category long, gain long, first long", "update", "none"
    )
    return prices.groupBy("category").transformWithStateInPandas(
        Averages(), "category long, total long, auctions long", "update", "none"
    )


def q5(frames: Frames) -> Any:
    import pandas as pd
    from pyspark.sql import functions as F

    class Counts(_processor()):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "num long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            before = self.count.get()
            num = (before[0] if before else 0) + sum(len(part) for part in rows)
            self.count.update((num,))
            yield pd.DataFrame({"auction": [key[0]], "window_start": [key[1]], "num": [num]})

    class Hottest(_processor()):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.best = handle.getValueState("best", "num long, auction long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            # counts only grow, so the greatest that was ever told is the greatest
            best = tuple(self.best.get() or (0, 0))
            for part in rows:
                top = part.sort_values(["num", "auction"]).iloc[-1]
                best = max(best, (int(top.num), int(top.auction)))
            self.best.update(best)
            yield pd.DataFrame([(key[0], *best)], columns=["window_start", "num", "auction"])

    window = F.window("time", "10 seconds", "2 seconds")
    bids = frames["bids"].select("auction", window.start.alias("window_start"))
    counts = bids.groupBy("auction", "window_start").transformWithStateInPandas(
        Counts(), "auction long, window_start timestamp, num long", "update", "none"
    )
    schema = "window_start timestamp, num long, auction long"
    return counts.groupBy("window_start").transformWithStateInPandas(Hottest(), schema, "update", "none")


def q11(frames: Frames) -> Any:
    import pandas as pd

    gap = pd.Timedelta(seconds=10)

    class Sessions(_processor()):  # type: ignore[misc]
        """One open session per bidder: rows come in order of time."""

        def init(self, handle: Any) -> None:
            self.handle = handle
            self.open = handle.getValueState("open", "start timestamp, last timestamp, bids long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            state, closed = self.open.get(), []
            for time in pd.concat(list(rows)).time.sort_values():
                if state is not None and time >= state[1] + gap:
                    closed.append((key[0], state[0], state[1] + gap, state[2]))
                    state = None
                state = (time, time, 1) if state is None else (state[0], time, state[2] + 1)
            self.open.update(state)
            self.handle.registerTimer(int((state[1] + gap).timestamp() * 1000) + 1)
            if closed:
                yield pd.DataFrame(closed, columns=["bidder", "window_start", "window_end", "bids"])

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
            state = self.open.get()
            now = timerValues.getCurrentWatermarkInMs()
            if state is not None and (state[1] + gap).timestamp() * 1000 <= now:
                self.open.clear()
                row = (key[0], state[0], state[1] + gap, state[2])
                yield pd.DataFrame([row], columns=["bidder", "window_start", "window_end", "bids"])

    bids = frames["bids"].withWatermark("time", "0 seconds")
    schema = "bidder long, window_start timestamp, window_end timestamp, bids long"
    return bids.groupBy("bidder").transformWithStateInPandas(Sessions(), schema, "append", "eventTime")


def q12(frames: Frames) -> Any:
    import pandas as pd

    class Counts(_processor()):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            # without a time to live: a query with one has always another batch to run, and never ends
            self.count = handle.getValueState("count", "bids long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            before = self.count.get()
            bids = (before[0] if before else 0) + sum(len(part) for part in rows)
            self.count.update((bids,))
            yield pd.DataFrame({"bidder": [key[0]], "starttime": [key[1]], "bids": [bids]})

    schema = "bidder long, starttime timestamp, bids long"
    grouped = frames["bids"].groupBy("bidder", "starttime")
    return grouped.transformWithStateInPandas(Counts(), schema, "update", "none")


def q7(frames: Frames) -> Any:
    import pandas as pd

    class Highest(_processor()):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.best = handle.getValueState("best", "price long, auction long, bidder long")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            best = self.best.get()
            for part in rows:
                top = part.sort_values(["price", "auction", "bidder"]).iloc[-1]
                found = (int(top.price), int(top.auction), int(top.bidder))
                best = found if best is None else max(tuple(best), found)
            self.best.update(best)
            yield pd.DataFrame([(key[0], *best)], columns=["starttime", "price", "auction", "bidder"])

    schema = "starttime timestamp, price long, auction long, bidder long"
    return frames["bids"].groupBy("starttime").transformWithStateInPandas(Highest(), schema, "update", "none")


def q8(frames: Frames) -> Any:
    import pandas as pd

    class NewSellers(_processor()):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.person = handle.getValueState("person", "name string")
            self.sells = handle.getValueState("sells", "yes boolean")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            new = pd.concat(list(rows))
            person, sells = self.person.get(), self.sells.get()
            done = person is not None and sells is not None
            names = new.name.dropna()
            if len(names):
                person = (names.iloc[0],)
                self.person.update(person)
            if new.name.isna().any():
                sells = (True,)
                self.sells.update(sells)
            if not done and person is not None and sells is not None:
                row = (key[0], key[1], person[0])
                yield pd.DataFrame([row], columns=["person", "starttime", "name"])

    rows = _both(frames["persons"], frames["auctions"])
    schema = "person long, starttime timestamp, name string"
    grouped = rows.groupBy("person", "starttime")
    return grouped.transformWithStateInPandas(NewSellers(), schema, "append", "none")


def q17(frames: Frames) -> Any:
    import pandas as pd

    columns = ["total", "rank1", "rank2", "rank3", "least", "most", "sum"]

    class Statistics(_processor()):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.sums = handle.getValueState("sums", ", ".join(f"`{c}` long" for c in columns))

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            before = self.sums.get()
            total, one, two, three, least, most, added = before or (0, 0, 0, 0, 1 << 62, 0, 0)
            for part in rows:
                total += len(part)
                one, two, three = (
                    n + int(part[c].count()) for n, c in ((one, "rank1"), (two, "rank2"), (three, "rank3"))
                )
                least, most = min(least, int(part.price.min())), max(most, int(part.price.max()))
                added += int(part.price.sum())
            now = (total, one, two, three, least, most, added)
            self.sums.update(now)
            row = (*key, total, one, two, three, least, most, added / total, added)
            names = ["auction", "day", *columns[:6], "average", "sum"]
            yield pd.DataFrame([row], columns=names)

    schema = (
        "auction long, day date, total long, rank1 long, rank2 long, rank3 long, least long, most long, "
        "average double, sum long"
    )
    grouped = frames["bids"].groupBy("auction", "day")
    return grouped.transformWithStateInPandas(Statistics(), schema, "update", "none")
