"""Large messages: what is warned of, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery, chain
from celery.contrib.testing.worker import start_worker
from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from kombu_redisdelay import batch
from kombu_redisdelay.transport import admission
from tests.transport.batching import celery_app, ready, scheduled, send
from tests.transport.kit import Inbox, Site, drain, publish

pytestmark = pytest.mark.one_server

LIMIT, LARGE = 20_000, "x" * 20_000


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_warned", set())


@pytest.fixture
def limited(site: Site) -> Iterator[Celery]:
    app = celery_app(site.url, broker_transport_options={"message_size_limit": LIMIT})
    yield app
    app.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == admission.__name__]


class TestWarning:
    def test_once_for_each_task(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        app = celery_app(site.url, broker_transport_options={"message_size_warning": 5000})
        for name in ("one", "one", "two"):
            app.send_task(name, ["x" * 4000])
        app.send_task("small", ["x" * 400])
        told = warnings(caplog)
        assert [text.partition(" has ")[0] for text in told] == [
            "Large message: task 'one'",
            "Large message: task 'two'",
        ]
        assert "message_size_warning is 5,000" in told[0]
        assert ready(site) == 4

    def test_of_a_mebibyte_by_default(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        channel = site.channel()
        # kombu writes the body as base64: four bytes for three.
        publish(channel, "x" * (750 * 1024))
        assert warnings(caplog) == []
        publish(channel, "x" * (790 * 1024))
        [told] = warnings(caplog)
        assert told.startswith("Large message: a message for 'q' has 1,0")

    def test_off(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        publish(site.channel(message_size_warning=0), "x" * (790 * 1024))
        assert warnings(caplog) == []

    def test_what_is_remembered_is_bounded(
        self, site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "MOST_WARNED", 2)
        channel = site.channel(message_size_warning=1)
        for queue in ("a", "b", "c", "d", "d"):
            publish(channel, "1", queue=queue)
        assert len(warnings(caplog)) == 4
        assert len(admission._warned) == 2


class TestLimit:
    @pytest.mark.parametrize("options", [{}, {"countdown": 60}, {"headers": {"x-unique": "a"}}])
    def test_new_work_is_refused(self, site: Site, limited: Celery, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="task 'big' was not published") as caught:
            limited.send_task("big", [LARGE], **options)
        told = str(caught.value)
        assert "message_size_limit is 20,000" in told
        assert "task_compression" in told
        assert "reference" in told
        limited.send_task("big", ["small"], **options)
        assert ready(site) + scheduled(site) == 1

    def test_the_error_is_short_if_the_name_is_what_is_large(self, site: Site, limited: Celery) -> None:
        with pytest.raises(ValueError, match=r"^task 'xxx.*\.\.\. was not published") as caught:
            limited.send_task(LARGE)
        assert len(str(caught.value)) < 500

    def test_a_compressed_one_is_small(self, site: Site, limited: Celery) -> None:
        limited.send_task("big", [LARGE], compression="zlib")
        assert ready(site) == 1

    def test_in_no_queue_of_several(self, site: Site) -> None:
        channel = site.channel(message_size_limit=LIMIT)
        exchange = Exchange("t", "topic")
        for name in ("a", "b"):
            Queue(name, exchange, routing_key="#")(channel).declare()
        with pytest.raises(ValueError, match="a message for 'k' was not published"):
            publish(channel, LARGE, exchange=exchange, queue="k")
        assert site.ready("a") + site.ready("b") == 0

    def test_a_batch_that_the_error_leaves_publishes_nothing(self, site: Site, limited: Celery) -> None:
        def publish() -> None:
            with batch(limited):
                send(limited, 1, 2)
                limited.send_task("big", [LARGE])

        with pytest.raises(ValueError, match="task 'big' was not published"):
            publish()
        assert ready(site) == 0

    @pytest.mark.parametrize(
        "options", [{"retries": 1}, {"parent_id": "p"}, {"group_id": "g", "group_index": 1}]
    )
    def test_what_follows_of_other_work_is_only_warned_of(
        self, site: Site, limited: Celery, options: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        limited.send_task("big", [LARGE], **options)
        assert ready(site) == 1
        [told] = warnings(caplog)
        assert "message_size_limit is 20,000, which does not hold for what follows of other work" in told

    def test_a_chain_and_a_retry_go_on(self, site: Site) -> None:
        app = celery_app(
            site.url, result_backend="cache+memory://", broker_transport_options={"message_size_limit": LIMIT}
        )
        done = []

        @app.task(shared=False, name="grow")
        def grow(size: int) -> str:
            return "x" * size

        @app.task(shared=False, name="shrink", bind=True)
        def shrink(self: Any, text: str) -> None:
            done.append((len(text), self.request.retries))
            if not self.request.retries:
                raise self.retry(countdown=0)

        with start_worker(
            app, pool="solo", loglevel="WARNING", perform_ping_check=False, shutdown_timeout=30
        ):
            chain(grow.s(len(LARGE)), shrink.s()).apply_async().get(timeout=30, disable_sync_subtasks=False)
        assert done == [(len(LARGE), 0), (len(LARGE), 1)]

    def test_an_answer_is_not_refused(self, site: Site) -> None:
        channel = site.channel(message_size_limit=LIMIT)
        inbox = Inbox(channel)
        publish(channel, LARGE, correlation_id="1")
        publish(channel, LARGE, delivery_mode="transient")
        drain(channel.connection.client, lambda: len(inbox) == 2)


@pytest.mark.parametrize("name", ["message_size_warning", "message_size_limit"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "1 MB"])
def test_a_wrong_option_is_an_error_on_connecting(site: Site, name: str, value: object) -> None:
    connect: Callable[[], object] = Connection(site.url, transport_options={name: value}).connect
    with pytest.raises(ValueError, match=f"transport option '{name}' must be a whole number of bytes from 0"):
        connect()
