"""The configuration: composed, checked, turned into rules and decoding methods."""
