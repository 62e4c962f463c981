"""Answers and logs that engines wrote, read from their files."""
