"""Training of a drafter for one target, on text that the target wrote itself."""
