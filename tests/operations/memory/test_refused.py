"""What a user may not look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from kombu_redisdelay import Messages
from kombu_redisdelay.operations.memory_report import remarks
from tests.operations.kit import send
from tests.operations.memory.kit import NEARLY, of_state
from tests.permissions import allow, documented_rules
from tests.transport.kit import Site
from tools.harness.redis_server import RedisServer


class TestForbidden:
    @pytest.fixture
    def limited(self, server: RedisServer) -> Iterator[Messages]:
        rules = [rule for rule in documented_rules("celery") if rule not in ("+memory|usage", "+hrandfield")]
        app = Celery("limited", broker=allow(server, *rules), set_as_current=False)
        with Messages(app) as messages:
            yield messages
        app.close()

    def test_it_is_about_the_number_times_the_mean(
        self, app: Celery, limited: Messages, messages: Messages
    ) -> None:
        send(app, *map(str, range(100)))
        exact, found = messages.memory("celery"), limited.memory("celery")
        [state] = [each for each in found.states if each.state == "ready"]
        assert state.is_about
        assert state.bytes == pytest.approx(of_state(exact, "ready"), rel=NEARLY)
        assert not any(each.is_about for each in exact.states)

    def test_many_scheduled_ones_cannot_be_read(
        self, app: Celery, limited: Messages, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kombu_redisdelay.operations.memory.MESSAGES", 10)
        monkeypatch.setattr("kombu_redisdelay.operations.memory.LEAST_MESSAGES", 10)
        send(app, *map(str, range(50)), countdown=60)
        found = limited.memory()
        assert any("hrandfield" in what.lower() for what in found.not_looked_at)
        assert any("rest of the database" in what for what in found.not_looked_at)
        [unseen] = found.tasks
        assert (unseen.kind, unseen.messages) == ("unseen", 50)
        # Nobody could look at them, but they are not nothing.
        assert unseen.bytes > 50 * 300
        assert not any("small state" in what for what in found.not_looked_at)


def test_queues_that_may_not_be_read_are_named(server: RedisServer, app: Celery) -> None:
    send(app, "a")
    send(app, "b", queue="secret")
    send(app, "c", queue="half")
    # Of one queue, all keys are forbidden; of another, only the list.
    rules = [*documented_rules("celery"), "~redisdelay:{half}:*"]
    limited = Celery("limited", broker=allow(server, *rules), set_as_current=False)
    with Messages(limited) as messages:
        found = messages.memory()
        assert [each.queue for each in messages.memory("secret").unread] == ["secret"]
    limited.close()
    assert {each.queue for each in found.tasks} == {"celery"}
    errors = {each.queue: each.error for each in found.unread}
    assert set(errors) == {"secret", "half"}
    assert all("permission" in error for error in errors.values())
    [said] = [line for line in remarks(found) if line.startswith("Could not be read")]
    assert "queue 'secret' (NOPERM: this user has no permission to read it)" in said


def test_no_queue_may_be_read(server: RedisServer, app: Celery) -> None:
    send(app, "b", queue="secret")
    rules = [*documented_rules("other"), "~redisdelay:{celery}:*"]
    limited = Celery("limited", broker=allow(server, *rules), set_as_current=False)
    with Messages(limited) as messages:
        found = messages.memory()
    limited.close()
    assert {each.queue for each in found.unread} == {"celery", "secret"}
    assert found.servers


def test_without_a_history_that_can_be_read_nobody_knows_when_it_is_full(
    site: Site, app: Celery, messages: Messages
) -> None:
    send(app, "a")
    site.redis.set(site.keys("celery").history, "of another program")
    found = messages.memory()
    assert [each.queue for each in found.tasks] == ["celery"]
    assert found.servers[0].bytes_per_hour is None
