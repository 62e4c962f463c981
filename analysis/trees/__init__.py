"""Draft trees: shapes, the tokens they are expected to emit, bounds on them."""
