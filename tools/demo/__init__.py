"""``python -m tools.demo``: countdown tasks wait in Redis, a worker is killed, nothing is lost."""
