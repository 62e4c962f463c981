"""Speculative decoding of one text: drafters, verifiers, the loop, and the passes of the models."""
