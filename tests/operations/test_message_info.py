"""`MessageInfo`: what is told of a message in each state."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from socket import gethostname

import pytest
from celery import Celery

from kombu_redisdelay import MessageInfo, Messages, Selection
from tests.failed import SECRET
from tests.finished import OF_MESSAGES
from tests.operations.kit import (
    GARBAGE,
    GARBAGE_ID,
    hold,
    ids,
    in_each_state,
    ready,
    scheduled,
    send,
)
from tests.transport.kit import Site, in_seconds, publish
from tools.harness.process import wait_until


class TestAMessage:
    def test_in_each_state(self, site: Site, app: Celery, messages: Messages) -> None:
        before = in_seconds(-0.001)
        in_each_state(site, app)
        found = list(messages.select())
        assert ids(found) == [message.state for message in found] == list(OF_MESSAGES)
        assert [messages.get(id) for id in OF_MESSAGES] == found
        assert [messages.count(Selection(state=state)) for state in OF_MESSAGES] == [1] * len(OF_MESSAGES)
        assert messages.count() == messages.count(Selection(queue="celery")) == len(OF_MESSAGES)
        for message in found:
            assert isinstance(message, MessageInfo)
            assert (message.queue, message.task, message.kwargs) == (
                "celery",
                "shop.close",
                "{'really': True}",
            )
            assert message.args == f"[{message.id!r}]"
            assert message.arguments() == ([message.id], {"really": True})
            assert message.headers["id"] == message.id
            assert message.size == len(message.payload)
            assert message.id.encode() in message.payload
            assert message.moment is not None
            assert message.moment.tzinfo is timezone.utc
        waits, is_ready, unacked, failed, letter, *_ = found
        assert waits.due is not None
        assert in_seconds(590) <= waits.due <= in_seconds(600)
        assert is_ready.position == 0
        assert (unacked.host, unacked.pid, unacked.lost) == (gethostname(), os.getpid(), "")
        for message in found[1:]:
            assert message.since is not None
            assert before <= message.since <= in_seconds(0)
        assert (letter.reason, letter.failures) == ("rejected", 1)
        assert (failed.reason, failed.error, failed.tries, failed.failures) == ("KeyError", "KeyError", 2, 0)
        assert (failed.text, failed.worker) == (SECRET, "celery@w")
        assert SECRET in failed.traceback
        assert failed.started == datetime(1970, 1, 1, 0, 0, 1, 500_000, timezone.utc)
        of_state = ("due", "since", "position", "host", "pid", "tries", "started")
        each = (waits, is_ready, unacked, failed, letter)
        has = [{name for name in of_state if getattr(message, name) is not None} for message in each]
        of_failed = {"since", "tries", "started"}
        assert has == [{"due"}, {"since", "position"}, {"since", "host", "pid"}, of_failed, {"since"}]

    def test_when_it_expires(self, app: Celery, messages: Messages) -> None:
        send(app, "never", countdown=60)
        send(app, "later", countdown=60, expires=3600)
        found = {message.id: message.expires for message in messages.select()}
        assert found["never"] is None
        assert found["later"] is not None
        assert in_seconds(3500) <= found["later"] <= in_seconds(3600)

    def test_what_it_was_published_with(self, app: Celery, messages: Messages) -> None:
        send(app, "order-42", countdown=60, priority=5, headers={"customer": "Ada"})
        message = messages.get("order-42")
        assert message is not None
        assert (message.priority, message.headers["customer"]) == (5, "Ada")

    @pytest.mark.parametrize("name", ["message_id", "correlation_id"])
    @pytest.mark.parametrize("delay_ms", [0, 60_000])
    def test_of_plain_kombu(self, site: Site, messages: Messages, name: str, delay_ms: int) -> None:
        publish(site.channel(), "later", headers={"x-delay": delay_ms}, **{name: "mine"})
        publish(site.channel(), "a note of the queue", headers={"x-delay": 60_000})
        message = messages.get("mine")
        assert message is not None
        assert (message.task, message.args, message.kwargs, message.priority) == (None, "", "", 0)

    def test_it_is_due_at_its_eta_to_the_microsecond(self, app: Celery, messages: Messages) -> None:
        eta = in_seconds(60).replace(microsecond=123_457)
        app.send_task("shop.close", eta=eta, task_id="a")
        [message] = messages.select(scheduled(after=eta))
        assert message.due == eta
        assert (messages.count(scheduled(after=eta)), messages.count(scheduled(before=eta))) == (1, 0)

    def test_failed_deliveries_are_counted(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a")
        site.channel().basic_get("celery").requeue()
        [found] = messages.select(ready())
        assert (found.id, found.failures) == ("a", 1)

    def test_of_a_worker_whose_lease_has_ended(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a")
        _ = hold(site, "a")

        def has_ended() -> bool:
            site.end_leases("celery")
            [message] = messages.select(Selection(state="unacked"))
            return message.lost == "lease ended"

        # Its heartbeat may renew it just now, and then not for a third of the lease.
        wait_until(has_ended, 30, "the lease lasts")

    def test_that_is_no_message(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a", countdown=600)
        site.redis.rpush("celery", GARBAGE, b"other", GARBAGE)
        first, other, second = messages.select(ready())
        assert first.id == second.id == GARBAGE_ID
        assert (first.payload, first.task, first.headers, first.position) == (GARBAGE, None, {}, 0)
        assert other.payload == b"other"
        assert ids(messages.select(Selection(ids=[GARBAGE_ID]))) == [GARBAGE_ID] * 2
        assert messages.cancel(ids=[GARBAGE_ID])
        assert ids(messages.select(ready())) == [other.id]

    def test_that_is_no_message_and_scheduled(self, site: Site, messages: Messages) -> None:
        site.redis.zadd("redisdelay:known-queues", {"q": 0})
        for id, data in {"a": b"0:\xff", "b": b"[]", "c": b'0:{"headers": 1}', "d": b""}.items():
            site.redis.hset("redisdelay:{q}:messages", id, data)
            site.redis.zadd("redisdelay:{q}:schedule", {id: 1e18})
        found = list(messages.select())
        assert ids(found) == list("abcd")
        assert {message.task for message in found} == {None}
        # The time that is nearest to a due time that no datetime can hold.
        assert found[0].due == datetime.max.replace(microsecond=999_000, tzinfo=timezone.utc)
        assert messages.deliver_now(ids=["a"])
        assert messages.reschedule(ids=["c"], countdown=60)
        assert messages.cancel(scheduled(ids=list("abcd"))).by_id == {"a": 0, "b": 1, "c": 1, "d": 1}
