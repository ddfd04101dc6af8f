"""`Messages.count` and `Messages.tally`, and time spans."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay import Messages, Selection
from tests.finished import OF_MESSAGES
from tests.operations.kit import GARBAGE, GARBAGE_ID, ids, in_each_state, ready, scheduled, send
from tests.transport.kit import Site, in_seconds


class TestTimes:
    def test_of_each_state(self, site: Site, app: Celery, messages: Messages) -> None:
        in_each_state(site, app)
        for message in list(messages.select()):
            moment, state = message.moment, message.state
            assert moment is not None
            just_after = moment + timedelta(milliseconds=1)

            def found(state: str = state, **times: Any) -> list[str]:
                chosen = Selection(state=state, **times)
                found = ids(messages.select(chosen))
                assert messages.count(chosen) == len(found)
                return found

            assert found(after=moment) == found(before=just_after) == [message.id]
            assert found(before=moment) == found(after=just_after) == []
            assert found(after=moment.replace(tzinfo=None), before=just_after) == [message.id]
            elsewhere = moment.astimezone(timezone(timedelta(hours=5)))
            assert found(after=elsewhere, before=just_after.isoformat()) == [message.id]

    def test_distances_are_ahead_or_back(self, site: Site, app: Celery, messages: Messages) -> None:
        in_each_state(site, app)
        for state in OF_MESSAGES:
            for near, far in (("1m", "20m"), (timedelta(minutes=1), timedelta(minutes=20))):
                is_ahead = state == "scheduled"
                assert messages.count(Selection(state=state, before=near)) == 0
                assert messages.count(Selection(state=state, before=far)) == int(is_ahead)
                assert messages.count(Selection(state=state, after=near)) == 1
                assert messages.count(Selection(state=state, after=far)) == int(not is_ahead)

    def test_what_has_no_known_time_is_left_out(self, site: Site, messages: Messages) -> None:
        site.redis.lpush("celery", GARBAGE)
        assert ids(messages.select(ready(queue="celery"))) == [GARBAGE_ID]
        assert ids(messages.select(ready(queue="celery", before=in_seconds(10_000)))) == []
        assert ids(messages.select(ready(queue="celery", after=in_seconds(-10_000)))) == []

    @pytest.mark.parametrize("name", ["before", "after"])
    @pytest.mark.parametrize("wrong", [5, "soon", b"10m", True])
    def test_that_is_none_is_a_value_error(self, name: str, wrong: Any) -> None:
        with pytest.raises(ValueError, match=name):
            Selection(**{name: wrong})

    def test_each_state_has_its_own(self, messages: Messages) -> None:
        for chosen in (Selection(before="10m"), Selection(after="10m", state=["scheduled", "ready"])):
            for method in (messages.count, messages.select, messages.cancel, messages.tally):
                with pytest.raises(ValueError, match="need one state"):
                    method(chosen)
        # A verb that knows one state needs no other.
        assert messages.deliver_now(Selection(before="10m")).count == 0


class TestCounting:
    def test_says_how_far_it_looked(self, app: Celery, messages: Messages) -> None:
        send(app, *map(str, range(30)))
        send(app, "other", task="mail.send")
        count = messages.count(ready())
        assert (count, count.is_exact, count.looked_at) == (31, True, 0)
        count = messages.count(ready(task="shop.*"))
        # A script leaves out what has not the text of the filter, without decoding it.
        assert (count, count.is_exact, count.looked_at) == (30, True, 30)
        count = messages.count(ready(task="shop.*"), at_most=10)
        assert (count, count.is_exact, count.looked_at) == (10, False, 10)
        assert messages.count(ready(task="shop.*"), at_most=31).is_exact

    def test_tally(self, site: Site, app: Celery, messages: Messages) -> None:
        send(app, "a", "b", priority=3)
        send(app, "c", task="mail.send", countdown=60)
        site.redis.lpush("celery", GARBAGE)
        assert messages.tally() == {"shop.close": 2, "mail.send": 1, None: 1}
        assert messages.tally(by="priority") == {0: 2, 3: 2}
        both = messages.tally(by=("task", "priority"))
        assert both == Counter({("shop.close", 3): 2, ("mail.send", 0): 1, (None, 0): 1})
        assert messages.tally(scheduled(), by=["task"]) == {("mail.send",): 1}
        with pytest.raises(ValueError, match="a message has no 'colour'"):
            messages.tally(by="colour")
