"""Keys by which fair queues take turns, as kombu and Celery publish them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import pytest
from celery import Celery, chain, chord, group
from celery.contrib.testing.worker import start_worker

from kombu_redisdelay import batch, keys
from kombu_redisdelay.broker.fair_keys import member_of
from kombu_redisdelay.transport import receive
from tests.transport.kit import Inbox, Site, drain, publish

MEMBER = "redisdelay-key"


class Plan(str, Enum):
    FREE = "free"


class Size(IntEnum):
    SMALL = 1


def members(site: Site, queue: str = "celery") -> list[str | None]:
    """What the ready messages say of their keys, the oldest first."""
    texts = site.client_of(queue).lrange(site.keys(queue).ready, 0, -1)
    return [json.loads(text).get(MEMBER) for text in reversed(texts)]


class TestKombu:
    def test_a_message_says_what_its_headers_say(self, site: Site) -> None:
        channel = site.channel()
        publish(channel, "1", headers={"x-key": "tenant 42"})
        publish(channel, "2", headers={"x-key": "é\U0001f600", "x-key-weight": 2.5})
        publish(channel, "3")
        assert members(site, "q") == ["1 tenant 42", "2.5 é\U0001f600", None]

    def test_it_arrives_with_its_headers_and_nothing_else(self, site: Site) -> None:
        channel = site.channel()
        inbox = Inbox(channel)
        headers = {"x-key": "a", "x-key-weight": 2, "x-unique": "b", "x-unique-while": "done"}
        publish(channel, "now", headers=headers)
        publish(channel, "later", headers={**headers, "x-unique": "c", "x-delay": 1})
        drain(channel.connection.client, lambda: len(inbox) == 2)
        # Both hold their unique keys: the scripts have read both members.
        assert site.client_of("q").hlen(site.keys("q").running) == 2
        expected = {name: value for name, value in headers.items() if name != "x-unique"}
        for message in inbox:
            assert {name: message.headers[name] for name in expected} == expected
            assert not [name for name in message.headers if name.startswith("redisdelay")]
            message.ack()
        assert site.unacked("q") == 0

    def test_a_member_of_an_enumeration_is_its_text(self, site: Site) -> None:
        """The key was "Plan.FREE" from Python 3.11 on, and that of its retry "free"."""
        publish(site.channel(), "1", headers={"x-key": Plan.FREE, "x-key-weight": Size.SMALL})
        assert members(site, "q") == ["1 free"]

    @pytest.mark.parametrize(
        ("headers", "message"),
        [
            ({"x-key": 5}, "header 'x-key' must be a text, not 5"),
            ({"x-key": "a\nb"}, "header 'x-key' must have no control characters"),
            ({"x-key": 'a"b'}, "quotation marks or backslashes"),
            ({"x-key": "a\\b"}, "quotation marks or backslashes"),
            ({"x-key": "\udc80"}, "cannot be written as UTF-8"),
            ({"x-key": "é" * 33}, "must have 64 bytes at most, not 66"),
            ({"x-key-weight": 2}, "header 'x-key-weight' needs header 'x-key'"),
            ({"x-key": "a", "x-key-weight": 0}, "must be a number from 0.001 to 1000, not 0"),
            ({"x-key": "a", "x-key-weight": 1000.1}, "must be a number from"),
            ({"x-key": "a", "x-key-weight": -1}, "must be a number from"),
            ({"x-key": "a", "x-key-weight": float("nan")}, "not nan"),
            ({"x-key": "a", "x-key-weight": "2"}, "not '2'"),
            ({"x-key": "a", "x-key-weight": True}, "not True"),
            ({"x-key": "a", "x-key-weight": 10**400}, "not a very large number"),
            ({"x-key": "a", "x-key-weight": "2" * 1000}, r"not '2+\.\.\.$"),
            ({"x-key": "a\x85"}, "no control characters"),
        ],
    )
    def test_what_is_wrong_is_refused(self, site: Site, headers: dict[str, Any], message: str) -> None:
        channel = site.channel()
        for more in ({}, {"x-delay": 1000}, {"x-unique": "a"}):
            with pytest.raises(ValueError, match=message):
                publish(channel, "m", headers={**headers, **more})
        assert (site.ready(), site.scheduled()) == (0, 0)

    @pytest.mark.parametrize(
        ("headers", "said"),
        [
            ({"x-key": 5}, "header 'x-key' of task 't' must be a text, not 5"),
            ({"x-key": "a\nb"}, "must have no control characters"),
            ({"x-key": "a", "x-key-weight": "x" * 10_000}, "must be a number from 0.001 to 1000, not 'xxx"),
            ({"x-key-weight": 2}, "'x-key-weight' needs header 'x-key'"),
            ({"x-key": {"a": [None]}}, "must be a text, not {'a': [None]}"),
        ],
    )
    def test_what_another_transport_has_published_wrongly_is_taken_and_told(
        self, site: Site, caplog: pytest.LogCaptureFixture, headers: dict[str, Any], said: str
    ) -> None:
        receive._warned.clear()
        channel = site.channel()
        publish(channel, "1", "2", headers={"task": "t"})
        client, ready = site.client_of("q"), site.keys("q").ready
        for _ in range(2):
            message = json.loads(client.rpop(ready))
            message["headers"] |= headers
            client.lpush(ready, json.dumps(message))
        publish(channel, "3", headers={"x-key": "right"})
        inbox = Inbox(channel)
        drain(channel.connection.client, lambda: len(inbox) == 3)
        [told] = [record.getMessage() for record in caplog.records if "wrong key" in record.getMessage()]
        assert told.startswith("A message of queue 'q' has a wrong key or weight, which counts as none: ")
        assert said in told
        assert len(told) < 400

    @pytest.mark.parametrize("weight", [0.001, 0.1, 1, 1.5, 1000])
    def test_a_weight_has_no_exponent(self, weight: float) -> None:
        assert member_of({"x-key": "a", "x-key-weight": weight}) == f"{weight} a"


@pytest.fixture
def app(single_site: Site) -> Iterator[Celery]:
    with Celery("keys", broker=single_site.url, backend="cache+memory://", set_as_current=False) as app:
        app.conf.worker_hijack_root_logger = False

        @app.task(shared=False, name="sync", bind=True, max_retries=1)
        def sync(self: Any, tenant: str = "", again: bool = False) -> Any:
            said = (self.request.headers or {}).get("x-key")
            if again and not self.request.retries:
                raise self.retry(countdown=0)
            return said

        @app.task(shared=False, name="parent")
        def parent() -> str:
            child: str = sync.delay().id
            return child

        yield app


def tenant_of(name: str, args: Any, kwargs: Any) -> Any:
    return (args[0] if args else kwargs.get("tenant")) or None


class TestCelery:
    def test_every_task_has_a_key(self, app: Celery, single_site: Site) -> None:
        keys(app, tenant_of)
        sync = app.tasks["sync"]
        sync.delay("a")
        sync.apply_async(kwargs={"tenant": "b"})
        sync.s("c").apply_async()
        app.send_task("sync", ("d",))
        group(sync.s("e"), sync.s("f")).apply_async()
        with batch(app):
            sync.delay("g")
        sync.delay()
        chord([sync.s("h"), sync.s("i")], sync.si("j")).apply_async()
        chain(sync.si("k"), sync.si("l")).apply_async()
        assert members(single_site) == [*(f"1 {key}" for key in "abcdefg"), None, "1 h", "1 i", "1 k"]

    def test_a_key_with_a_weight(self, app: Celery, single_site: Site) -> None:
        keys(app, lambda name, args, kwargs: (name, 5))
        app.tasks["sync"].delay()
        assert members(single_site) == ["5 sync"]

    @pytest.mark.parametrize(
        ("found", "member"),
        [(7, "1 7"), ((-7, 2), "2 -7"), (0, "1 0"), (UUID(int=10), f"1 {UUID(int=10)}"), (Size.SMALL, "1 1")],
    )
    def test_an_id_from_a_database(self, app: Celery, single_site: Site, found: Any, member: str) -> None:
        keys(app, lambda name, args, kwargs: found)
        app.tasks["sync"].delay()
        assert members(single_site) == [member]

    def test_a_header_by_hand_is_a_text(self, app: Celery) -> None:
        with pytest.raises(
            ValueError, match=r"'x-key' of task 'sync' must be a text, not 42: write str\(42\)"
        ):
            app.tasks["sync"].apply_async(headers={"x-key": 42})

    def test_the_call_counts_more(self, app: Celery, single_site: Site) -> None:
        keys(app, tenant_of)
        app.tasks["sync"].apply_async(("a",), headers={"x-key": "b", "x-key-weight": 3})
        assert members(single_site) == ["3 b"]

    def test_what_a_worker_publishes(
        self, app: Celery, single_site: Site, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Retries, children, the rest of a chain and the body of a chord."""
        # As a producer of redis:// writes it.
        foreign = [app.tasks["sync"].delay(again=True), app.tasks["parent"].delay()]
        client, ready = single_site.client_of("celery"), single_site.keys("celery").ready
        for _ in foreign:
            message = json.loads(client.rpop(ready))
            message["headers"]["x-key"] = 42
            client.lpush(ready, json.dumps(message))
        keys(
            app,
            lambda name, args, kwargs: (
                "by name" if name == "celery.chord_unlock" else tenant_of(name, args, kwargs)
            ),
        )
        sync, parent = app.tasks["sync"], app.tasks["parent"]
        with start_worker(
            app,
            # The level of the root logger stays for later tests.
            loglevel="WARNING",
            perform_ping_check=False,
            shutdown_timeout=30,
        ):
            assert foreign[0].get(20) == 42
            assert app.AsyncResult(foreign[1].get(20)).get(20) == 42
            said = "Published without a key: header 'x-key' of task 'sync' must be a text, not 42"
            assert said in caplog.text
            assert sync.delay("a", again=True).get(20) == "a"
            child = parent.apply_async(headers={"x-key": "p"}).get(20)
            assert app.AsyncResult(child).get(20) == "p"
            assert chain(sync.si("c"), sync.si()).apply_async().get(20) == "c"
            assert chord([sync.si("d"), sync.si("d")], sync.si()).apply_async().get(20) == "d"

    @pytest.mark.parametrize(
        ("found", "message"),
        [
            (5.0, "the key of task 'sync' must be a text, a whole number or a UUID, not 5.0"),
            (True, "the key of task 'sync' must be a text, a whole number or a UUID, not True"),
            (("a", 0), "the weight of the key of task 'sync' must be a number"),
            (("a", 1, 2), "the key of task 'sync' must be a text"),
            (10**70, "the key of task 'sync' must have 64 bytes at most"),
        ],
    )
    def test_what_a_function_must_not_return(self, app: Celery, found: Any, message: str) -> None:
        keys(app, lambda name, args, kwargs: found)
        with pytest.raises(ValueError, match=message):
            app.tasks["sync"].delay()

    def test_what_is_passed_wrongly(self, app: Celery) -> None:
        with pytest.raises(TypeError, match="takes a Celery app"):
            keys("app", tenant_of)
        with pytest.raises(TypeError, match="takes a function"):
            keys(app, "tenant")  # type: ignore[arg-type]
