"""Messages with a key, as kombu and Celery publish them."""

from __future__ import annotations

import gc
import pickle
import re
from collections.abc import Iterator
from contextlib import nullcontext
from copy import copy
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, chain, chord, group, states
from celery.contrib.testing.worker import start_worker
from celery.signals import before_task_publish
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from redis.exceptions import ConnectionError as RedisConnectionError

from kombu_redisdelay import Messages, Selection, Unique, UniqueResult, batch, unique_conflict
from kombu_redisdelay.broker.outgoing import Outbox
from kombu_redisdelay.broker.unique import UNIQUE_HEADER
from kombu_redisdelay.transport import settings
from kombu_redisdelay.transport.unique_results import Awaiting, PublishResult
from tests.transport.kit import Inbox, Site, drain, publish
from tools.harness.process import wait_until

KEY = {"x-unique": "account:42"}


class Report(str, Enum):
    SALES = "sales"


class TestKombu:
    def test_one_is_enough(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "first", "second", headers=KEY)
        publish(channel, "of another key", headers={"x-unique": "account:43"})
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 2)
        assert inbox.bodies == ["first", "of another key"]

    def test_a_member_of_an_enumeration_is_its_text(self, site: Site) -> None:
        """The key was "Report.SALES" from Python 3.11 on, and that of its retry "sales"."""
        publish(site.channel(), "m", headers={"x-unique": Report.SALES})
        assert site.client_of().hkeys(site.keys().unique) == [b"sales"]

    def test_the_latest_keeps_the_id_of_the_one_that_waits(self, site: Site) -> None:
        channel = site.channel()
        headers = {**KEY, "x-unique-while": "latest"}
        for number in range(4):
            publish(
                channel,
                str(number),
                headers=headers,
                message_id=f"id-{number}",
                correlation_id=f"id-{number}",
            )
        inbox = Inbox(channel, on_message=lambda message: message.ack())
        drain(channel.connection.client, lambda: len(inbox) == 2)
        assert inbox.bodies == ["0", "3"]
        properties = inbox.messages[1].properties
        assert (properties["message_id"], properties["correlation_id"]) == ("id-1", "id-1")

    def test_an_ack_whose_script_was_flushed_is_sent_again_by_an_idle_consumer(self, site: Site) -> None:
        """Nothing else comes. The connection has run the script before, so the ack is its digest only."""
        channel = site.channel()
        connection = channel.connection.client
        client, running = site.client_of(), site.keys().running
        inbox = Inbox(channel)
        for scripts_go in (False, True):
            publish(channel, "m", headers={**KEY, "x-unique-while": "done"})
            drain(connection, lambda: client.exists(running))
            drain(connection, lambda: len(inbox) == 1)
            if scripts_go:
                client.script_flush()
            inbox.messages.pop().ack()
            drain(connection, lambda: not client.exists(running))

    def test_one_that_is_published_again_by_kombu_is_there_once(self, site: Site) -> None:
        """It does so when the connection was lost before the reply came."""
        connection = site.connect()
        producer = Producer(connection)
        channel = connection.default_channel
        publishing = channel.basic_publish

        def lose_the_reply(*args: Any, **kwargs: Any) -> None:
            publishing(*args, **kwargs)
            raise RedisConnectionError("lost")

        channel.basic_publish = lose_the_reply
        producer.publish("m", routing_key="q", exchange="", headers=KEY, retry=True)
        assert connection.default_channel is not channel
        assert site.ready() == 1

    @pytest.mark.parametrize("mode", ["waiting", "done", "latest"])
    def test_one_that_its_consumer_publishes_again(self, site: Site, mode: str) -> None:
        """With all its properties, and then it acks."""
        channel = site.channel()
        headers = {**KEY, "x-unique-while": mode}
        publish(channel, "first", headers=headers, message_id="id", correlation_id="id")

        def forward(message: Any) -> None:
            if len(inbox) == 1:
                own = {name: message.properties[name] for name in ("message_id", "correlation_id")}
                publish(channel, "again", headers=headers, delivery_tag=message.delivery_tag, **own)
            message.ack()

        inbox = Inbox(channel, on_message=forward)
        expected = ["first"] if mode == "done" else ["first", "again"]
        drain(channel.connection.client, lambda: len(inbox) == len(expected))
        assert inbox.bodies == expected
        assert site.ready() == site.scheduled() == 0

    def test_through_an_exchange_into_two_queues(self, site: Site) -> None:
        channel = site.channel()
        exchange = Exchange("events", "topic")
        inbox = Inbox(channel, *(Queue(name, exchange, routing_key="#") for name in ("one", "two")))
        publish(channel, "first", "second", exchange=exchange, routing_key="any", headers=KEY)
        drain(channel.connection.client, lambda: len(inbox) == 2)
        assert inbox.bodies == ["first", "first"]

    def test_dropped_in_one_of_two_queues(self, site: Site) -> None:
        """It counts as dropped if it was dropped in both, also in a batch."""
        channel = site.channel()
        exchange = Exchange("events", "topic")
        Inbox(channel, *(Queue(name, exchange, routing_key="#") for name in ("one", "two")))
        publish(channel, "holder", queue="one", headers=KEY)
        outbox = Outbox()
        with Awaiting(published := PublishResult("id")):
            message = channel.prepare_message("m", headers=KEY, properties={"message_id": "id"})
            channel.add_to(outbox, message, exchange="events", routing_key="any")
        channel.send(outbox)
        assert (site.ready("one"), site.ready("two")) == (1, 1)
        assert published.conflict is None

    def test_a_key_picks_the_partition(self, site: Site) -> None:
        channel = site.channel(partitions={"q": 4})
        publish(channel, *map(str, range(20)), headers=KEY)
        publish(channel, *map(str, range(20)), headers={**KEY, "x-unique-while": "latest"})
        names = channel.store.partitions.names("q")
        assert len(names) == 4
        assert sum(bool(site.ready(name)) for name in names) == 1

    @pytest.mark.parametrize(
        ("headers", "message"),
        [
            ({"x-unique": ""}, "header 'x-unique' must be a text"),
            ({**KEY, "x-unique-while": "always"}, "header 'x-unique-while' must be one of"),
            ({**KEY, "x-delay-on-conflict": "replace"}, "cannot be used together"),
        ],
    )
    def test_what_is_wrong_is_refused(self, site: Site, headers: dict[str, str], message: str) -> None:
        channel = site.channel()
        with pytest.raises(ValueError, match=message):
            publish(channel, "m", headers=headers)
        for id in ('a"b"', "a b", "a\\b", "ä"):
            with pytest.raises(ValueError, match="ASCII"):
                publish(channel, "m", headers=KEY, message_id=id)
        assert site.ready() == 0

    def test_a_fanout_exchange_has_no_keys(self, site: Site) -> None:
        channel = site.channel()
        with pytest.raises(ValueError, match="fanout exchange 'news'"):
            publish(channel, "m", exchange=Exchange("news", "fanout"), headers=KEY)
        publish(channel, "m", exchange=Exchange("news", "fanout"), headers={UNIQUE_HEADER: None})

    def test_a_redelivered_one_holds_its_key(self, site: Site) -> None:
        channel = site.channel()
        headers = {**KEY, "x-unique-while": "done"}
        publish(channel, "m", headers=headers)
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        inbox.messages[0].requeue()
        publish(channel, "dropped", headers=headers)
        drain(channel.connection.client, lambda: len(inbox) == 2)
        assert inbox.bodies == ["m", "m"]
        assert inbox.messages[1].headers["x-delivery-count"] == 1


