"""Pure Python, without any server."""
