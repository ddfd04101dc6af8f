"""``batch(app)``: what is published in the block, and how."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import textwrap
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest
from celery import Celery, chain, chord, group, signals
from celery.exceptions import Ignore, Reject, Retry
from kombu.entity import Exchange, Queue

from kombu_redisdelay import batch
from tests.transport.batching import BACKEND, celery_app, ready, scheduled, send
from tests.transport.kit import Inbox, Site, drain


def run(program: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


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

        def counted(pieces: list[bytes], count: int) -> Any:
            exchanges.append(count)
            return exchange(pieces, count)

        line._exchange = counted
        with batch(app):
            send(app, *range(300))
            send(app, *range(300), countdown=60)
        assert len(exchanges) == 2

    def test_500_are_too_many_to_hold_back_if_they_are_large(self, site: Site, app: Celery) -> None:
        told: list[int] = []
        with batch(app, progress=told.append):
            for _ in range(10):
                app.send_task("store", ["x" * 1_000_000])
            assert 4 <= ready(site) < 10
        assert ready(site) == 10
        assert told[-1] == 10

    def test_large_ones_for_later_and_for_listeners_count(self, site: Site, app: Celery) -> None:
        news, text = Exchange("large news", type="fanout", durable=False), "x" * 3_000_000
        with batch(app) as block, app.producer_or_acquire() as producer:
            for countdown in (60, 60):
                app.send_task("store", [text], countdown=countdown)
            assert (scheduled(site), block.published) == (2, 2)
            for _ in range(2):
                producer.publish(text, exchange=news, routing_key="", declare=[news])
            assert block.published == 4

    def test_one_that_is_left_out_does_not_count(self, app: Celery) -> None:
        with batch(app) as block:
            send(app, 1)
            for _ in range(5):
                with pytest.raises(ValueError, match="x-delay"):
                    app.send_task("store", ["x" * 1_000_000], headers={"x-delay": -1})
            send(app, 2)
            assert block.published == 0


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

    def test_an_exception_that_leaves_only_the_inner_block_discards_nothing(
        self, site: Site, app: Celery
    ) -> None:
        with batch(app):
            with suppress(LookupError), batch(app):
                send(app, 1)
                raise LookupError
            send(app, 2)
        assert ready(site) == 2


@pytest.mark.one_server
class TestAnotherBroker:
    """The same program runs with any URL."""

    def test_it_publishes_one_by_one(self, site: Site) -> None:
        stock = celery_app(site.url.replace("redisdelay", "redis"))
        told: list[int] = []
        with batch(stock, progress=told.append) as block:
            send(stock, 1, 2)
            assert ready(site) == 2
        assert (block.published, told) == (0, [])
        stock.close()

    def test_what_was_published_stays_when_an_exception_ends_the_block(self, site: Site) -> None:
        stock = celery_app(site.url.replace("redisdelay", "redis"))
        with suppress(LookupError), batch(stock):
            send(stock, 1)
            raise LookupError
        assert ready(site) == 1
        stock.close()

    def test_tasks_run_eagerly(self) -> None:
        eager = celery_app("memory://", task_always_eager=True)

        @eager.task
        def double(number: int) -> int:
            return 2 * number

        with batch(eager):
            assert double.delay(2).get() == 4
            assert group(double.s(n) for n in range(3)).apply_async().get() == [0, 2, 4]

    def test_in_a_block_of_ours(self, site: Site, app: Celery) -> None:
        stock = celery_app(site.url.replace("redisdelay", "redis"))
        with batch(app):
            send(app, 1)
            with batch(stock):
                send(stock, 2)
            assert ready(site) == 1
        assert ready(site) == 2
        stock.close()
