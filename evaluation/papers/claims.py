"""What a figure claims: a statement, whose it is, whether it holds here, and by how much."""

from __future__ import annotations

from typing import Any

Claim = dict[str, Any]


def claim(statement: str, holds: bool, measured: str, why: str = "") -> Claim:
    """A statement of the paper, whether it holds here, by how much, and why not if it doesn't.

    Statements that begin with "(ours)" or "(target)", after the name of a stream or not, are not the paper's, and are
    counted apart.

    >>> claim("(ours) all is well", True, "100 %")
    {'claim': '(ours) all is well', 'by': 'ours', 'holds': True, 'measured': '100 %'}
    """
    ours = "(ours)" in statement or "(target)" in statement
    made = {"claim": statement, "by": "ours" if ours else "paper", "holds": bool(holds), "measured": measured}
    return made | ({"why": why} if why and not holds else {})
