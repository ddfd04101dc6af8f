"""What is wrong with a server."""

from __future__ import annotations

from redis.exceptions import ConnectionError


class WrongServer(ConnectionError):
    """The server that answers is of another kind than the broker URL says. Connecting again would not help:
    the URL has to be changed."""


class NotThePrimary(ConnectionError):
    """The server that answers is a replica, or has just become one. Nothing was done."""
