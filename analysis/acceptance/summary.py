"""Import of 1.0: notebooks use this name of `analysis.acceptance.drafter`."""

from .drafter import margins

__all__ = ["margins"]
