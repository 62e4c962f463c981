"""Samples that engines wrote, and what is tested against the engines themselves."""
