"""Heads on a target: their layer, their drafter, and their files."""
