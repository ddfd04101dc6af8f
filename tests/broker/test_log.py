"""What the log says of messages that had bad luck: which they were, and whose."""

from __future__ import annotations

import json
import os
from socket import gethostname

import pytest

from kombu_redisdelay.broker.message import MOST_NAMED, task_and_id, which
from kombu_redisdelay.broker.processes import new_consumer
from tests.broker.rig import Rig, taken


def _task(id: str, name: str = "shop.close", body: str = "") -> str:
    """As Celery writes it."""
    headers = {"lang": "py", "task": name, "id": id, "root_id": "root"}
    return json.dumps({"body": body, "headers": headers, "properties": {"delivery_tag": id}})


def test_what_was_recovered_and_from_whom(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    name = new_consumer()
    rig.put("q", *(_task(f"id-{number}") for number in range(MOST_NAMED + 2)))
    taken(rig.consumer(name), "q")
    rig.end_lease("q", name)
    assert rig.recover("q") == MOST_NAMED + 2
    [line] = [record.getMessage() for record in caplog.records if "Recovered" in record.getMessage()]
    assert line.startswith(
        f"Recovered {MOST_NAMED + 2} message(s) of queue 'q' from process {os.getpid()} on "
    )
    assert f"on {gethostname()} (consumer {name!r}), because its lease has ended: shop.close[id-" in line
    assert line.count("shop.close[id-") == MOST_NAMED
    assert line.endswith(" and 2 more")


def test_what_has_reached_the_delivery_limit(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.put("q", _task("of-a-callback"))
    [delivery] = taken(rig.consumer(), "q")
    assert rig.consumer(delivery_limit=1).requeue("q", delivery.tag)
    assert caplog.messages[-1].endswith("are now dead letters: shop.close[of-a-callback]")
    rig.put("q", _task("lost"))
    taken(rig.consumer(), "q")
    rig.end_lease("q")
    rig.recover("q", rig.recoverer(delivery_limit=1))
    assert any(line.endswith("are now dead letters: shop.close[lost]") for line in caplog.messages)
    rig.put("q", _task("later"))
    [delivery] = taken(rig.consumer(), "q")
    assert rig.consumer(delivery_limit=1).requeue("q", delivery.tag, 1000)
    assert caplog.messages[-1].endswith("are now dead letters: shop.close[later]")


def test_a_schedule_that_was_damaged(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.client.hset(rig.store.keys("q").messages, "id", f"0:{_task('id')}")
    rig.mend("q")
    assert caplog.messages[-1].endswith("had no due time: dead letters now: shop.close[id]")


def test_what_has_no_id_is_only_counted(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.put("q", "{}", "nonsense", _task("id"))
    taken(rig.consumer(), "q")
    rig.end_lease("q")
    rig.recover("q")
    assert any(line.endswith(": shop.close[id] and 2 more") for line in caplog.messages)


def test_a_body_cannot_pretend_to_be_headers(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.put("q", _task("true", body='"headers": {"task": "false", "id": "false"}'))
    taken(rig.consumer(), "q")
    rig.end_lease("q")
    rig.recover("q")
    assert any(line.endswith(": shop.close[true]") for line in caplog.messages)


@pytest.mark.parametrize(
    ("brief", "name"),
    [
        (b'"headers": {"task": "a.b", "id": "1"', "a.b[1]"),
        (b'"headers": {"id": "1", "task": "a.b"', "a.b[1]"),
        (b'"headers": {"id": "1", "task": "cut o', "[1]"),
        (b'"headers": {"task": "a.b", "id": "cut o', ""),
        (b'"headers": {"id": "a\\"b", "task": "\\u0416"}', 'Ж[a"b]'),
        (b'"headers": {"id": 1}', ""),
        (b'"headers": {"id": "\xff"}', ""),
        (b"", ""),
    ],
)
def test_the_brief_of_a_message(brief: bytes, name: str) -> None:
    assert task_and_id(brief) == name


def test_names_are_printable() -> None:
    assert which(["\x1b[2J", ""], 1) == ": \\x1b[2J"
