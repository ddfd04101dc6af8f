"""The parts of kombu that we override, call or read. A test that fails here tells what kombu has moved.

What we extend of Celery is listed, too, with the reason. ``test_celery_seams`` holds what it means.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery.worker.request import Request as CeleryRequest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.transport import TRANSPORT_ALIASES, redis, virtual
from kombu.utils import scheduling
from kombu.utils.eventio import READ

import kombu_redisdelay
from kombu_redisdelay.transport import request
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.connecting import ConnectingChannel
from kombu_redisdelay.transport.declaring import DeclaringChannel
from kombu_redisdelay.transport.outbox import ProducerBatch
from kombu_redisdelay.transport.poller import Poller
from kombu_redisdelay.transport.publishing import PublishingChannel
from kombu_redisdelay.transport.qos import QoS
from kombu_redisdelay.transport.returned import tell_what_has_not_failed
from kombu_redisdelay.transport.sentinel import SentinelChannel, SentinelTransport
from kombu_redisdelay.transport.transports import Transport
from kombu_redisdelay.transport.unusable import UNUSABLE
from kombu_redisdelay.transport.worker import extend_worker
from tests.transport.kit import Inbox, Site, drain, publish
from tools.harness.redis_server import RedisServer

PACKAGE = Path(kombu_redisdelay.__file__).parent

OVERRIDDEN: list[tuple[type, type, set[str]]] = [
    (
        Channel,
        redis.Channel,
        {
            *("_poll_error", "_basic_cancel", "_has_queue", "_size", "_purge", "_delete", "_after_fork"),
            *(
                "_connparams",
                "_update_queue_cycle",
                "basic_consume",
                "basic_get",
                "_handle_message",
                "_on_connection_disconnect",
                "queue_delete",
                "close",
                "_receive_one",
            ),
        },
    ),
    (
        PublishingChannel,
        redis.Channel,
        {
            *("_put", "basic_publish", "_next_delivery_tag"),
        },
    ),
    (
        DeclaringChannel,
        redis.Channel,
        {
            *(
                "_new_queue",
                "_queue_bind",
                "queue_bind",
                "queue_declare",
                "queue_unbind",
                "get_table",
                "_lookup",
                "prepare_queue_arguments",
                "typeof",
            ),
        },
    ),
    (ConnectingChannel, redis.Channel, {"_get_pool", "_after_fork", "conn_or_acquire", "_get_client"}),
    (
        Poller,
        redis.MultiChannelPoller,
        {"add", "discard", "close", "on_poll_start", "on_readable", "get", "_on_connection_disconnect"},
    ),
    (
        QoS,
        virtual.QoS,
        {"ack", "reject", "can_consume", "restore_unacked", "restore_unacked_once", "restore_visible"},
    ),
    (
        Transport,
        redis.Transport,
        {
            *("register_with_event_loop", "drain_events", "create_channel", "establish_connection"),
            "_deliver",
        },
    ),
    (
        SentinelChannel,
        redis.SentinelChannel,
        {"_sentinel_managed_pool", "_disconnect_pools"},
    ),
    (SentinelTransport, redis.SentinelTransport, set()),
]


#: Class or module of Celery -> what of it we have replaced (``extending.py``) -> why there is no better
#: place.
EXTENDED: dict[str, dict[str, str]] = {
    "celery.worker.consumer.consumer:Consumer": {
        "connection_for_read": "Nothing else tells a connection that a worker consumes over it.",
        "ensure_connected": "It waits for a server that is away, but not for one that refuses for a while.",
        "update_strategies": "The requests of tasks get their class there, each time that it has connected.",
        "create_task_handler": "Each message is looked at before Celery sees it.",
        "on_decode_error": "Here a message is lost that could be a dead letter.",
        "on_invalid_task": "Here, too.",
        "on_unknown_message": "Here, too.",
        "on_unknown_task": "Here a message is lost that another worker may know.",
        "on_connection_error_after_connected": "A fault: see `upstream.py`, as with the next two.",
        "on_close": "A fault.",
    },
    "celery.worker.consumer.consumer:Consumer.Blueprint": {
        "start": "A refusal of the server leaves it as an error that ends the worker."
    },
    "celery.worker.heartbeat:Heart": {"_send": "A fault."},
    "celery.backends.rpc:RPCBackend": {"store_result": "A fault: results have no time to live."},
    "celery.app.trace": {
        "report_internal_error": "Only the tracer knows that a task has returned; it says so to nobody."
    },
    "celery.app.trace:TraceInfo": {
        "handle_failure": "The same, of an error that has its own report.",
        "handle_retry": "An error there makes a failure of a task whose retry was published.",
    },
}

#: What our request overrides of Celery's, which is derived from it, and why.
OF_REQUEST = {
    "__init__": "Its ack is sent where it is called, in each pool.",
    "execute_using_pool": "The gate to the pool is there.",
    "on_failure": "How a task has ended is told there,",
    "on_timeout": "and there,",
    "_announce_revoked": "and there. The signal `task_revoked` does not say which message it is of.",
    "_retry_worker_lost": "A fault: see `upstream.py`, as with the next two.",
    "_announce_cancelled": "A fault.",
    "cancel": "A fault.",
}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(function).parameters.values() if p.name != "self"]


def takes(function: Callable[..., Any], *args: object, **kwargs: object) -> None:
    """Fail unless *function* of a class can be called with these."""
    inspect.signature(function).bind(object(), *args, **kwargs)


@pytest.mark.parametrize(
    ("ours", "theirs", "name"),
    [(ours, theirs, name) for ours, theirs, names in OVERRIDDEN for name in sorted(names)],
    ids=lambda value: value if isinstance(value, str) else value.__module__,
)
def test_what_we_override_is_there_and_called_as_we_expect(ours: type, theirs: type, name: str) -> None:
    assert name in vars(ours), "we do not override it any more"
    their_parameters = parameters(getattr(theirs, name))
    our_parameters = parameters(getattr(ours, name))
    ours_by_name = {parameter.name: parameter for parameter in our_parameters}
    has_rest = any(p.kind is p.VAR_POSITIONAL for p in our_parameters)
    has_keywords = any(p.kind is p.VAR_KEYWORD for p in our_parameters)
    for position, parameter in enumerate(their_parameters):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in ours_by_name:
            same = list(ours_by_name).index(parameter.name) == position
            assert same or parameter.kind is parameter.KEYWORD_ONLY, parameter.name
        else:
            assert has_rest or has_keywords, f"{parameter.name} is new"


def test_nothing_else_of_kombu_is_overridden() -> None:
    """A name of ours that kombu comes to use for something else would be one, too."""
    for ours, theirs, names in OVERRIDDEN:
        attributes = {"__init__", "__doc__", "__module__", "__annotations__", "__firstlineno__"}
        attributes |= {"__static_attributes__", "QoS", "Channel", "brpop_timeout", "_collect"}
        attributes |= {"active_queues", "_refresh_bindings", "sweep_bindings", "create_publish_batch"}
        # From kombu 5.7 on.
        attributes |= {"_pubsub_reauth_handled_by_redis", "_flush_brpop_reauth"}
        attributes |= {"connection_class", "connection_class_ssl", "default_port"}
        both = {name for name in vars(ours) if hasattr(theirs, name)} - attributes
        assert both == names, ours


class TestChannel:
    def test_calls(self) -> None:
        channel = redis.Channel
        takes(channel._get_message_priority, {})
        takes(channel.priority, 5)
        takes(channel._disconnect_pools)
        takes(channel._connparams, asynchronous=True)
        takes(channel._size, "q")
        takes(channel._inplace_augment_message, {}, "exchange", "routing_key")
        takes(channel.typeof, "exchange")
        takes(virtual.exchange.DirectExchange.deliver, {}, "exchange", "routing_key")
        assert isinstance(vars(channel)["active_queues"], property)
        assert isinstance(vars(channel)["pool"], property)

    def test_attributes(self, site: Site) -> None:
        channel = site.channel()
        assert channel._tag_to_queue == {}
        assert channel._active_queues == []
        assert isinstance(channel._fanout_queues, dict)
        assert channel.auto_delete_queues == set()
        assert channel._closing is False
        assert not channel._in_poll
        assert channel.do_restore is True
        assert channel.ack_emulation is True
        assert channel.global_keyprefix == ""
        assert channel.sep == "\x06\x16"
        assert list(channel.priority_steps) == [0, 3, 6, 9]
        assert channel.max_connections == 10
        assert channel.connection is channel.connection.client.transport
        assert channel.closed is False

    @pytest.mark.one_server
    def test_client_is_cached_under_this_name(self, site: Site) -> None:
        channel = site.channel()
        assert "client" in vars(channel)
        Inbox(channel)
        publish(channel, "a")
        channel.connection.cycle.on_poll_start()
        [fetcher] = channel.intake.fetchers
        assert fetcher.client is channel.client
        assert fetcher.is_waiting

    def test_cancel_within_a_read_waits(self, site: Site) -> None:
        channel = site.channel()
        inbox = Inbox(channel)
        poller = channel.connection.cycle
        poller._in_protected_read = True
        inbox.consumer.cancel()
        assert channel._active_queues == ["q"]
        assert len(poller.after_read) == 1
        poller._in_protected_read = False
        poller.after_read.pop()()
        assert channel._active_queues == []

    def test_bindings_are_a_set_under_this_key(self, site: Site) -> None:
        channel = site.channel()
        Queue("q", Exchange("e"), "k", channel=channel).declare()
        assert site.redis.smembers(channel.keyprefix_queue % "e") == {b"k\x06\x16\x06\x16q"}

    def test_exchanges_look_up_their_queues(self) -> None:
        """We do so in their place, and put the message into each of these."""
        for exchange in (virtual.exchange.DirectExchange, virtual.exchange.TopicExchange):
            assert "self.channel._lookup" in inspect.getsource(exchange.deliver)
            assert "_put(queue, message" in inspect.getsource(exchange.deliver)
        assert "if q and q != deadletter" in inspect.getsource(virtual.exchange.TopicExchange.deliver)
        assert "self.get_table" in inspect.getsource(virtual.Channel._lookup)

    def test_fanout_publishes_to_its_topics(self) -> None:
        """We do so in its place."""
        source = inspect.getsource(redis.Channel._put_fanout)
        assert "_get_publish_topic" in source
        assert "client.publish(" in source

    def test_what_goes_back_without_ack_emulation_is_put(self) -> None:
        assert "self._put(queue, message)" in inspect.getsource(virtual.Channel._restore)

    def test_without_ack_emulation_the_base_class_counts(self, site: Site) -> None:
        assert site.channel(ack_emulation=False).QoS is virtual.QoS

    def test_a_batch_is_made_like_kombus(self) -> None:
        if hasattr(redis, "PublishBatch"):
            takes(redis.Channel.create_publish_batch, max_size=1)

    @pytest.mark.parametrize("name", ["publish", "flush", "discard", "close"])
    def test_batch_is_used_like_kombus(self, name: str) -> None:
        if not hasattr(redis, "PublishBatch"):
            pytest.skip("kombu < 5.7")
        ours, theirs = getattr(ProducerBatch, name), getattr(redis.PublishBatch, name)
        assert [p.name for p in parameters(ours)] == [p.name for p in parameters(theirs)]


class TestPoller:
    def test_calls(self) -> None:
        poller = redis.MultiChannelPoller
        takes(poller._register_BRPOP, object())
        takes(poller._register_LISTEN, object())
        takes(poller.handle_event, 1, 1)
        takes(poller.on_poll_init, object())
        takes(poller.maybe_restore_messages)

    def test_attributes(self) -> None:
        poller = redis.MultiChannelPoller()
        assert poller._channels == set()
        assert poller._fd_to_chan == {}
        assert poller.after_read == set()
        assert poller._in_protected_read is False
        assert callable(poller.poller.poll)

    def test_registered_sockets_lead_to_channel_and_kind(self, site: Site) -> None:
        channel = site.channel()
        Inbox(channel)
        poller = channel.connection.cycle
        poller.on_poll_start()
        assert list(poller._fd_to_chan.values()) == [(channel, *channel.intake.fetchers)]

    def test_read_events_come_to_on_readable(self, site: Site) -> None:
        channel = site.channel()
        poller = channel.connection.cycle
        Inbox(channel)
        poller.on_poll_start()
        seen: list[int] = []
        poller.on_readable = seen.append
        [fileno] = poller._fd_to_chan
        poller.handle_event(fileno, READ)
        assert seen == [fileno]

    def test_recovery_timer_comes_to_qos(self) -> None:
        assert "restore_visible" in inspect.getsource(redis.MultiChannelPoller.maybe_restore_messages)


class TestTransport:
    def test_collect_is_what_a_connection_calls(self) -> None:
        assert "_collect" in inspect.getsource(Connection.collect)

    def test_attributes(self, site: Site) -> None:
        transport = site.connect().transport
        assert isinstance(transport.cycle, Poller)
        assert transport.driver_type == "redis"
        assert transport._avail_channels == []
        assert transport.channels == []
        assert transport.connection_errors

    def test_events_come_through_the_cycle(self, site: Site) -> None:
        channel = site.channel()
        calls: list[object] = []

        def get(callback: object, timeout: float | None = None) -> None:
            calls.append(callback)

        channel.connection.cycle.get = get
        channel.connection.client.drain_events(timeout=1)
        assert len(calls) == 1

    def test_timers_go_to_the_hub_that_was_registered(self) -> None:
        assert parameters(redis.Transport.register_with_event_loop)[1].name == "loop"

    def test_aliases_are_a_mapping_from_scheme_to_path(self) -> None:
        assert TRANSPORT_ALIASES["redis"] == "kombu.transport.redis:Transport"
        assert kombu_redisdelay.Transport is Transport


class TestQoS:
    def test_attributes(self) -> None:
        qos = virtual.QoS(channel=None, prefetch_count=3)
        try:
            assert qos._delivered == {}
            assert qos._dirty == set()
            assert qos.can_consume() is True
            assert qos.can_consume_max_estimate() == 3
            qos.append(object(), "tag")
            assert qos.can_consume_max_estimate() == 2
            qos.ack("tag")
            assert qos._dirty == {"tag"}
            assert qos.can_consume_max_estimate() == 3
        finally:
            qos._on_collect.cancel()

    def test_no_limit(self) -> None:
        qos = virtual.QoS(channel=None)
        try:
            assert qos.can_consume_max_estimate() is None
        finally:
            qos._on_collect.cancel()

    def test_is_asked_when_a_channel_closes(self) -> None:
        assert "restore_unacked_once" in inspect.getsource(virtual.Channel.close)


class TestCycles:
    @pytest.mark.parametrize(
        ("name", "strict"), [("priority", True), ("sorted", True), ("round_robin", False)]
    )
    def test_strict_ones_are_priority_cycles(self, name: str, strict: bool) -> None:
        cycle = scheduling.cycle_by_name(name)
        assert issubclass(cycle, scheduling.priority_cycle) is strict

    def test_calls(self) -> None:
        cycle = scheduling.round_robin_cycle()
        cycle.update(["a", "b"])
        cycle.rotate("a")
        assert cycle.consume(2) == ["b", "a"]


class TestMessage:
    def test_is_made_of_a_payload(self, site: Site) -> None:
        channel = site.channel()
        payload = {"body": "YQ==", "properties": {"delivery_tag": "7", "body_encoding": "base64"}}
        message = channel.Message(payload, channel=channel)
        assert (message.delivery_tag, message.body) == ("7", b"a")

    def test_published_with_a_tag(self, site: Site) -> None:
        """Which is the id of a message that has none."""
        channel = site.channel()
        publish(channel, "a", "b", headers={"x-delay": 60_000})
        stored = site.redis.hgetall(site.keys().messages)
        assert len(stored) == 2
        for tag, message in stored.items():
            payload = json.loads(message.partition(b":")[2])
            assert payload["properties"]["delivery_tag"] == tag.decode()


@pytest.mark.one_server
def test_the_inbox_of_these_tests_works_with_the_stock_transport_too(site: Site, server: RedisServer) -> None:
    connection = site.connect(server.url("redis"))
    channel = connection.channel()
    publish(channel, "a")
    inbox = Inbox(channel)
    drain(connection, lambda: len(inbox) == 1)
    inbox.messages[0].ack()


class TestCelery:
    @staticmethod
    def extended(of: str) -> set[str]:
        module, _, name = of.partition(":")
        owner: Any = importlib.import_module(module)
        for part in name.split(".") if name else ():
            owner = getattr(owner, part)
        return {name for name, value in vars(owner).items() if hasattr(value, "extends_celery")}

    def test_what_we_replace(self) -> None:
        # They extend what is loaded.
        importlib.import_module("celery.worker.consumer.consumer")
        extend_worker()
        tell_what_has_not_failed()
        for of, names in EXTENDED.items():
            assert self.extended(of) == names.keys(), of

    def test_nothing_else_is_replaced(self) -> None:
        """As our sources say it."""
        calls = [
            node
            for path in PACKAGE.rglob("*.py")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "extend"
        ]
        of_classes = sum(map(len, EXTENDED.values())) - len(UNUSABLE) + 1
        of_pools = 3
        assert len(calls) == of_classes + of_pools

    def test_what_our_request_overrides(self) -> None:
        overridden = {
            name
            for ours in request.Request.__mro__
            for name, value in vars(ours).items()
            if "redisdelay" in ours.__module__ and inspect.isfunction(value) and name in vars(CeleryRequest)
        }
        new = {"_retry_worker_lost"} - vars(CeleryRequest).keys()
        assert overridden == OF_REQUEST.keys() - new
