"""Heads on a target: their layer, what drafts with it, and their files."""
