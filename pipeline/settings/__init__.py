"""The configuration: composed, checked, and turned into rules and methods."""
