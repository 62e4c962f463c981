"""Draft trees: shapes, expected tokens per call, and bounds on them."""
