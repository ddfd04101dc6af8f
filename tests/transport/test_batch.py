"""``batch(app)``: what is published in the block, and how."""

from __future__ import annotations

import asyncio
import contextvars
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest
from celery import Celery, chain, chord, group, signals
from celery.exceptions import Ignore, Reject, Retry
from celery.result import ResultSet
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError

from harness.proxy import Proxy
from kombu_redisdelay import BatchPublishError, batch
from tests.transport.kit import Inbox, Site, drain

BACKEND = "cache+memory://"


def celery_app(url: str, **settings: Any) -> Celery:
    app = Celery("batched", broker=url, set_as_current=False)
    app.conf.update({"task_publish_retry": False, **settings})
    return app


@pytest.fixture
def app(site: Site) -> Iterator[Celery]:
    app = celery_app(site.url)
    yield app
    app.close()


def refuse(site: Site, app: Celery, queue: str) -> None:
    """Have the server refuse what is published to a queue that is declared."""
    send(app, 0, queue=queue)
    site.redis.delete(site.keys(queue).ready)
    site.redis.set(site.keys(queue).ready, "a string")


def run(program: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def ready(site: Site, queue: str = "celery", prefix: str = "") -> int:
    return int(site.redis.llen(site.keys(queue, prefix).ready))


def scheduled(site: Site, queue: str = "celery") -> int:
    return site.scheduled(queue)


def send(app: Celery, *numbers: int, **options: Any) -> list[Any]:
    return [app.send_task("add", [number, number], **options) for number in numbers]


class TestWhatIsPublished:
    def test_nothing_before_the_end_and_then_everything(self, site: Site, app: Celery) -> None:
        with batch(app) as block:
            send(app, *range(10))
            send(app, *range(5), countdown=60)
            assert (ready(site), scheduled(site), block.published) == (0, 0, 0)
        assert (ready(site), scheduled(site), block.published) == (10, 5, 15)

    def test_in_the_order_in_which_it_was_published(self, site: Site, app: Celery) -> None:
        with batch(app):
            ids = [result.id for result in send(app, *range(5))]
        channel = site.channel()
        inbox = Inbox(channel, "celery")
        drain(channel.connection.client, lambda: len(inbox) == 5)
        assert [message.headers["id"] for message in inbox] == ids

    def test_queues_priorities_and_conflicts(self, site: Site, app: Celery) -> None:
        app.conf.task_routes = {"add": {"queue": "routed"}}
        ignore = {"x-delay-on-conflict": "ignore"}
        with batch(app):
            send(app, 1)
            send(app, 1, queue="other", priority=9)
            for _ in range(2):
                send(app, 1, queue="once", countdown=60, task_id="the same", headers=ignore)
        assert ready(site, "routed") == 1
        assert site.redis.llen(site.keys("other").ready_at(9)) == 1
        assert scheduled(site, "once") == 1

    @pytest.mark.parametrize("kind", ["direct", "topic"])
    def test_named_exchanges(self, site: Site, app: Celery, kind: str) -> None:
        # kombu remembers for the whole process what it has declared.
        exchange, names = Exchange(f"batched {kind}", kind), (f"one {kind}", f"two {kind}")
        app.conf.task_queues = [Queue(name, exchange, "key") for name in names]
        with batch(app):
            send(app, *range(3), exchange=exchange, routing_key="key", declare=app.conf.task_queues)
        assert [ready(site, name) for name in names] == [3, 3]

    def test_fanout(self, site: Site, app: Celery) -> None:
        news = Exchange("news", type="fanout", durable=False)
        channel = site.channel()
        inbox = Inbox(channel, Queue("reader", news))
        connection = channel.connection.client
        drain(connection, site.listeners)
        with batch(app), app.producer_or_acquire() as producer:
            for number in range(3):
                producer.publish(str(number), exchange=news, routing_key="", declare=[news])
        drain(connection, lambda: len(inbox) == 3)
        assert inbox.bodies == ["0", "1", "2"]

    def test_a_group_a_chain_and_the_header_of_a_chord(self, site: Site, app: Celery) -> None:
        app.conf.result_backend = BACKEND
        add, total = app.signature("add"), app.signature("total")
        with batch(app):
            group(add.clone((n, n)) for n in range(4)).apply_async(countdown=60)
            chain(add.clone((1, 1)), add.clone((2,))).apply_async()
            chord([add.clone((n, n)) for n in range(3)], app=app)(total)
            assert (ready(site), scheduled(site)) == (0, 0)
        assert (ready(site), scheduled(site)) == (1 + 3, 4)

    @pytest.mark.parametrize("kind", ["direct", "topic"])
    def test_a_queue_that_is_declared_in_the_block(self, site: Site, app: Celery, kind: str) -> None:
        exchange = Exchange(f"growing {kind}", kind)
        with batch(app):
            for name in ("first", "second"):
                queue = Queue(f"{name} {kind}", exchange, "key")
                send(app, 1, exchange=exchange, routing_key="key", declare=[queue])
        # With the second message the second queue was there.
        assert (ready(site, f"first {kind}"), ready(site, f"second {kind}")) == (2, 1)

    @pytest.mark.parametrize("control_flow", [Retry, Ignore, Reject])
    def test_what_celery_leaves_a_task_by(
        self, site: Site, app: Celery, control_flow: type[Exception]
    ) -> None:
        def task() -> None:
            with batch(app):
                send(app, 1, countdown=60)
                raise control_flow

        with pytest.raises(control_flow):
            task()
        assert scheduled(site) == 1

    def test_signals(self, app: Celery) -> None:
        seen = []

        def note(sender: str, headers: dict[str, Any], **kwargs: Any) -> None:
            seen.append((kwargs["signal"].name, headers["id"]))

        for signal in (signals.before_task_publish, signals.after_task_publish):
            signal.connect(note, weak=False)
        try:
            with batch(app):
                [result] = send(app, 1)
        finally:
            for signal in (signals.before_task_publish, signals.after_task_publish):
                signal.disconnect(note)
        assert seen == [("before_task_publish", result.id), ("after_task_publish", result.id)]

    def test_a_message_that_makes_no_sense_is_left_out(self, site: Site, app: Celery) -> None:
        with batch(app):
            send(app, 1)
            with pytest.raises(ValueError, match="x-delay"):
                send(app, 2, headers={"x-delay": -1})
            send(app, 3)
        assert ready(site) == 2


class TestPortions:
    def test_many_are_published_500_at_a_time(self, site: Site, app: Celery) -> None:
        told: list[int] = []
        with batch(app, progress=told.append):
            send(app, *range(1200))
            assert ready(site) == 1000
        assert ready(site) == 1200
        assert told == [500, 1000, 1200]

    def test_what_the_callback_publishes_goes_out_at_once(self, site: Site, app: Celery) -> None:
        with batch(app, progress=lambda published: send(app, 1, queue="notes")):
            send(app, *range(600))
        assert (ready(site), ready(site, "notes")) == (600, 2)

    def test_a_callback_that_fails_publishes_nothing_twice(self, site: Site, app: Celery) -> None:
        app.conf.task_publish_retry = True

        def fail(published: int) -> None:
            raise BrokenPipeError

        def publish() -> None:
            with batch(app, progress=fail):
                send(app, *range(600))

        with pytest.raises(RuntimeError, match="the progress callback of a batch failed: BrokenPipeError"):
            publish()
        assert ready(site) == 500

    def test_with_one_connection_that_is_in_use(self, site: Site) -> None:
        app = celery_app(site.url, broker_pool_limit=1)
        with app.producer_pool.acquire(block=True) as producer, batch(app):
            send(app, *range(3), producer=producer)
        assert ready(site) == 3
        app.close()

    @pytest.mark.one_server
    def test_as_few_round_trips_as_portions(self, site: Site, app: Celery) -> None:
        send(app, 1)
        send(app, 1, countdown=60)
        with app.producer_or_acquire() as producer:
            line = producer.channel.store.server.line
        exchanges = []
        exchange = line._exchange

        def counted(commands: Any) -> Any:
            exchanges.append(len(commands))
            return exchange(commands)

        line._exchange = counted
        with batch(app):
            send(app, *range(300))
            send(app, *range(300), countdown=60)
        assert len(exchanges) == 2


class TestWho:
    def test_no_other_thread(self, site: Site, app: Celery) -> None:
        with batch(app):
            send(app, 1)
            # Even one that is given the context.
            thread = Thread(target=contextvars.copy_context().run, args=(send, app, 2))
            thread.start()
            thread.join()
            assert ready(site) == 1
        assert ready(site) == 2

    def test_no_other_asyncio_task(self, site: Site, app: Celery) -> None:
        async def other() -> None:
            send(app, 2)

        async def main() -> None:
            with batch(app):
                send(app, 1)
                await asyncio.create_task(other())
                assert ready(site) == 1

        asyncio.run(main())
        assert ready(site) == 2

    @pytest.mark.one_server
    def test_no_other_greenlet(self, site: Site) -> None:
        program = f"""
            from gevent import monkey, spawn
            monkey.patch_all()
            from celery import Celery
            from kombu_redisdelay import batch

            app = Celery("batched", broker={site.url!r})
            with batch(app) as block:
                app.send_task("add", [1, 1])
                spawn(app.send_task, "add", [2, 2]).join()
            print(block.published)
        """
        done = run(program)
        assert done.stdout == "1\n", done.stderr
        assert ready(site) == 2

    def test_no_other_broker(self, site: Site, app: Celery) -> None:
        # It is the same server, which nobody can know.
        other = celery_app(site.url.replace("127.0.0.1", "localhost"))
        with batch(app):
            send(app, 1)
            send(other, 2)
            assert ready(site) == 1
        assert ready(site) == 2
        other.close()

    def test_no_other_prefix(self, site: Site, app: Celery) -> None:
        other = celery_app(site.url, broker_transport_options={"global_keyprefix": "other:"})
        with batch(app):
            send(other, 1)
            assert ready(site, prefix="other:") == 1
        other.close()

    def test_a_block_of_another_broker_in_a_block(self, site: Site, app: Celery) -> None:
        other = celery_app(site.url, broker_transport_options={"global_keyprefix": "other:"})
        with batch(app):
            with batch(other):
                send(app, 1)
                send(other, 2)
            assert (ready(site), ready(site, prefix="other:")) == (0, 1)
        assert ready(site) == 1
        other.close()

    @pytest.mark.one_server
    def test_no_forked_child(self, site: Site) -> None:
        program = f"""
            import os
            from celery import Celery
            from kombu_redisdelay import batch

            app = Celery("batched", broker={site.url!r})
            with batch(app) as block:
                for _ in range(2):
                    app.send_task("add", [1, 1])
                child = os.fork()
                if not child:
                    app.send_task("add", [2, 2])
                    block.flush()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                print(app.connection_for_read().default_channel._size("celery"))
        """
        done = run(program)
        assert done.stdout == "1\n", done.stderr
        assert ready(site) == 3

    def test_a_block_in_a_block_joins_it(self, site: Site, app: Celery) -> None:
        with batch(app):
            with batch(app):
                send(app, 1)
            assert ready(site) == 0
        assert ready(site) == 1

    def test_a_broker_of_another_kind_is_an_error(self, app: Celery) -> None:
        stock = Celery("stock", broker="redis://localhost", set_as_current=False)
        with pytest.raises(TypeError, match="not a redisdelay:// broker: redis://"), batch(stock):
            pass


class TestErrors:
    def test_an_exception_discards_what_is_held_back(self, site: Site, app: Celery) -> None:
        blocks = []

        def publish() -> None:
            with batch(app) as block:
                blocks.append(block)
                send(app, *range(600))
                raise LookupError

        with pytest.raises(LookupError):
            publish()
        assert (ready(site), blocks[0].published) == (500, 500)
        send(app, 1)
        assert ready(site) == 501, "the block is over"

    def test_a_result_of_the_block_cannot_be_waited_for(self, app: Celery) -> None:
        app.conf.result_backend = BACKEND
        add, total = app.signature("add"), app.signature("total")
        with batch(app):
            results = [
                add.delay(1, 1),
                group(add.clone((n, n)) for n in range(2)).apply_async(),
                chain(add.clone((1, 1)), add.clone((2,))).apply_async(),
                chord([add.clone((n, n)) for n in range(2)], app=app)(total),
            ]
            for result in [*results, ResultSet(results)]:
                with pytest.raises(RuntimeError, match="is published when the batch ends"):
                    result.get(timeout=5)

    def test_the_server_refuses_some(self, site: Site, app: Celery) -> None:
        refuse(site, app, "wrong")

        def publish() -> str:
            with batch(app):
                send(app, 1, 2)
                send(app, 3, queue="wrong", task_id="refused")
                send(app, 4, countdown=60)
            return "published"

        with pytest.raises(BatchPublishError, match=r"wrong\}?' holds a string") as caught:
            publish()
        assert (caught.value.published, caught.value.unpublished, caught.value.uncertain) == (
            3,
            ["refused"],
            [],
        )
        assert (ready(site), scheduled(site)) == (2, 1)

    def test_several_under_one_id_are_refused(self, site: Site, app: Celery) -> None:
        refuse(site, app, "wrong")

        def publish() -> None:
            with batch(app):
                for _ in range(3):
                    send(app, 1, queue="wrong", task_id="same")

        with pytest.raises(BatchPublishError) as caught:
            publish()
        assert (caught.value.published, caught.value.unpublished) == (0, ["same"] * 3)

    def test_an_error_that_somebody_swallows_is_raised_again(self, site: Site, app: Celery) -> None:
        """Celery swallows the errors of its own events."""
        refuse(site, app, "wrong")

        def publish() -> None:
            with batch(app) as block:
                send(app, 1, queue="wrong")
                with suppress(BatchPublishError):
                    block.flush()
                with pytest.raises(BatchPublishError):
                    send(app, 2)

        with pytest.raises(BatchPublishError, match=r"wrong\}?' holds a string"):
            publish()

    def test_it_can_be_pickled(self) -> None:
        error = BatchPublishError("why", 1, ["a"], ["b"])
        copy = pickle.loads(pickle.dumps(error))
        assert str(copy) == str(error)
        assert (copy.published, copy.uncertain, copy.unpublished) == (1, ["a"], ["b"])

    @pytest.mark.one_server
    def test_the_connection_is_lost(self, site: Site) -> None:
        proxy = Proxy(site.redis.connection_pool.connection_kwargs["port"])
        with proxy:
            app = celery_app(proxy.url(), broker_transport_options={"socket_timeout": 0.5})
            send(app, 0)

            def publish() -> None:
                with batch(app):
                    send(app, 1, task_id="one")
                    send(app, 2, task_id="two")
                    proxy.go_silent()

            with pytest.raises(BatchPublishError, match="2 may have been") as caught:
                publish()
            assert (caught.value.published, caught.value.uncertain) == (0, ["one", "two"])
            app.close()

    def test_the_server_is_not_there(self) -> None:
        app = celery_app("redisdelay://127.0.0.1:1/0")

        def publish() -> None:
            with batch(app):
                send(app, 1)

        with pytest.raises(OperationalError, match="Error 111"):
            publish()
