"""Results in ``rpc://``: whom they reach, and how long they stay."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic
from typing import Any

import pytest
from celery import Celery, group, states
from celery.app.task import Context
from celery.backends.rpc import RPCBackend
from celery.utils.nodenames import anon_nodename
from kombu import pools
from kombu.entity import Exchange, Queue
from kombu.utils.uuid import uuid

from kombu_redisdelay import Unique, batch
from kombu_redisdelay.broker.unique import UNIQUE_HEADER
from kombu_redisdelay.rpc_results import is_rpc, let_results_expire
from kombu_redisdelay.transport.publishing import PublishedTag
from tests.transport.kit import Site, drain, publish
from tools.harness.process import wait_until

#: Seconds that what is not right would take for ever.
PATIENCE = 30


@contextmanager
def rpc_app(url: str, **settings: Any) -> Iterator[Celery]:
    app = Celery("rpc", broker=url, backend="rpc://", set_as_current=True)
    app.conf.update(settings)
    # Its producers are kombu's, which outlive it.
    pools.reset()
    yield app
    listener = app.backend.result_consumer
    if listener._consumer is not None:
        listener.stop()
    app.close()


@pytest.fixture
def app(single_site: Site) -> Iterator[Celery]:
    # With one connection, who waits for another one waits for ever.
    with rpc_app(single_site.url, broker_pool_limit=1) as app:
        yield app


@pytest.fixture
def once(app: Celery) -> Any:
    @app.task(shared=False, name="once", base=Unique, unique="account:{account}")
    def once(account: int) -> None:
        pass

    return once


@pytest.mark.timeout(PATIENCE)
class TestWhatIsDropped:
    def test_a_member_of_a_group(self, once: Any) -> None:
        once.delay(1)
        result = group(once.s(1), once.s(2)).apply_async()
        assert [member.state for member in result] == [states.REVOKED, states.PENDING]

    @pytest.mark.parametrize("is_together", [False, True], ids=["", "batch"])
    def test_with_an_id_of_its_caller(self, app: Celery, once: Any, is_together: bool) -> None:
        with batch(app) if is_together else nullcontext():
            once.delay(1)
            once.apply_async((1,), task_id="known")
        with pytest.raises(Exception, match=r"dropped: task .* has the same key"):
            app.AsyncResult("known").get(PATIENCE)

    @pytest.mark.parametrize("is_together", [False, True], ids=["", "batch"])
    def test_by_hand(self, app: Celery, once: Any, is_together: bool) -> None:
        once.delay(1)
        with batch(app) if is_together else nullcontext():
            result = app.send_task("once", (1,), headers={UNIQUE_HEADER: "account:1"})
        assert result.state == states.REVOKED

    def test_for_another_process(self, app: Celery, once: Any, single_site: Site) -> None:
        once.delay(1)
        once.apply_async((1,), task_id="known", reply_to="another")
        message = single_site.channel().basic_get("another")
        assert message.payload["status"] == states.REVOKED
        assert message.properties["correlation_id"] == message.payload["task_id"] == "known"
        assert single_site.ready(app.thread_oid) == 0


def test_the_log_says_once_that_it_needs_a_shared_backend(
    app: Celery, once: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(shared=False, name="untold", base=Unique, unique="one", ignore_result=True)
    def untold() -> None:
        pass

    with caplog.at_level(logging.WARNING, "kombu_redisdelay"):
        for _ in range(2):
            once.delay(1)
            untold.delay()
    assert [record.message.partition(",")[0] for record in caplog.records] == ["Task once has a unique key"]


def store(app: Celery, id: str, reply_to: str, result: Any = "done") -> None:
    """As a worker does."""
    let_results_expire()
    request = Context(id=id, reply_to=reply_to, correlation_id=id)
    app.backend.store_result(id, result, states.SUCCESS, request=request)


class TestHowLongTheyStay:
    def test_each_gives_its_list_a_new_time_to_live(self, site: Site) -> None:
        with rpc_app(site.url, result_expires=600) as app:
            key, client = site.keys("gone").ready, site.client_of("gone")
            store(app, "first", "gone")
            assert 500_000 < client.pttl(key) <= 600_000
            client.pexpire(key, 60_000)
            store(app, "second", "gone")
            assert 500_000 < client.pttl(key) <= 600_000
            assert site.ready("gone") == 2

    def test_for_ever_if_results_do_not_expire(self, single_site: Site) -> None:
        with rpc_app(single_site.url, result_expires=None) as app:
            store(app, "first", "gone")
            assert single_site.redis.pttl("gone") == -1

    def test_other_answers_stay(self, single_site: Site) -> None:
        """What another program answers is not ours to remove."""
        publish(single_site.channel(), "answer", queue="theirs", correlation_id="id")
        publish(single_site.channel(), "task", queue="theirs", headers={"task": "t", "id": "id"})
        assert single_site.redis.pttl("theirs") == -1

    def test_a_living_client_that_reads_slowly_loses_nothing(self, single_site: Site) -> None:
        """Its heartbeat keeps the list for as long as it waits for any result."""
        with rpc_app(single_site.url, result_expires=1) as app:
            names = [f"id{number}" for number in range(3)]
            app.send_task("any", task_id="first")
            store(app, "first", app.thread_oid)
            assert app.AsyncResult("first").get(PATIENCE) == "done"
            for name in names:
                store(app, name, app.thread_oid)
            assert 0 < single_site.redis.pttl(app.thread_oid) <= 1000
            # The third of what it would live if nobody was there.
            until = monotonic() + 3
            wait_until(lambda: monotonic() > until, PATIENCE, "later than they live by themselves")
            assert [app.AsyncResult(name).get(PATIENCE) for name in names] == ["done"] * 3


class TestEvents:
    """Monitors hear of the end of each task that Celery tells them of, and here nothing runs it."""

    @pytest.mark.parametrize("is_together", [False, True], ids=["", "batch"])
    @pytest.mark.parametrize("mode", ["waiting", "latest"])
    def test_what_was_dropped_or_replaced(self, single_site: Site, mode: str, is_together: bool) -> None:
        app = Celery("monitored", broker=single_site.url, backend="cache+memory://", set_as_current=True)
        app.conf.update(task_send_sent_event=True)

        kept = {"base": Unique, "unique": "one", "unique_while": mode, "acks_late": True}

        @app.task(shared=False, name="one", ignore_result=True, **kept)
        def one() -> None:
            pass

        by_hand = {"headers": {UNIQUE_HEADER: "one", "x-unique-while": mode}}
        seen = app.events.State()

        def ended() -> int:
            return sum(task.state == states.REVOKED for task in seen.tasks.values())

        with app.connection_for_read() as own:
            receiver = app.events.Receiver(own, handlers={"*": seen.event})
            with receiver.consumer_context() as (connection, *_):
                drain(connection, single_site.listeners)
                with batch(app) if is_together else nullcontext():
                    accepted = [one.delay() for _ in range(4)]
                    app.send_task("one", **by_hand)
                    app.send_task("one", ignore_result=True, **by_hand)
                holders = {result.id for result in accepted}
                assert len(holders) == (2 if mode == "latest" else 1)
                drain(connection, lambda: ended() == 6 - len(holders))
        waiting = {task.uuid for task in seen.tasks.values() if task.state == states.PENDING}
        assert waiting == holders
        assert len(seen.tasks) == 6
        app.close()


class TestNamesake:
    """What is said of a task that was dropped is never said of another one with its id."""

    @pytest.fixture
    def app(self, single_site: Site) -> Iterator[Celery]:
        app = Celery("namesake", broker=single_site.url, backend="cache+memory://", set_as_current=True)
        app.backend.client.cache.clear()
        yield app
        app.close()

    def send(self, app: Celery, id: str, key: str = "one", mode: str = "waiting", **options: Any) -> Any:
        headers = {UNIQUE_HEADER: key, "x-unique-while": mode}
        return app.send_task("any", task_id=id, headers=headers, **options)

    def take(self, site: Site) -> Any:
        message = site.channel().basic_get("celery")
        assert message is not None
        return message

    def test_that_runs(self, app: Celery, single_site: Site) -> None:
        self.send(app, "x", mode="latest")
        _ = self.take(single_site)
        self.send(app, "y", mode="latest")
        self.send(app, "x", mode="latest")
        assert app.AsyncResult("x").state == states.PENDING
        self.send(app, "z", mode="latest")
        assert app.AsyncResult("z").state == states.REVOKED

    def test_that_waits_with_another_key(self, app: Celery) -> None:
        self.send(app, "x", "another", countdown=60)
        self.send(app, "y", countdown=60)
        self.send(app, "x", countdown=90)
        assert app.AsyncResult("x").state == states.PENDING

    def test_that_waits_in_another_queue(self, app: Celery, single_site: Site) -> None:
        channel = single_site.channel()
        for name in ("one", "two"):
            Queue(name, Exchange("both"), routing_key="any")(channel).declare()
        self.send(app, "stranger", queue="one", countdown=60)
        self.send(app, "x", queue="two")
        # It takes the place of the stranger, and is dropped in favour of its namesake.
        self.send(app, "x", exchange="both", routing_key="any", countdown=30)
        assert app.AsyncResult("x").state == states.PENDING

    @pytest.mark.parametrize("was_published", [True, False])
    def test_that_was_taken_before_it_was_published_again(
        self, app: Celery, single_site: Site, was_published: bool
    ) -> None:
        """kombu does so when the reply was lost."""
        taken: list[Any] = []
        with app.producer_or_acquire() as producer:
            publishing = producer.channel.basic_publish

            def lose_the_reply(message: Any, *args: Any, **kwargs: Any) -> None:
                if was_published:
                    publishing(message, *args, **kwargs)
                    taken.append(self.take(single_site))
                else:
                    tag = producer.channel._next_delivery_tag()
                    message["properties"]["delivery_tag"] = tag
                    assert isinstance(tag, PublishedTag)
                producer.channel.basic_publish = publishing
                self.send(app, "y", producer=app.amqp.Producer(single_site.channel()))
                publishing(message, *args, **kwargs)

            producer.channel.basic_publish = lose_the_reply
            self.send(app, "x", producer=producer)
        assert app.AsyncResult("x").state == (states.PENDING if was_published else states.REVOKED)


class TestSeams:
    """Celery's seams: a test that fails here tells what Celery has moved."""

    def test_whom_a_result_goes_to(self) -> None:
        source = inspect.getsource(RPCBackend.destination_for)
        assert "request.reply_to, request.correlation_id or task_id" in source

    def test_how_a_result_is_published(self) -> None:
        source = inspect.getsource(getattr(RPCBackend.store_result, "__wrapped__", RPCBackend.store_result))
        for each in (
            "exchange=self.exchange",
            "serializer=self.serializer",
            "delivery_mode=self.delivery_mode",
        ):
            assert each in source
        parameters = ["self", "task_id", "state", "result", "traceback", "request"]
        assert list(inspect.signature(RPCBackend._to_result).parameters) == parameters

    def test_how_long_results_are_kept(self) -> None:
        app = Celery("expires", backend="rpc://", set_as_current=False)
        app.conf.result_expires = 90
        assert is_rpc(app.backend)
        assert app.backend.expires == 90
        assert app.backend.binding.expires == 90

    def test_who_sends_the_events_of_what_is_published(self) -> None:
        app = Celery("events", broker="memory://", set_as_current=False)
        assert "default_evd = self._event_dispatcher" in inspect.getsource(type(app.amqp)._create_task_sender)
        assert app.amqp._event_dispatcher.hostname == anon_nodename()


def test_ids_are_uuids() -> None:
    """By that, a list of results is told from a queue."""
    assert len(uuid()) == len(Celery("named", set_as_current=False).thread_oid)
