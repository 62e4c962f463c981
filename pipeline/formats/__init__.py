"""File formats of other projects."""
