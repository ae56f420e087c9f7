"""What the lab raises."""

from __future__ import annotations

from weir.errors import WeirError


class LabError(WeirError):
    """A lab that cannot be set up, found, or asked for what it was asked."""
