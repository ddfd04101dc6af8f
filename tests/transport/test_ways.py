"""The three ways of a message: it is published, taken and acked. They go down to the server, or up from it,
as docs/architecture.rst draws them, and no function of the broker calls one of the transport."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import celery
import pytest
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer

import kombu_redisdelay
from tests.transport.kit import Inbox, Site, drain, publish

PACKAGE = os.path.dirname(kombu_redisdelay.__file__) + os.sep
PAGE = Path(__file__).parents[2] / "docs" / "architecture.rst"

pytestmark = pytest.mark.one_server

TASK = {"task": "t", "id": "id"}
#: What is published -> headers, queue and exchange.
KINDS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a message": ({}, "q", ""),
    "a task": ({**TASK, "eta": None, "expires": None}, "q", ""),
    "for later": ({**TASK, "eta": "2099-01-01T00:00:00+00:00"}, "q", ""),
    "with a fair key": ({**TASK, "x-key": "tenant"}, "q", ""),
    "through an exchange": (TASK, "bound", "e"),
    "to a queue that expires": (TASK, "expiring", ""),
}
#: Those that ask nothing of the broker but to be delivered.
PLAIN = ("a message", "a task", "for later", "with a fair key")


class Step(NamedTuple):
    """A function that was called.

    Attributes:
        file: as in ``transport/qos.py``.
        by: the file of the nearest caller in the package.
    """

    file: str
    function: str
    by: str | None

    @property
    def wing(self) -> str:
        return self.file.partition(os.sep)[0]

    @property
    def leads_up(self) -> bool:
        return self.wing == "transport" and self.by is not None and self.by.startswith("broker")


def file_of(frame: FrameType | None) -> str | None:
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            return name[len(PACKAGE) :]
        frame = frame.f_back
    return None


@contextmanager
def traced() -> Iterator[list[Step]]:
    """Notes the functions of the package that this thread calls. A lambda belongs to the function that has
    it."""
    steps: list[Step] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            steps.append(Step(code.co_filename[len(PACKAGE) :], code.co_name, file_of(frame.f_back)))

    # What is left of other tests is not part of a way.
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        yield steps
    finally:
        sys.setprofile(None)
        gc.enable()


def turns(steps: list[Step]) -> int:
    """How often the way leads from the broker back to the transport."""
    wings = [step.wing for step in steps if step.wing in ("broker", "transport")]
    return sum(pair == ("broker", "transport") for pair in pairwise(wings))


def drawn(title: str) -> list[tuple[str, str]]:
    """The files and functions of a way, as the page has them."""
    text = PAGE.read_text().partition(f"**{title}**")[2].partition("\n**")[0].partition("\n\nA message on")[0]
    functions = re.findall(r"``([\w/]+\.py):([\w.]+)``", text)
    return [(file.replace("/", os.sep), name.rpartition(".")[2]) for file, name in functions]


def check_drawn(title: str, steps: list[Step]) -> None:
    """Check that the way on the page is one that was gone."""
    left = iter([(step.file, step.function) for step in steps])
    missing = [each for each in drawn(title) if each not in left]
    assert len(drawn(title)) > 3
    assert missing == []


@pytest.fixture
def channel(site: Site) -> Any:
    channel = site.channel()
    expiring = Queue("expiring", queue_arguments={"x-expires": 3_600_000})
    for queue in (Queue("q"), Queue("bound", Exchange("e"), "bound"), expiring):
        queue(channel).declare()
    return channel


def published(channel: Any, headers: dict[str, Any], key: str, exchange: str = "") -> list[Step]:
    producer = Producer(channel)
    send: Callable[[], Any] = lambda: producer.publish(  # noqa: E731
        "", headers=dict(headers), routing_key=key, exchange=exchange
    )
    # The route is looked up, and the queue is noted.
    send()
    with traced() as steps:
        send()
    return steps


@pytest.mark.parametrize("kind", KINDS)
def test_publishing_goes_down(channel: Any, kind: str) -> None:
    """It comes back up once at most: when the broker has read the message."""
    steps = published(channel, *KINDS[kind])
    assert [step for step in steps if step.leads_up] == []
    assert turns(steps) == (0 if kind in PLAIN else 1)


def test_publishing_is_drawn(channel: Any) -> None:
    check_drawn("Published by a plan", published(channel, *KINDS["a task"]))
    check_drawn("Published", published(channel, *KINDS["to a queue that expires"]))


@pytest.mark.parametrize("headers", [TASK, {**TASK, "eta": "2099-01-01T00:00:00+00:00"}])
def test_publishing_with_a_unique_key_goes_down(channel: Any, headers: dict[str, Any]) -> None:
    """It comes back up once more: Celery is told what became of it."""
    assert celery
    steps = published(channel, {**headers, "x-unique": "a", "x-unique-while": "latest"}, "q")
    assert [step for step in steps if step.leads_up] == []
    assert turns(steps) == 2
    assert "_tell" in [step.function for step in steps]


def test_a_batch_goes_down(channel: Any) -> None:
    """It comes back up for each message that was read, and once in the end."""
    batch = channel.create_publish_batch(100)
    with traced() as steps:
        for _ in range(10):
            message = channel.prepare_message("", headers=dict(TASK), properties={"delivery_info": {}})
            batch.publish(message, exchange="", routing_key="q")
        batch.flush()
    assert [step for step in steps if step.leads_up] == []
    assert turns(steps) <= 2 * 10 + 3


def test_a_taken_message_goes_up_and_its_ack_down(site: Site, channel: Any) -> None:
    callback: list[int] = []
    acks: list[list[Step]] = []

    def receive(message: Any) -> None:
        callback.append(len(steps))
        with traced() as ack:
            message.ack()
        acks.append(ack)
        sys.setprofile(None)

    inbox = Inbox(channel, "q", on_message=receive)
    publish(channel, "m")
    with traced() as steps:
        drain(channel.connection.client, lambda: len(inbox) == 1)
    steps = steps[: callback[0]]
    replied = max(number for number, step in enumerate(steps) if step[:2] == drawn("Taken")[0])
    assert [step for step in steps if step.leads_up] == []
    # With the reply, and when the broker has read the message. The mover is told meanwhile that this channel
    # is at work.
    way = [step for step in steps[replied:] if not step.file.endswith("mover.py")]
    assert turns(way) == 2
    check_drawn("Taken", way)
    [ack] = acks
    assert [step for step in ack if step.leads_up] == []
    # When the ack is written.
    assert turns(ack) == 1
    check_drawn("Acked", ack)
