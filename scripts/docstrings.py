"""Docstrings as the site shows them: the roles of reStructuredText become plain code, literal blocks code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|meth|func|mod|data|attr|exc):`(~?)([\w.]+)`")
_GUARANTEE = re.compile(r"(\*\*)?Guarantee\b")


class Plain(griffe.Extension):
    """Rewrites docstrings when an object is collected, before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Rewrite the docstring of a module, which is not there yet when it becomes an object."""
        if mod.docstring is not None:
            mod.docstring.value = markdown(mod.docstring.value)


def markdown(text: str) -> str:
    """Return a docstring as Markdown with sections that a parser of NumPy's style knows.

    What is guaranteed comes before the parameters, since behind them it would be taken for one of them; examples get a
    heading if they have none.

    >>> markdown("See :class:`~weir.Table` and :mod:`weir.sinks`::")
    'See `Table` and `weir.sinks`:'
    >>> print(markdown("Count.\\n\\nParameters\\n----------\\na\\n    One.\\n\\nGuarantee: none."))
    Count.
    <BLANKLINE>
    Guarantee: none.
    <BLANKLINE>
    Parameters
    ----------
    a
        One.
    """
    plain = _ROLE.sub(lambda role: f"`{role[2].rsplit('.', 1)[-1] if role[1] else role[2]}`", text)
    plain = re.sub(r"::$", ":", plain, flags=re.MULTILINE)
    paragraphs = plain.split("\n\n")
    heads = [paragraph.split("\n")[0] for paragraph in paragraphs]
    if "Parameters" in heads:
        first = heads.index("Parameters")
        behind = [p for p in paragraphs[first:] if _GUARANTEE.match(p)]
        others = [p for p in paragraphs[first:] if not _GUARANTEE.match(p)]
        paragraphs = [*paragraphs[:first], *behind, *others]
    shown = next((n for n, paragraph in enumerate(paragraphs) if paragraph.startswith(">>>")), None)
    if shown is not None and "Examples" not in heads:
        paragraphs[shown] = f"Examples\n--------\n{paragraphs[shown]}"
    return "\n\n".join(paragraphs)
