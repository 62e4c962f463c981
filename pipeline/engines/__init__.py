"""Inference engines: requests to them, and the files that they write."""
