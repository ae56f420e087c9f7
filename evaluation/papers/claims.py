"""What a figure claims: a statement, whose it is, whether it holds here, and by how much."""

from __future__ import annotations

from typing import Any

Claim = dict[str, Any]


STREAMS = "page-views: ", "words: "  # a claim that is tried on both is one claim
MARKS = {"(fitted)": "fitted", "(ours)": "ours", "(target)": "ours"}


def claim(statement: str, holds: bool, measured: str, why: str = "") -> Claim:
    """A statement of the paper, whether it holds here, by how much, and why not if it doesn't.

    Statements with "(ours)" or "(target)" are not the paper's, and are counted apart. Those with "(fitted)" are what a
    simulator was fitted to: they hold by construction, and are not counted at all.

    >>> claim("(ours) all is well", True, "100 %")
    {'claim': '(ours) all is well', 'by': 'ours', 'holds': True, 'measured': '100 %'}
    """
    by = next((by for mark, by in MARKS.items() if mark in statement), "paper")
    made = {"claim": statement, "by": by, "holds": bool(holds), "measured": measured}
    return made | ({"why": why} if why and not holds else {})


def once(claims: list[Claim]) -> list[Claim]:
    """Return each claim once, whatever streams it was tried on: it holds if it holds on all of them.

    >>> [one] = once([claim("words: x", True, "1"), claim("page-views: x", False, "2", "noise")])
    >>> one["claim"], one["holds"], one["measured"], one["why"]
    ('x', False, 'words 1; page-views 2', 'noise')
    """
    found: dict[str, list[tuple[str, Claim]]] = {}
    for one in claims:
        stream = next((s for s in STREAMS if one["claim"].startswith(s)), "")
        found.setdefault(one["claim"].removeprefix(stream), []).append((stream.rstrip(": "), one))
    merged = []
    for statement, tried in found.items():
        measured = "; ".join(f"{stream} {one['measured']}".strip() for stream, one in tried)
        why = "; ".join(dict.fromkeys(one["why"] for _, one in tried if one.get("why")))
        holds = all(one["holds"] for _, one in tried)
        merged.append({"claim": statement, "by": tried[0][1]["by"], "holds": holds, "measured": measured})
        merged[-1] |= {"why": why} if why else {}
    return merged
