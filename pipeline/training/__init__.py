"""Trains what the repository ships: heads that draft for a target, and the embedded models.

Commands: ``text`` lets the target write training text, ``drafter`` trains a head on it, ``mini``
makes the embedded models.
"""
