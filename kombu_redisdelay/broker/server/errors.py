"""What is wrong with a server, and stays wrong."""

from __future__ import annotations

from redis.exceptions import ConnectionError


class WrongServer(ConnectionError):
    """The server that answers is of another kind than the broker URL says. Connecting again would be in vain:
    the URL has to be changed."""
