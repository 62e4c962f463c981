"""Draft trees: shapes, the tokens they are expected to emit, bounds, laws of verification."""
