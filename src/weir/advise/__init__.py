"""Would locality-aware routing help with this data? Start with :func:`advise`."""

from weir.advise.advice import advise

__all__ = ["advise"]
