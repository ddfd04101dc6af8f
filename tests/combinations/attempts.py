"""How the tries of a task are told apart: they have one id."""

from __future__ import annotations

#: The event that Celery could not publish the next try of a task, or was not told that it is published.
UNPUBLISHED = "unpublished"

_SIGN = "+"


def attempt(id: str, retries: int) -> str:
    """The name of a try: the first one has the id."""
    return f"{id}{_SIGN}{retries}" if retries else id


def first(attempt: str) -> str:
    """The id of a try."""
    return attempt.partition(_SIGN)[0]
