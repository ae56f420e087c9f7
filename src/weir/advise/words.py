"""Figures into words: what to do about a stream, and why."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np

_WORTH = 0.05  # locality above hash's that is worth a table
_NEW = 0.1  # share of rows with new keys from which they deserve advice of their own
_STALE = 0.15  # share of the gain that a table may lose by growing old


def recommend(found: dict[str, Any], alpha: float) -> dict[str, Any]:
    """A verdict (``"start"``, ``"learn"`` or ``"hash"``), one sentence on it, and advice, each with a code.

    ``start``: keys keep company that lasts; begin with the table. ``learn``: they do, but it changes so fast
    that only learning as the stream runs keeps up. ``hash``: no table would help on rows it hasn't seen.
    """
    base = found["hash"]["locality"]
    table = found["table"]["locality"]
    live = found["live"]["locality"] if found["live"] else table
    gain = max(table, live) - base
    advice: list[dict[str, str]] = []
    if gain < _WORTH:
        verdict, words = "hash", _why_hash(found)
    else:
        lost = staleness(found)
        drifts = lost is not None and lost > _STALE
        verdict = "learn" if table - base < _WORTH or live - table > 0.25 * gain else "start"
        reach = f"{max(table, live):.0%} of the rows stay on their server instead of {base:.0%}"
        if verdict == "learn":
            words = (
                f"Let it learn as the stream runs, routing=weir.Locality(): {reach}; a table soon grows old."
            )
        elif drifts:
            words = f"Start with this table and let it learn, routing=weir.Locality(start=…): {reach}."
        else:
            words = f"Start with this table, routing=weir.Locality(start=…): {reach}, and it lasts."
        if drifts:
            advice.append({"code": "drifts", "text": _drift(found, float(lost or 0.0))})
        advice += _new_keys(found)
        advice += _balance(found, alpha)
    advice += _hot(found, alpha, verdict)
    if not found["drift"]:
        advice.append(
            {
                "code": "no_time",
                "text": "The rows have no order here: name their --time to learn about drift.",
            }
        )
    return {"verdict": verdict, "words": words, "advice": advice}


def staleness(found: dict[str, Any]) -> float | None:
    """The share of its gain over hash that a table of the first half has lost by the last tenth.

    Both tables are judged by the same rows: the old one against one that has seen all but these.
    """
    if not found["drift"]:
        return None
    gain = found["drift"]["relearnt"] - found["hash"]["locality"]
    late = found["drift"]["late"]["locality"] - found["hash"]["locality"]
    return float(np.clip(1 - late / gain, 0, 1)) if gain > 0 else 0.0


def lasting(found: dict[str, Any]) -> str | None:
    """How long a table holds before learning anew would gain a fifth more, in words; None if it always does."""
    series = found["series"]
    begins, window = series["begins"], 5
    half = next((i for i, s in enumerate(series["static"]) if s is not None), None)
    if half is None or not begins or not series["live"]:
        return None
    static, live, base = (np.array(series[k][half:], float) for k in ("static", "live", "hash"))
    ahead = np.convolve(live - static, np.ones(window) / window, "valid")
    worth = np.convolve(live - base, np.ones(window) / window, "valid")
    late = np.flatnonzero(ahead > 0.2 * worth)
    if not len(late):
        return None
    return _span(begins[half], begins[half + min(len(static) - 1, int(late[0]) + window // 2)])


def _span(first: Any, last: Any) -> str | None:
    if not isinstance(first, str):
        return f"{last - first:,}"
    seconds = (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds")):
        if seconds >= 2 * size:
            return f"{round(seconds / size):,} {unit}"
    return None


def _why_hash(found: dict[str, Any]) -> str:
    new = max(found["new_rows"].values())
    if new > 0.5:
        return (
            f"Stay with hash: {new:.0%} of the rows bring a key that was never seen before, "
            "so there is nothing to learn from."
        )
    return (
        "Stay with hash: keys have no company that lasts. "
        f"On rows it has not seen, a table keeps {found['table']['locality']:.0%} local, "
        f"hash {found['hash']['locality']:.0%}."
    )


def _drift(found: dict[str, Any], lost: float) -> str:
    lasts = lasting(found)
    often = f" Choose period= so that its batches span less than {lasts}." if lasts else ""
    return (
        f"It drifts: a table of the first half has lost {lost:.0%} of its gain by the last tenth. "
        f"Keep learning, weir.Locality(period=…), its default.{often}"
    )


def _new_keys(found: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "code": "new_keys",
            "text": f"{share:.0%} of the latest rows bring a key of {name} that is new. If that operator merges "
            '(Count, Aggregate), weir.Locality(new_keys="first_seen") keeps those rows local, too.',
        }
        for name, share in found["new_rows"].items()
        if share > _NEW
    ]


def _balance(found: dict[str, Any], alpha: float) -> list[dict[str, str]]:
    out = []
    floors = {h["operator"]: h["floor"] for h in found["hot_keys"]}
    for name, busiest in found["table"]["imbalance"].items():
        hashed = found["hash"]["imbalance"][name]
        if busiest > max(hashed, alpha, floors[name]) + 0.1:
            learning = found["live"]["imbalance"][name] if found["live"] else busiest
            cure = "Reconfigure more often, with a shorter period=."
            if learning < busiest - 0.05:
                cure = f"Let it learn, the default: that brings {learning:.2f}."
            out.append(
                {
                    "code": "balance",
                    "text": f"Load of {name} shifts: on new rows the busiest server gets {busiest:.2f} times the "
                    f"average (hash: {hashed:.2f}), though the table was planned for {alpha:.2f}. {cure}",
                }
            )
    return out


def _hot(found: dict[str, Any], alpha: float, verdict: str) -> list[dict[str, str]]:
    out = []
    for hot in found["hot_keys"]:
        if hot["floor"] > alpha:
            key, share = hot["keys"][0]["key"], hot["keys"][0]["share"]
            cure = (
                "the grouping weir.DChoices() splits it"
                if verdict == "hash"
                else "split hot keys with weir.Locality(split_hot=True)"
            )
            out.append(
                {
                    "code": "hot_key",
                    "text": f"{key!r} alone is {share:.0%} of the rows of {hot['operator']}: whatever the table, "
                    f"the busiest server gets at least {hot['floor']:.2f} times the average. "
                    f"If the operator merges, {cure}.",
                }
            )
    return out
