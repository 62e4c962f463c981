"""The name that notebooks of version 1.0 import `analysis.acceptance.drafter` by."""

from .drafter import margins

__all__ = ["margins"]
