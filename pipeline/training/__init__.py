"""Trains the head that the repository ships.

Commands: ``text`` lets the target write training text, ``drafter`` trains a head on it.
"""
