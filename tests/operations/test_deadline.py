"""A time after which an operation ends."""

from __future__ import annotations

import time

import pytest
from celery import Celery

from kombu_redisdelay.operations.messages import Messages
from kombu_redisdelay.operations.viewers import TookTooLongError, at_most, check_deadline
from tests.operations.kit import send


def test_blocks_in_blocks() -> None:
    check_deadline()
    with at_most(60):
        with pytest.raises(TookTooLongError), at_most(0):
            check_deadline()
        check_deadline()
    with at_most(0):
        with at_most(60), pytest.raises(TookTooLongError):
            check_deadline()
        with at_most(None):
            check_deadline()


@pytest.mark.once
def test_it_ends_between_two_steps(app: Celery, messages: Messages) -> None:
    send(app, *(f"{number}" for number in range(3000)))
    found = messages.select()
    with at_most(0.5):
        next(found)
        time.sleep(0.6)
        with pytest.raises(TookTooLongError):
            list(found)
    # The connection can be used as before.
    assert messages.count() == 3000
