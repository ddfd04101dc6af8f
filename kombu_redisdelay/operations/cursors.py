"""Writes where a page of messages begins into an address, and reads it."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode

from kombu_redisdelay.operations.readers import Cursor
from kombu_redisdelay.operations.states import State


def written(state: State, newest_first: bool, cursor: Cursor) -> str:
    """*cursor* as a text that can be part of an address."""
    text = json.dumps([state.name, newest_first, *cursor])
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read(text: str, state: State, newest_first: bool) -> Cursor:
    """The cursor that *text* is, for a list in this state and order.

    Raises:
        ValueError: it is none.
    """
    try:
        padded = text + "=" * (-len(text) % 4)
        of_state, is_newest_first, *values = json.loads(urlsafe_b64decode(padded.encode("ascii")))
        if (of_state, is_newest_first) == (state.name, newest_first):
            return state.reader.cursor(values)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    raise not_of_this_list()


def not_of_this_list() -> ValueError:
    return ValueError("this page is not of this list")
