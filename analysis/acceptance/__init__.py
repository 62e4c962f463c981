"""Measured acceptance of a drafter, compared with its certificates."""
