"""Advise on a recorded stream: count it, judge tables learnt from it, recommend a routing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from weir.advise.counts import Counted, Keys, Question, count, is_remote, key_columns, words
from weir.advise.trial import STEPS, Trial, judge
from weir.errors import WeirError, did_you_mean
from weir.hashing import hash_columns
from weir.routing.table import HASH, SERVER, Table


def advise(
    data: str | os.PathLike[str],
    *,
    keys: Keys,
    servers: int,
    time: str | None = None,
    operators: str | Sequence[str] | None = None,
    merges: str | Sequence[str] = (),
    alpha: float = 1.03,
    sample: int | None = None,
    payload: float | None = None,
    capacity: int = 5_000_000,
    out: str | os.PathLike[str] | None = None,
    master: str | None = None,
    seed: int = 0,
    progress: Callable[[str, int], None] = lambda step, steps: None,
) -> dict[str, Any]:
    """Return what locality-aware routing would gain on recorded data, and what to do about it.

    Tables are learnt from earlier rows and judged by later ones. The result is what ``weir advise --json`` prints;
    docs/advise.md explains its figures.

    Parameters
    ----------
    data
        A Parquet file or folder, a CSV file, or ``table:NAME`` for a table that Spark knows.
    keys
        The key of each operator, in the order in which rows pass the operators: a column, or a list of columns.
        A text with commas is read as on the command line.
    servers
        The number of servers that the query will have.
    time
        The column that orders rows; the order of the file by default.
    operators
        Names of the operators; those of their keys by default.
    merges
        Those of them that merge, such as counts: their hottest keys can be split.
    alpha
        The load that a server may have, over the average.
    sample
        Count about so many rows, drawn at random.
    payload
        The bytes of a row on the network; measured by default.
    capacity
        Most pairs and keys to keep.
    out
        The folder to write the tables to start with to, one file per operator.
    master
        The Spark to count on. By default files of up to 1 GB are counted without Spark.
    seed
        Fixes what is drawn at random.
    progress
        Called with each step of the work as it begins, and with the number of steps.

    Examples
    --------
    >>> import tempfile
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> posts = pa.table({"place": [i % 8 for i in range(800)], "topic": [i % 8 + 8 for i in range(800)]})
    >>> file = tempfile.mkdtemp() + "/posts.parquet"
    >>> pq.write_table(posts, file)
    >>> result = advise(file, keys=["place", "topic"], servers=2)
    >>> result["table"]["locality"], result["recommendation"]["verdict"]
    (1.0, 'start')
    """
    data = os.fspath(data)
    out = None if out is None else os.fspath(out)
    _check(data, servers, alpha, {"sample": sample, "payload": payload, "capacity": capacity})
    known = list(key_columns(keys, operators))
    merging = words(merges)
    for name in merging:
        if name not in known:
            raise WeirError(f"merges {name!r}: {did_you_mean(name, known)}")
    if out is not None:
        _check_folder(out)

    def question(columns: Sequence[str]) -> Question:
        return Question(data, key_columns(keys, operators, columns), time, sample, capacity, seed=seed)

    counted = count(data, question, master)
    if len(counted.slices) < 2:
        raise WeirError(
            f"{data}: all rows have the same time, so nothing can be learnt from earlier ones and judged by "
            "later ones; leave time out, or give more rows"
        )
    trial = Trial(counted, servers, alpha, seed=seed)
    steps = STEPS + 2 * len(counted.slices)
    figures, tables = judge(trial, lambda step: progress(step, steps), payload, merging)
    result: dict[str, Any] = {"data": data, "recommendation": recommend(figures, alpha), **figures}
    if out is not None:
        result |= {"out": out, "tables": _save(counted, tables, out)}
    return result


def _check(data: str, servers: int, alpha: float, positive: dict[str, float | None]) -> None:
    """Refuse parameters that cannot work, before anything is read."""
    if not isinstance(servers, Integral) or servers < 2:
        raise WeirError(f"servers {servers!r}: on one server every row is local already; give 2 or more")
    if not isinstance(alpha, Real) or alpha < 1:
        raise WeirError(f"alpha {alpha!r}: no server can stay below the average; give 1 or more")
    for name, value in positive.items():
        if value is not None and (not isinstance(value, Real) or value <= 0):
            raise WeirError(f"{name} {value!r}: give a number above 0, or leave it out")
    if not is_remote(data) and not Path(data).exists():
        raise WeirError(f"no data at {data}: check the path, or write table:NAME for a Spark table")


def _save(counted: Counted, tables: Sequence[Table], folder: str) -> dict[str, str]:
    """Write one readable table per operator, for ``weir.Locality(tables=folder)``; return the files by operator."""
    files = {}
    for keys, table in zip(counted.keys, tables, strict=True):
        servers = table.find(hash_columns(keys.columns))
        listed = servers >= 0
        # columns of these names would collide with the table's own; only their types matter to the engine
        names = [f"key_{name}" if name in (HASH, SERVER) else name for name in keys.column_names]
        readable = keys.filter(pa.array(listed)).rename_columns(names)
        file = f"{folder.rstrip('/')}/{table.operator}.arrow"
        Table.from_keys(
            readable, servers[listed].astype(np.int32), n=table.n, operator=table.operator, version=1
        ).save(file)
        files[table.operator] = file
    return files


def _check_folder(folder: str) -> None:
    """Create a folder, on any file system that pyarrow reaches, and refuse one that cannot be written to."""
    try:
        uri = folder if "://" in folder else str(Path(folder).resolve())
        files, path = pafs.FileSystem.from_uri(uri)
        files.create_dir(path, recursive=True)
        probe = f"{path}/.weir-probe"
        files.open_output_stream(probe).close()
        files.delete_file(probe)
    except (OSError, pa.ArrowInvalid) as error:
        raise WeirError(
            f"out {folder}: can't write there ({error}); name a folder you may write to"
        ) from error


_WORTH = 0.05  # locality above hash's that is worth a table
_NEW = 0.1  # share of rows with new keys from which they deserve advice of their own
_STALE = 0.15  # share of its gain that a table may lose before its drift is worth mentioning
_WINDOW = 5  # slices over which localities are averaged

Advice = dict[str, str]  # "code" and "text"


def recommend(figures: dict[str, Any], alpha: float) -> dict[str, Any]:
    """Return a verdict (``"start"``, ``"learn"`` or ``"hash"``), one sentence on it, and advice, each with a code.

    ``start``: which keys meet changes slowly; begin with the table. ``learn``: it changes so fast that only learning
    as the stream runs keeps up. ``hash``: no table would help on rows it hasn't seen.
    """
    base = figures["hash"]["locality"]
    table = figures["table"]["locality"]
    live = figures["live"]["locality"] if figures["live"] else table
    gain = max(table, live) - base
    advice: list[Advice] = []
    if gain < _WORTH:
        verdict, words = "hash", _why_hash(figures)
    else:
        lost = staleness(figures) or 0.0
        drifts = lost > _STALE
        verdict = "learn" if table - base < _WORTH or live - table > 0.25 * gain else "start"
        words = _why_table(verdict, drifts, max(table, live), base)
        if drifts:
            advice.append({"code": "drifts", "text": _drift(figures, lost)})
        advice += _new_keys(figures)
        advice += _balance(figures, alpha)
    advice += _hot_keys(figures, alpha, verdict)
    if figures["auto"]:
        says = "; ".join(figures["auto"]["says"]) or "a hash would do"
        text = f'With routing="auto", {figures["auto"]["locality"]:.0%} of the rows would stay local: {says}.'
        advice.append({"code": "auto", "text": text})
    if not figures["drift"]:
        text = "The rows have no order here: name their time column (--time) to learn about drift."
        advice.append({"code": "no_time", "text": text})
    return {"verdict": verdict, "words": words, "advice": advice}


def staleness(figures: dict[str, Any]) -> float | None:
    """Return the share of its gain over hash that a table of the first half has lost by the last tenth.

    Both tables are judged by the same rows: the old one against one that has seen all but these.
    """
    if not figures["drift"]:
        return None
    gain = figures["drift"]["relearnt"] - figures["hash"]["locality"]
    late = figures["drift"]["late"]["locality"] - figures["hash"]["locality"]
    return float(np.clip(1 - late / gain, 0, 1)) if gain > 0 else 0.0


def lasting(figures: dict[str, Any]) -> str | None:
    """Return how long a table holds before learning anew would gain a fifth more; None if it always does."""
    series = figures["series"]
    begins = series["begins"]
    half = next((i for i, locality in enumerate(series["static"]) if locality is not None), None)
    if half is None or not begins or not series["live"]:
        return None
    static, live, base = (np.array(series[name][half:], float) for name in ("static", "live", "hash"))
    window = np.ones(_WINDOW) / _WINDOW
    ahead = np.convolve(live - static, window, "valid")
    gain = np.convolve(live - base, window, "valid")
    late = np.flatnonzero(ahead > 0.2 * gain)
    if not len(late):
        return None
    return _span(begins[half], begins[half + min(len(static) - 1, int(late[0]) + _WINDOW // 2)])


def _span(first: Any, last: Any) -> str | None:
    if not isinstance(first, str):
        return f"{last - first:,}"
    seconds = (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds")):
        if seconds >= 2 * size:
            return f"{round(seconds / size):,} {unit}"
    return None


def _why_table(verdict: str, drifts: bool, reached: float, base: float) -> str:
    reach = f"{reached:.0%} of the rows stay on their server instead of {base:.0%}"
    if verdict == "learn":
        return f"Let it learn as the stream runs, routing=weir.Locality(): {reach}; a table soon grows old."
    if drifts:
        return f"Start with this table and let it learn, routing=weir.Locality(tables=…): {reach}."
    return f"Start with this table, routing=weir.Locality(tables=…): {reach}, and it lasts."


def _why_hash(figures: dict[str, Any]) -> str:
    new = max(figures["new_rows"].values())
    if new > 0.5:
        return (
            f"Stay with hash: {new:.0%} of the rows bring a key that was never seen before, "
            "so there is nothing to learn from."
        )
    return (
        "Stay with hash: keys have no affinity that lasts. "
        f"On rows it has not seen, a table keeps {figures['table']['locality']:.0%} local, "
        f"hash {figures['hash']['locality']:.0%}."
    )


def _drift(figures: dict[str, Any], lost: float) -> str:
    span = lasting(figures)
    period = f" Choose period= so that its batches span less than {span}." if span else ""
    return (
        f"It drifts: a table of the first half has lost {lost:.0%} of its gain by the last tenth. "
        f"Keep learning, weir.Locality(period=…), its default.{period}"
    )


def _new_keys(figures: dict[str, Any]) -> list[Advice]:
    return [
        {
            "code": "new_keys",
            "text": f"{share:.0%} of the latest rows bring a key of {name} that is new. If that operator merges "
            '(Count, Aggregate), weir.Locality(new_keys="first_seen") keeps those rows local, too.',
        }
        for name, share in figures["new_rows"].items()
        if share > _NEW
    ]


def _balance(figures: dict[str, Any], alpha: float) -> list[Advice]:
    advice = []
    floors = {hot["operator"]: hot["floor"] for hot in figures["hot_keys"]}
    for name, busiest in figures["table"]["imbalance"].items():
        hashed = figures["hash"]["imbalance"][name]
        if busiest <= max(hashed, alpha, floors[name]) + 0.1:
            continue
        learning = figures["live"]["imbalance"][name] if figures["live"] else busiest
        remedy = "Reconfigure more often, with a shorter period=."
        if learning < busiest - 0.05:
            remedy = f"Let it learn, the default: that brings {learning:.2f}."
        text = (
            f"Load of {name} shifts: on new rows the busiest server gets {busiest:.2f} times the "
            f"average (hash: {hashed:.2f}), though the table was planned for {alpha:.2f}. {remedy}"
        )
        advice.append({"code": "balance", "text": text})
    return advice


def _hot_keys(figures: dict[str, Any], alpha: float, verdict: str) -> list[Advice]:
    advice = []
    for hot in figures["hot_keys"]:
        if hot["floor"] <= alpha:
            continue
        key, share = hot["keys"][0]["key"], hot["keys"][0]["share"]
        remedy = "split hot keys with weir.Locality(split_hot=True)"
        if verdict == "hash":
            remedy = "the grouping weir.Consistent() splits it"
        text = (
            f"{key!r} alone is {share:.0%} of the rows of {hot['operator']}: whatever the table, "
            f"the busiest server gets at least {hot['floor']:.2f} times the average. "
            f"If the operator merges, {remedy}."
        )
        advice.append({"code": "hot_key", "text": text})
    return advice
