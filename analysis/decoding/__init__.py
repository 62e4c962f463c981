"""Speculative decoding: the laws of verification, its metrics, and its speed."""
