"""Measured acceptance of a drafter, compared with what its certificates guarantee."""
