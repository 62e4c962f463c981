"""Inference engines: one module for each, what they count, and their pages of /metrics.

Room `answers` reads the files of answers and logs that they write, `speed` compares runs, `asking`
sends requests to servers. `pipeline.engine_checks` holds runs against a study.
"""
