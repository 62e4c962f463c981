"""Speculative decoding: verification schemes, metrics, and speed."""
