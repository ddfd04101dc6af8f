"""What a dead letter says of why it was rejected, and by whom."""

from __future__ import annotations

import pytest

from kombu_redisdelay import Messages, Selection
from kombu_redisdelay.broker.processes import new_consumer, process_of, worker_of
from kombu_redisdelay.transport.tasks import worker_name
from tests.transport.kit import Inbox, Site, drain, publish

# What a message is rejected for is the same on a cluster.
pytestmark = pytest.mark.one_server


class Hostile(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def reason(site: Site, error: BaseException | None) -> str:
    """That of a message whose rejection handles *error*."""
    channel = site.channel(dead_letter=True)
    publish(channel, "a")
    inbox = Inbox(channel, "q")
    drain(channel.connection.client, lambda: len(inbox))
    [message] = inbox
    if error is None:
        message.reject()
    else:
        try:
            raise error
        except BaseException:
            message.reject()
    with Messages(site.url) as queues:
        [letter] = queues.select(Selection(queue="q", state="dead"))
    return letter.reason


def test_nothing_is_known(site: Site) -> None:
    assert reason(site, None) == "rejected"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("no such\norder \x1b[31m"), "rejected: ValueError: no such order \\x1b[31m"),
        (KeyError(), "rejected: KeyError"),
        (Hostile(), "rejected: Hostile"),
        (ValueError("x" * 5000), f"rejected: {'ValueError: ' + 'x' * 188}..."),
        (ValueError("\udcff"), "rejected: ValueError: \\udcff"),
    ],
)
def test_the_exception_that_is_being_handled(site: Site, error: BaseException, expected: str) -> None:
    assert reason(site, error) == expected


def test_a_consumer_says_which_worker_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery.app.trace._localized", [{}, set(), "celery@web-1"])
    name = new_consumer(worker_name())
    assert worker_of(name) == "celery@web-1"
    assert process_of(name) == process_of(new_consumer())
    monkeypatch.setattr("celery.app.trace._localized", [])
    assert (worker_name(), worker_of(new_consumer())) == ("", None)


@pytest.mark.parametrize("worker", ["a:b/c {d}\n", "ü" * 200])
def test_a_strange_name_of_a_worker(worker: str) -> None:
    found = worker_of(new_consumer(worker))
    assert found is not None
    assert set(found) <= set("abcd_")
    assert len(found) <= 100
