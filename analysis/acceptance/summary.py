"""The name that notebooks of version 1.0 import `margins` by."""

from .drafter import margins as margins
