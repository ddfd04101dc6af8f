"""``python -m demo``: countdown tasks wait in Redis, a worker is killed, nothing is lost."""
