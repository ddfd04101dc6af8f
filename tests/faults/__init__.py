"""Harm to connections, to Redis and to processes, and what must come of it."""
