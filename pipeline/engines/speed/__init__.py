"""Runs of an engine beside one without drafts: speed, its costs, and the draft length to set."""
