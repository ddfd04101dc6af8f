"""Misspelt transport options, and those that are none of ours."""

from __future__ import annotations

import inspect
import logging
import re
from dataclasses import dataclass

import pytest
from kombu import connection, messaging
from kombu.connection import Connection
from kombu.transport import redis, virtual

from kombu_redisdelay.broker import options
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.transport import settings
from kombu_redisdelay.transport.settings import KNOWN, unknown_options, warn_of_misspelt_options
from tools.harness.redis_server import HOST, RedisServer

#: How kombu reads an option, wherever it does; but not how it reads what a pool was made with.
_READS = re.compile(
    r"(?:transport_options|transport_opts|topts|(?<!pool\.)connection_kwargs)(?:\.get\(|\[)\s*['\"](\w+)['\"]"
)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("visibility_timout", "visibility_timeout"),
        ("visibility-timeout", "visibility_timeout"),
        ("VISIBILITY_TIMEOUT", "visibility_timeout"),
        ("visibilityTimeout", "visibility_timeout"),
        ("delivery_limits", "delivery_limit"),
        ("deadletter", "dead_letter"),
        ("dead_letters_limit", "dead_letter_limit"),
        ("max_batches", "max_batch"),
        ("global_key_prefix", "global_keyprefix"),
        ("priority_step", "priority_steps"),
        ("socket_connection_timeout", "socket_connect_timeout"),
        ("queue_strategy", "queue_order_strategy"),
        # RedBeat's, SQS's, RabbitMQ's, an application's.
        ("retry_period", None),
        ("sentinels", None),
        ("service_name", None),
        ("region", None),
        ("predefined_queues", None),
        ("queue_name_prefix", None),
        ("confirm_publish", None),
        ("tenant", None),
    ],
)
def test_what_was_meant(name: str, meant: str | None) -> None:
    assert unknown_options({name: 1}) == {name: meant}


def test_whatever_kombu_reads_is_known() -> None:
    """In the release that is installed."""
    read = {
        name
        for module in (connection, messaging, redis, virtual.base)
        for name in _READS.findall(inspect.getsource(module))
    }
    assert {"polling_interval", "health_check_interval", "max_retries", "callback"} <= read
    assert read <= KNOWN
    assert set(Options.__slots__) <= KNOWN
    policy = inspect.signature(Connection.ensure).parameters.keys() - {"self", "obj", "fun"}
    assert policy <= KNOWN


def test_each_is_warned_of_once_a_process(caplog: pytest.LogCaptureFixture) -> None:
    options = {"delivery_limitt": 3, "tenant": "x", "max_retries": 1, "fanout_prefix": True}
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            warn_of_misspelt_options(options)
        warn_of_misspelt_options({"delivery_limittt": 3})
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"The transport option {name!r} is unknown, and has no effect. Did you mean 'delivery_limit'?"
        for name in ("delivery_limitt", "delivery_limittt")
    ]


@dataclass(frozen=True, slots=True)
class WithRenamed(Options):
    patience: int = options._option(3, options.whole(1), was="waits")


def test_the_earlier_name_of_an_option(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert WithRenamed.of({"waits": 5}) == WithRenamed(patience=5)
    assert WithRenamed.of({"waits": 5, "patience": 7}) == WithRenamed(patience=7)
    with pytest.raises(ValueError, match="'patience' must be a whole number from 1, not 0"):
        WithRenamed.of({"waits": 0})
    monkeypatch.setattr(settings, "Options", WithRenamed)
    monkeypatch.setattr(settings, "_warned", set())
    for _ in range(2):
        warn_of_misspelt_options({"waits": 5})
    assert caplog.messages == [
        "The transport option 'waits' is named 'patience' now. It still has its effect"
    ]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("priority_steps", "a", "a list of whole numbers from 0"),
        ("priority_steps", [0, -3], "a list of whole numbers from 0"),
        ("sep", 3, "a text with one character at least"),
        ("sep", "", "a text with one character at least"),
        ("global_keyprefix", 3, "a text"),
        ("socket_timeout", "x", "a number of seconds from 0, or None"),
        ("socket_connect_timeout", -1, "a number of seconds from 0, or None"),
        ("queue_order_strategy", "foo", "round_robin, priority, sorted, or the path of a class"),
        ("queue_order_strategy", 3, "round_robin, priority, sorted, or the path of a class"),
    ],
)
def test_a_wrong_option_of_kombu(server: RedisServer, name: str, value: object, expected: str) -> None:
    """Before anything is published, under a wrong name for instance."""
    said = f"'{name}' must be {expected}, not {re.escape(repr(value))}"
    url = f"redisdelay://{HOST}:{server.port}"
    with (
        Connection(url, transport_options={name: value}) as connection,
        pytest.raises(ValueError, match=said),
    ):
        connection.default_channel  # noqa: B018
    with server.client() as client:
        assert client.dbsize() == 0


@pytest.mark.parametrize(
    "order", ["round_robin", "priority", "sorted", "kombu.utils.scheduling.sorted_cycle"]
)
def test_a_right_order(server: RedisServer, order: str) -> None:
    options = {"queue_order_strategy": order, "socket_timeout": None, "priority_steps": (0, 5)}
    with Connection(f"redisdelay://{HOST}:{server.port}", transport_options=options) as connection:
        assert connection.default_channel.queue_order_strategy == order