@pytest.fixture
def app(single_site: Site) -> Iterator[Celery]:
    app = Celery("unique", broker=single_site.url, backend="cache+memory://", set_as_current=True)
    yield app
    app.close()


@pytest.fixture
def sync(app: Celery) -> Any:
    @app.task(
        shared=False,
        name="sync",
        base=Unique,
        unique="account:{account}",
        unique_while="latest",
        acks_late=True,
    )
    def sync(account: int, since: int = 0) -> None:
        pass

    return sync


@pytest.fixture
def once(app: Celery) -> Any:
    @app.task(shared=False, name="once", base=Unique, unique=lambda account, since: f"account:{account}")
    def once(account: int, since: int = 0) -> None:
        pass

    return once


class TestTask:
    def test_what_apply_async_returns(self, once: Any, sync: Any) -> None:
        first, second = once.delay(1), once.delay(1)
        assert isinstance(second, UniqueResult)
        assert (first.dropped, first.replaced) == (False, False)
        assert (second.id, second.dropped, second.replaced) == (first.id, True, False)
        _, following, third = sync.delay(1), sync.delay(1, 2), sync.delay(1, 3)
        assert (third.id, third.dropped, third.replaced) == (following.id, False, True)

    def test_the_key_is_the_same_however_the_arguments_are_passed(self, once: Any, sync: Any) -> None:
        for task in (once, sync):
            keys = [task.unique_key((1,)), task.unique_key([1]), task.unique_key(kwargs={"account": 1})]
            assert keys == ["account:1"] * 3

    def test_the_old_protocol_of_tasks_is_refused(self, app: Celery, once: Any) -> None:
        app.conf.task_protocol = 1
        with pytest.raises(ValueError, match="needs the setting task_protocol = 2"):
            once.delay(1)

    def test_without_a_result_backend(self, single_site: Site) -> None:
        with Celery("without", broker=single_site.url, set_as_current=False) as app:

            @app.task(shared=False, name="without.once", base=Unique, unique="one")
            def once() -> None:
                pass

            assert [once.delay().dropped, once.apply_async(task_id="second").dropped] == [False, True]

    def test_for_signatures(self, once: Any) -> None:
        assert once.s(1).apply_async().id == once.si(account=1).apply_async(countdown=60).id

    def test_in_a_batch(self, app: Celery, once: Any) -> None:
        with batch(app):
            first, second, third = once.delay(1), once.delay(1), once.delay(2)
            assert not second.dropped
        assert (second.id, second.dropped) == (first.id, True)
        assert not third.dropped

    def test_a_member_of_a_group_that_is_dropped_ends(self, once: Any) -> None:
        once.delay(1)
        result = group(once.s(1), once.s(2)).apply_async()
        assert [member.state for member in result] == [states.REVOKED, states.PENDING]

    def test_what_others_count_on_has_no_key(self, app: Celery, once: Any) -> None:
        for _ in range(2):
            chain(once.si(1), once.si(2)).apply_async()
            chord([once.si(3), once.si(4)], once.si(5)).apply_async()
            once.apply_async((6,), link=once.si(7))
            once.apply_async((8,), link_error=once.si(9))
        with Messages(app) as messages:
            found = list(messages.select(Selection(state="ready")))
        assert [message.unique for message in found] == [None] * 10

    def test_what_workers_publish_for_others_has_no_key(self, app: Celery) -> None:
        """The last task of a chain, the body of a chord, callbacks and errbacks; but not a child."""
        published: list[Any] = []

        @app.task(shared=False, name="step", base=Unique, unique="step:{number}", bind=True)
        def step(self: Any, number: int, fails: bool = False, child: int | None = None) -> int:
            if number >= 12 and not self.request.retries:
                raise self.retry(countdown=0)
            if child:
                step.delay(child)
                group(step.si(child + 1)).apply_async()
            if fails:
                raise RuntimeError("as the test wants")
            return number

        @app.task(shared=False, name="errback", base=Unique, unique="errback")
        def errback(id: str) -> None:
            pass

        def note(headers: dict[str, Any], body: Any, **kwargs: Any) -> None:
            if headers["task"] != "celery.chord_unlock":
                published.append((body[0][0], headers.get(UNIQUE_HEADER)))

        app.conf.worker_hijack_root_logger = False
        before_task_publish.connect(note)
        options = {"loglevel": "WARNING", "perform_ping_check": False, "shutdown_timeout": 30}
        try:
            with start_worker(app, **options):
                chain(step.si(1), step.si(2)).apply_async().get(20)
                chord([step.si(3), step.si(4)], step.si(5)).apply_async().get(20)
                step.apply_async((6,), link=step.si(7)).get(20)
                step.apply_async((8,), {"fails": True}, link_error=errback.si("8")).get(20, propagate=False)
                step.apply_async((9,), {"child": 10}).get(20)
                chain(step.si(1), step.si(12)).apply_async().get(20)
                step.apply_async((13,), headers={UNIQUE_HEADER: None}).get(20)
                step.apply_async((14,)).get(20)
                wait_until(lambda: len(published) >= 19, 20, "all that is published")
        finally:
            before_task_publish.disconnect(note)
        with_keys = {number: f"step:{number}" for number in (9, 10, 11, 14)}
        assert len(published) == 19
        assert set(published) == {(number, with_keys.get(number)) for number in (*range(1, 15), "8")}

    def test_by_hand(self, app: Celery, once: Any) -> None:
        holder = once.delay(1)
        result = app.send_task("once", (1,), headers={UNIQUE_HEADER: "account:1"})
        assert result.id != holder.id
        assert result.state == states.REVOKED

    @pytest.mark.parametrize("is_together", [False, True], ids=["", "batch"])
    @pytest.mark.parametrize("mode", ["waiting", "latest"])
    def test_by_hand_into_two_queues(self, app: Celery, is_together: bool, mode: str) -> None:
        """The id is revoked when no queue has accepted it."""
        exchange = Exchange("events")
        both = {"exchange": "events", "routing_key": "any"}
        headers = {UNIQUE_HEADER: "account:1", "x-unique-while": mode}
        with app.connection_for_write() as connection:
            channel = connection.default_channel
            for name in ("one", "two"):
                Queue(name, exchange, routing_key="any")(channel).declare()
            # With "latest", there is one that holds the key, and one to be replaced.
            for _ in range(2 if mode == "latest" else 1):
                app.send_task("once", (1,), headers=headers, queue="one")
            states_found = []
            for _ in range(3):
                with batch(app) if is_together else nullcontext():
                    result = app.send_task("once", (1,), headers=headers, **both)
                states_found.append(result.state)
        # With "latest", the other queue has room for one that is next.
        second = states.PENDING if mode == "latest" else states.REVOKED
        assert states_found == [states.PENDING, second, states.REVOKED]

    def test_the_signal(self, once: Any) -> None:
        heard: list[dict[str, Any]] = []

        def hear(sender: str, signal: Any, **told: Any) -> None:
            heard.append({"sender": sender, **told})

        unique_conflict.connect(hear)
        try:
            first = once.delay(1)
            once.apply_async((1,), task_id="second")
        finally:
            unique_conflict.disconnect(hear)
        assert heard == [
            {"sender": "once", "key": "account:1", "id": "second", "holder": first.id, "outcome": "dropped"}
        ]

    def test_eager_it_is_not_unique(self, app: Celery, once: Any) -> None:
        app.conf.task_always_eager = True
        results = [once.delay(1), once.delay(1)]
        assert [(result.state, result.dropped) for result in results] == [(states.SUCCESS, False)] * 2

    def test_with_another_broker_it_is_a_task_like_any_other(self) -> None:
        with Celery("other", broker="memory://", set_as_current=False) as app:

            @app.task(shared=False, name="other.once", base=Unique, unique="one")
            def once() -> None:
                pass

            assert once.delay().id != once.delay().id

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({}, "has no key"),
            ({"unique": 5}, "has no key"),
            ({"unique": "a", "unique_while": "ever"}, "unique_while of task 'bad' must be one of"),
            ({"unique": "a", "unique_while": "done"}, "needs acks_late=True"),
            ({"unique": "a", "unique_while": "latest", "acks_late": False}, "needs acks_late=True"),
            ({"unique": "a", "unique_at_most": 5}, "goes with the mode 'latest'"),
            ({"unique": "a:{acount}"}, "names the argument 'acount', and the task has: account"),
            ({"unique": "a:{}"}, "names the argument ''"),
            ({"unique": "a:{account"}, "is no format"),
        ],
    )
    def test_what_is_declared_wrongly(self, app: Celery, options: dict[str, Any], message: str) -> None:
        def bad(account: int) -> None:
            pass

        with pytest.raises(ValueError, match=message):
            app.task(shared=False, name="bad", base=Unique, lazy=False, **options)(bad)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"uniqe": "a"}, "has no option 'uniqe': did you mean 'unique'?"),
            ({"unique": "a", "unique_wile": "latest"}, "did you mean 'unique_while'?"),
            ({"unique": "a", "unique_atmost": 5}, "did you mean 'unique_at_most'"),
            ({}, "has no key"),
            ({"unique": "a", "unique_while": "done"}, "needs acks_late=True"),
        ],
    )
    @pytest.mark.parametrize("is_finalized_first", [False, True], ids=["", "finalized"])
    def test_what_is_declared_wrongly_is_never_published(
        self, app: Celery, options: dict[str, Any], message: str, is_finalized_first: bool
    ) -> None:
        """Celery binds a task once, and then takes it as it is."""

        @app.task(shared=False, name="bad", base=Unique, **options)
        def bad(account: int = 0) -> None:
            pass

        @app.task(shared=False, name="good", base=Unique, unique="a")
        def good() -> None:
            pass

        if is_finalized_first:
            # It is not the fault of this one.
            assert app.tasks["good"].delay().dropped is False
            assert app.tasks["good"].delay().dropped is True
        for publish_it in (
            lambda: bad.delay(),
            lambda: bad.delay(),
            lambda: bad.s().apply_async(),
            lambda: bad.apply_async(headers={UNIQUE_HEADER: "x"}),
            lambda: bad.apply_async(link=good.si()),
            lambda: bad.unique_key(),
        ):
            with pytest.raises(ValueError, match=re.escape(message)):
                publish_it()
        assert good.delay().dropped is is_finalized_first
        with (
            pytest.raises(ValueError, match=re.escape(message)),
            start_worker(app, loglevel="WARNING", perform_ping_check=False),
        ):
            pass

    def test_what_is_declared_wrongly_in_a_base_class(self, app: Celery) -> None:
        class Mine(Unique):
            abstract = True
            unique_whil = "latest"
            unique_prefix = "an attribute of the application"

        with pytest.raises(ValueError, match="has no option 'unique_whil'"):

            @app.task(shared=False, name="bad", base=Mine, lazy=False, unique="a")
            def bad() -> None:
                pass

    def test_late_acks_by_the_settings(self, app: Celery) -> None:
        app.conf.task_acks_late = True

        @app.task(shared=False, name="late", base=Unique, unique="a", unique_while="done")
        def late() -> None:
            pass

        assert late.delay().dropped is False

    def test_with_the_task_class_of_the_app(self) -> None:
        """``base`` replaces it, so a class of both is needed."""

        class OnCommit(Task):  # type: ignore[misc]
            def delay_on_commit(self, *args: Any) -> None:
                committing.append(lambda: self.delay(*args))

        class Both(Unique, OnCommit):
            abstract = True

        committing: list[Any] = []
        with Celery("both", broker="memory://", task_cls=OnCommit, set_as_current=False) as app:

            @app.task(shared=False, base=Both, unique="a:{account}")
            def both(account: int) -> None:
                pass

            both.delay_on_commit(1)
            assert isinstance(committing.pop()(), UniqueResult)
            assert both.unique_key((1,)) == "a:1"

    def test_no_key_for_one_call(self, once: Any) -> None:
        once.delay(1)
        result = once.apply_async((1,), headers={UNIQUE_HEADER: None})
        assert (result.dropped, result.replaced) == (False, False)

    def test_apply_returns_the_same_attributes(self, once: Any) -> None:
        result = once.apply((1,))
        assert (result.dropped, result.replaced) == (False, False)

    def test_what_a_key_cannot_be_made_of(self, app: Celery, once: Any) -> None:
        with pytest.raises(TypeError, match="task 'once': args must be a list or tuple"):
            once.unique_key(1)
        with pytest.raises(TypeError, match="task 'once': args must be a list or tuple"):
            once.apply_async("1")

        @app.task(shared=False, name="failing", base=Unique, unique=lambda account: account["id"])
        def failing(account: Any) -> None:
            pass

        with pytest.raises(ValueError, match="unique key of task 'failing' cannot be made: KeyError: 'id'"):
            failing.delay({})

        @app.task(shared=False, name="odd", base=Unique, unique="odd:{account}")
        def odd(account: Any) -> None:
            pass

        with pytest.raises(ValueError, match="the unique key of task 'odd' has the address of an object"):
            odd.delay(object())
        assert odd.unique_key((None,)) == "odd:None"

    def test_keyword_arguments_in_any_order_make_one_key(self, app: Celery) -> None:
        @app.task(shared=False, name="any", base=Unique, unique="any:{options}")
        def any_options(**options: Any) -> None:
            pass

        assert any_options.unique_key((), {"b": 2, "a": 1}) == any_options.unique_key((), {"a": 1, "b": 2})

    def test_the_task_itself_is_no_argument(self, app: Celery) -> None:
        def run(self: Any, account: int) -> None:
            pass

        declare = app.task(shared=False, name="bound", bind=True, base=Unique, unique="b:{self}", lazy=False)
        with pytest.raises(ValueError, match="names the argument 'self', and the task has: account"):
            declare(run)

    def test_a_copied_result_tells_the_same(self, once: Any) -> None:
        result = once.AsyncResult("id")
        result.dropped = True
        for same in (copy(result), pickle.loads(pickle.dumps(result))):
            assert (same.id, same.dropped, same.replaced) == ("id", True, False)

    def test_a_key_that_is_none(self, app: Celery) -> None:
        @app.task(shared=False, name="named", base=Unique, unique="{name}")
        def named(name: str) -> None:
            pass

        with pytest.raises(ValueError, match="unique key of task 'named' must be a text that is not empty"):
            named.delay("")
        with pytest.raises(TypeError, match="task 'named': too many positional arguments"):
            named.unique_key((1, 2))

        @app.task(shared=False, name="of", base=Unique, unique="{account.id}")
        def of(account: int) -> None:
            pass

        with pytest.raises(ValueError, match="of task 'of' cannot be made"):
            of.delay(1)

    def test_a_result_that_is_thrown_away_is_let_go(self, once: Any) -> None:
        once.delay(1)
        forgotten: list[str] = []
        once.backend.remove_pending_result = lambda result: forgotten.append(result.id)
        dropped = once.apply_async((1,), task_id="second")
        assert forgotten == ["second"]
        del dropped
        gc.collect()


class TestEarlyAcks:
    def test_a_worker_says_so_once(self, app: Celery, caplog: pytest.LogCaptureFixture) -> None:
        task = SimpleNamespace(name="by hand", acks_late=False)
        for _ in range(2):
            settings.warn_of_early_ack(task, {**KEY, "x-unique-while": "done"})
        assert [record.getMessage() for record in caplog.records] == [
            "Task by hand is published with x-unique-while = 'done', and this worker acks it before it runs. "
            "So its key is free by then, as with 'waiting'. Set acks_late = True."
        ]
        settings._told.clear()
