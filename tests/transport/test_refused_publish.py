"""What a publisher is told when a server refuses: whether the connection counts as lost, so that kombu tries
again by its policy. In no case is anything stored that it is not told of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Thread
from typing import Any

import pytest
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from redis.exceptions import RedisError

from kombu_redisdelay import PartlyPublishedError
from kombu_redisdelay.transport import patience
from tests.transport.kit import Site, publish
from tools.harness import trouble
from tools.harness.process import wait_until
from tools.harness.proxy import Proxy, Trap
from tools.harness.redis_server import RedisServer

pytestmark = pytest.mark.one_server

Begin = Callable[[RedisServer, Proxy], AbstractContextManager[object]]


@pytest.fixture
def site(site_of_user: Site) -> Site:
    return site_of_user


@contextmanager
def by_proxy(proxy: Proxy, said: str) -> Iterator[None]:
    proxy.refuse(said)
    yield
    proxy.serve()


#: What is wrong -> how it comes, and whether the connection counts as lost.
TROUBLES: dict[str, tuple[Begin, bool]] = {
    "OOM": (lambda server, _: trouble.full(server), False),
    "MISCONF": (lambda server, _: trouble.misconf(server), False),
    "NOPERM": (lambda server, _: trouble.no_permission(server, trouble.USER, "-@write"), False),
    "quota": (lambda _, proxy: by_proxy(proxy, "ERR max daily request limit exceeded."), False),
    "unknown": (lambda _, proxy: by_proxy(proxy, "ERR the disks are on strike"), False),
    "BUSY": (lambda server, _: trouble.busy(server), True),
    "LOADING": (lambda _, proxy: by_proxy(proxy, "LOADING Redis is loading the dataset"), True),
    "READONLY": (lambda server, _: trouble.read_only(server), True),
    "MASTERDOWN": (lambda server, _: trouble.without_primary(server), True),
    "NOREPLICAS": (lambda server, _: trouble.too_few_replicas(server), True),
    "CLUSTERDOWN": (lambda _, proxy: by_proxy(proxy, "CLUSTERDOWN The cluster is down"), True),
}


@pytest.mark.parametrize("headers", [{}, {"x-delay": 60_000}], ids=["ready", "scheduled"])
@pytest.mark.parametrize(("begin", "is_lost"), TROUBLES.values(), ids=TROUBLES)
def test_a_publish(
    site: Site,
    own_server: RedisServer,
    proxy: Proxy,
    begin: Begin,
    is_lost: bool,
    headers: dict[str, int],
) -> None:
    connection = site.connect()
    channel = connection.default_channel
    publish(channel, "before")
    with begin(own_server, proxy):
        with pytest.raises(RedisError) as caught:
            publish(channel, "a", headers=headers)
        assert isinstance(caught.value, connection.connection_errors) is is_lost, repr(caught.value)
        assert ", on @user_script" not in str(caught.value), "the name of a script tells nobody anything"
    assert (site.ready(), site.scheduled()) == (1, 0)
    publish(site.channel(), "after", headers=headers)
    assert site.ready() + site.scheduled() == 2


def test_kombu_publishes_again_when_a_script_has_ended(site: Site, own_server: RedisServer) -> None:
    channel = site.channel()
    publish(channel, "before")
    told: list[BaseException] = []
    with ExitStack() as busy:
        busy.enter_context(trouble.busy(own_server))

        def end(error: BaseException, interval: float) -> None:
            told.append(error)
            if len(told) == 3:
                busy.close()

        policy = {"interval_start": 0.05, "interval_step": 0, "interval_max": 0.05, "errback": end}
        Producer(channel).publish("a", routing_key="q", retry=True, retry_policy=policy)
    assert len(told) == 3
    assert all("SCRIPT KILL" in str(error) for error in told)
    assert site.ready() == 2


class TestSeveralQueues:
    """A message goes to each queue that is bound, and the trouble begins between two of them."""

    exchange = Exchange("shop", "topic")

    @pytest.fixture
    def channel(self, site: Site) -> Any:
        channel = site.channel()
        for name in ("first", "second"):
            Queue(name, self.exchange, "order.*")(channel).declare()
        return channel

    @pytest.fixture
    def in_turn(self, channel: Any) -> list[str]:
        """The queues, in the order in which they get a message."""
        found = list(channel._lookup("shop", "order.paid"))
        assert sorted(found) == ["first", "second"]
        return found

    def publish(self, channel: Any, **options: Any) -> None:
        publish(channel, "a", exchange=self.exchange, routing_key="order.paid", **options)

    @contextmanager
    def refused(self, server: RedisServer, queue: str) -> Iterator[None]:
        """All that has to do with *queue*, and nothing else."""
        others = {"first", "second"} - {queue}
        keys = [rule for name in others for rule in (f"~{name}*", f"~*{{{name}}}*")]
        with trouble.no_permission(
            server, trouble.USER, "resetkeys", "~_kombu*", "~redisdelay:known*", *keys
        ):
            yield

    @pytest.mark.parametrize("headers", [{}, {"x-delay": 60_000}], ids=["ready", "scheduled"])
    def test_only_the_rest_is_tried_again(
        self,
        site: Site,
        own_server: RedisServer,
        channel: Any,
        in_turn: list[str],
        headers: dict[str, int],
    ) -> None:
        refusal = self.refused(own_server, in_turn[1])
        refusal.__enter__()
        site.redis.acl_log_reset()
        publishing = Thread(target=self.publish, args=(channel,), kwargs={"headers": headers})
        publishing.start()
        wait_until(site.redis.acl_log, 30, "that the second one is refused")
        assert publishing.is_alive()
        refusal.__exit__(None, None, None)
        publishing.join(10)
        assert not publishing.is_alive()
        assert {name: site.ready(name) + site.scheduled(name) for name in in_turn} == {
            "first": 1,
            "second": 1,
        }

    def test_in_the_end_an_error_names_the_queues_that_have_it(
        self,
        site: Site,
        own_server: RedisServer,
        channel: Any,
        in_turn: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(patience, "PATIENCE", 0.3)
        has_it, has_not = in_turn
        with self.refused(own_server, has_not), pytest.raises(PartlyPublishedError) as caught:
            # kombu tries what a lost connection has refused.
            Producer(channel).publish(
                "a", exchange=self.exchange, routing_key="order.paid", retry=True, declare=[self.exchange]
            )
        assert (caught.value.queues, caught.value.others) == ((has_it,), (has_not,))
        assert f"the message is in queue {has_it!r}, and not in queue {has_not!r}" in str(caught.value)
        assert not isinstance(caught.value, channel.connection.client.connection_errors)
        assert (site.ready(has_it), site.ready(has_not)) == (1, 0)

    def test_a_lost_connection_is_no_connection_error_either(
        self, site: Site, proxy: Proxy, channel: Any, in_turn: list[str]
    ) -> None:
        """kombu would publish the message anew."""
        has_it, may_have_it = in_turn
        trap = proxy.set_trap(Trap(f"{{{may_have_it}}}".encode()))
        with pytest.raises(PartlyPublishedError, match=f"'{may_have_it}' may have it") as caught:
            self.publish(channel, retry=True)
        assert trap.sprung.is_set()
        assert not isinstance(caught.value, channel.connection.client.connection_errors)
        assert (site.ready(has_it), site.ready(may_have_it)) == (1, 0)

    def test_where_none_has_it_the_error_is_as_for_one_queue(
        self, site: Site, own_server: RedisServer, channel: Any, in_turn: list[str]
    ) -> None:
        self.publish(channel)
        with trouble.full(own_server), pytest.raises(RedisError, match="maxmemory"):
            self.publish(channel)
        assert [site.ready(name) for name in in_turn] == [1, 1]
