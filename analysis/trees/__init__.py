"""Draft trees: shapes, expected tokens a call, and bounds on them."""
