"""Doing harm for a while, and an account of what it did: ``python -m tests.chaos``."""
