"""What an application must have in its state and send to its sinks, in plain Python, and how what it has differs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from weir_evaluation.bench.chaos.cases import AT, COLUMNS, Key, Keyed, Row, Rows, Step
from weir_evaluation.bench.chaos.draw import Drawn


class Truth:
    """What an application must have in its state, in plain Python: rows are handed on, and grouped by key."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn = drawn
        self.seen: list[dict[Key, list[Rows]]] = [defaultdict(list) for _ in drawn.parts]
        self.touched: list[list[set[Key]]] = [[] for _ in drawn.parts]  # by batch

    def feed(self, table: pa.Table) -> None:
        columns = [table[c].to_pylist() for c in COLUMNS]
        source: Rows = list(zip(*columns, strict=True))
        out: list[Rows] = []
        for number, part in enumerate(self.drawn.parts):
            came = source if part.after < 0 else out[part.after]
            if isinstance(part.case, Step):
                out.append(part.case.apply(came))
                continue
            groups: dict[Key, Rows] = defaultdict(list)
            for row in came:
                groups[key_of(row, part.key)].append(row)
            for key, mine in groups.items():
                self.seen[number][key].append(mine)
            self.touched[number].append(set(groups))
            out.append(came)

    def state(self, number: int) -> dict[Key, dict[str, Any]]:
        """Return what a keyed operator must have for each key."""
        case = self.drawn.parts[number].case
        assert isinstance(case, Keyed)
        assert case.truth is not None
        return {key: case.truth(batches) for key, batches in self.seen[number].items()}


def key_of(row: Row, key: Key) -> Key:
    return tuple(str(row[AT[c]]) for c in key)


@dataclass
class Difference:
    """How a state differs from what it should be."""

    lost: int = 0  # rows that keys should have had
    doubled: int = 0  # rows that keys had too many
    wrong: list[str] = field(default_factory=list)  # some keys that differ in whatever way


def compare(truth: Truth, number: int, state: Iterable[dict[str, Any]]) -> Difference:
    """Compare the state of an operator, row by row as it is read back, with the truth."""
    part = truth.drawn.parts[number]
    case, found = part.case, Difference()
    assert isinstance(case, Keyed)
    if case.truth is None:
        return found
    want = truth.state(number)
    got: dict[Key, dict[str, Any]] = {}
    for row in state:
        key = tuple(row[c] for c in part.key)
        if key in got:
            found.wrong.append(f"{part.name}: key {key} lives on two servers")
        got[key] = {c: row[c] for c in row if c not in part.key}
    for key in sorted(want.keys() | got.keys()):
        true, there = want.get(key), got.get(key)
        if true is not None and there is not None:
            read = case.read(there)
            there = {column: read.get(column) for column in true}
        wanted, has = (_rows_in(case, values) for values in (true, there))
        found.lost += max(0, wanted - has)
        found.doubled += max(0, has - wanted)
        if true != there and len(found.wrong) < 5:
            found.wrong.append(f"{part.name}: key {key} has {there}, not {true}")
    return found


def _rows_in(case: Keyed, state: dict[str, Any] | None) -> int:
    if state is None:
        return 0
    return 1 if case.rows is None else int(state[case.rows])


def compare_deliveries(
    truth: Truth,
    number: int,
    deliveries: Iterable[tuple[int, list[Any]]],
    ended: bool = True,
) -> list[str]:
    """Compare what the sink of an operator got: again only the same, and of every key touched.

    What an operator emits in the whole run is compared, too; if its input has ``ended``, with what comes at the end.
    """
    part, wrong = truth.drawn.parts[number], []
    first: dict[int, list[str]] = {}
    emitted: Counter[tuple[Any, ...]] = Counter()
    case = part.case
    columns = (*part.key, *case.counted) if isinstance(case, Keyed) else ()
    for batch, content in deliveries:
        rows = sorted(map(repr, content))
        if batch not in first:
            emitted.update(tuple(row[c] for c in columns) for row in content)
        if first.setdefault(batch, rows) != rows:
            wrong.append(f"{part.name}: batch {batch} was delivered with other rows")
    if isinstance(case, Keyed) and case.emitted is not None and (ended or not case.at_end):
        want = case.emitted(truth.seen[number])
        if emitted != want:
            lacks, more = sum((want - emitted).values()), sum((emitted - want).values())
            wrong.append(f"{part.name}: its sink lacks {lacks} rows and has {more} too many")
    if not isinstance(part.case, Keyed) or not part.case.updates:
        return wrong
    for batch, keys in enumerate(truth.touched[number]):
        if len(first.get(batch, [])) != len(keys):
            got = len(first.get(batch, []))
            wrong.append(f"{part.name}: the sink got {got} rows of batch {batch}, not {len(keys)}")
    return wrong
