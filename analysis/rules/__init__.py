"""Acceptance rules: which drafted tokens are accepted, given the target's distribution."""
