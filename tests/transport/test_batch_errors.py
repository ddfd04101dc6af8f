"""``batch(app)``: when something goes wrong, and when it is used in another way than it is meant to be."""

from __future__ import annotations

import asyncio
import gc
import pickle
import re
import weakref
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import Ignore
from celery.result import ResultSet
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError

import kombu_redisdelay
from kombu_redisdelay import BatchPublishError, batch
from tests.transport.batching import BACKEND, celery_app, ready, scheduled, send
from tests.transport.kit import Site
from tools.harness.proxy import Proxy

pytestmark = pytest.mark.one_server


def refuse(site: Site, app: Celery, queue: str) -> None:
    """Have the server refuse what is published to a queue that is declared."""
    send(app, 0, queue=queue)
    site.redis.delete(site.keys(queue).ready)
    site.redis.set(site.keys(queue).ready, "a string")


def fail_with(error: BaseException) -> Callable[[int], None]:
    def fail(published: int) -> None:
        raise error

    return fail


def fail(published: int) -> None:
    raise KeyError


class Caller:
    """Stands for what a caller holds in its locals."""


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
                with pytest.raises(RuntimeError, match="is published when the batch ends") as caught:
                    result.get(timeout=5)
                # One id at most, however many tasks there are.
                assert len(re.findall("[0-9a-f]{8}-", str(caught.value))) <= 1

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
        assert isinstance(caught.value.__cause__, ResponseError)
        assert str(caught.value).endswith("(messages of the batch: 3 published, 1 unpublished)")
        assert (ready(site), scheduled(site)) == (2, 1)

    def test_events_are_no_messages_of_the_batch(self, site: Site, app: Celery) -> None:
        app.conf.task_send_sent_event = True
        told: list[int] = []
        with site.redis.pubsub() as events:
            events.psubscribe("*celeryev*")
            with batch(app, progress=told.append) as block:
                send(app, *range(3))
                assert "3 held back" in repr(block)
                block.flush()
                # Nothing but an event is left then.
                with app.events.default_dispatcher() as dispatcher:
                    dispatcher.send("task-sent", uuid="a")
            assert (block.published, told) == (3, [3])
            deadline = monotonic() + 30
            seen = 0
            while seen < 4 and monotonic() < deadline:
                seen += (events.get_message(timeout=1) or {}).get("type") == "pmessage"
            assert seen == 4
        refuse(site, app, "wrong")

        def publish() -> None:
            with batch(app):
                send(app, 1, queue="wrong", task_id="refused")
                send(app, 2)

        with pytest.raises(BatchPublishError) as caught:
            publish()
        assert (caught.value.published, caught.value.unpublished) == (1, ["refused"])

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

    @pytest.mark.parametrize("progress", [None, fail])
    def test_the_caller_is_let_go(
        self, site: Site, app: Celery, progress: Callable[[int], None] | None
    ) -> None:
        """A Celery result among its locals that goes late makes another one wait for ever."""
        refuse(site, app, "wrong")
        _ = app.backend
        callers = []

        def publish() -> None:
            caller = Caller()
            callers.append(weakref.ref(caller))
            with batch(app, progress=progress):
                send(app, 1, queue="celery" if progress else "wrong")

        gc.collect()
        gc.disable()
        try:
            with suppress(BatchPublishError):
                publish()
            assert callers[0]() is None
        finally:
            gc.enable()

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

            with pytest.raises(BatchPublishError, match="0 published, 2 uncertain") as caught:
                publish()
            assert (caught.value.published, caught.value.uncertain) == (0, ["one", "two"])
            assert isinstance(caught.value.__cause__, RedisError)
            app.close()

    def test_the_server_is_not_there(self) -> None:
        app = celery_app("redisdelay://127.0.0.1:1/0")

        def publish() -> None:
            with batch(app):
                send(app, 1)

        with pytest.raises(OperationalError, match="Error 111"):
            publish()


class TestCallback:
    #: Of a lost connection, of kombu's own, of a task that ends in another way, and any other.
    ERRORS = (BrokenPipeError, RedisError, KeyError, AttributeError, TypeError, ValueError, Ignore, Exception)

    @pytest.mark.parametrize("error", ERRORS)
    @pytest.mark.parametrize("publish_retry", [True, False])
    def test_its_exception_ends_the_block(
        self, site: Site, app: Celery, error: type[Exception], publish_retry: bool
    ) -> None:
        app.conf.task_publish_retry = publish_retry
        raised = error("bar")
        accepted = []

        def publish() -> None:
            with batch(app, progress=fail_with(raised)):
                for number in range(700):
                    accepted.extend(send(app, number))

        with pytest.raises(BatchPublishError, match=f"callback failed: {error.__name__}: .*bar") as caught:
            publish()
        assert caught.value.__cause__ is raised
        # The last of the 500 was published, too, though its call has raised the error.
        assert (len(accepted), ready(site)) == (499, 500)
        assert (caught.value.published, caught.value.uncertain, caught.value.unpublished) == (500, [], [])

    def test_its_exception_at_the_end_of_the_block(self, site: Site, app: Celery) -> None:
        def publish() -> None:
            with batch(app, progress=fail_with(KeyError("bar"))):
                send(app, 1)

        with pytest.raises(BatchPublishError, match="the progress callback failed") as caught:
            publish()
        assert (ready(site), caught.value.published) == (1, 1)

    def test_what_ends_the_process_goes_through(self, site: Site, app: Celery) -> None:
        def publish() -> None:
            with batch(app, progress=fail_with(KeyboardInterrupt())):
                send(app, *range(501))

        with pytest.raises(KeyboardInterrupt):
            publish()
        assert ready(site) == 500

    def test_it_must_be_a_function(self, app: Celery) -> None:
        with pytest.raises(TypeError, match="progress must be a function, not 3"):
            batch(app, progress=3)  # type: ignore[arg-type]


class TestUsedInAnotherWay:
    @pytest.mark.parametrize("broker", ["redisdelay://:secret@localhost", None])
    def test_without_an_app(self, broker: Any) -> None:
        with pytest.raises(TypeError, match=r"batch\(\) takes a Celery app, not an object of type") as caught:
            batch(broker)
        assert "secret" not in str(caught.value)

    def test_twice(self, app: Celery) -> None:
        once = batch(app)
        with once:
            pass
        with pytest.raises(RuntimeError, match=r"call batch\(app\) again"), once:
            pass

    def test_in_itself(self, app: Celery) -> None:
        once = batch(app)
        with once, pytest.raises(RuntimeError, match=r"call batch\(app\) again"), once:
            pass

    def test_with_async_with(self, app: Celery) -> None:
        async def enter() -> None:
            async with batch(app):  # type: ignore[attr-defined]
                pass

        with pytest.raises(TypeError, match="not with `async with`"):
            asyncio.run(enter())

    def test_the_block_says_what_it_is(self, app: Celery) -> None:
        with batch(app) as block:
            send(app, *range(501))
            assert repr(block) == "<batch: 500 messages published, 1 held back>"

    def test_the_package_shows_its_names(self) -> None:
        assert sorted(dir(kombu_redisdelay)) == sorted([*kombu_redisdelay.__all__, "__version__"])
