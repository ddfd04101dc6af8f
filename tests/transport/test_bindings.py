"""Bindings that Redis has lost come back, and those that somebody has taken out stay away."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from celery import Celery
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from kombu.transport import redis

from kombu_redisdelay import batch
from kombu_redisdelay.broker.keys import shared_exchanges, unbound
from kombu_redisdelay.broker.limits import FairQueues
from kombu_redisdelay.transport import bindings, declaring, intake
from tests.transport.kit import Inbox, Site, drain, publish

TOPICS = Exchange("topics", "topic")
FILMS, ALL = Queue("films", TOPICS, "video.#"), Queue("all", TOPICS, "#")
DAY_MS = 24 * 3600 * 1000
#: What publishing sends or calls, and what would be sent besides.
COUNTED = ("evalsha", "eval", "lpush", "zadd", "scard", "sismember", "smembers", "sadd", "hmget", "exists")


class Process:
    """Stands for a process of its own: what another one has bindings, it has not. Its channels have a
    connection each, as after one was lost."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._declared: dict[Any, Any] = {}

    def channel(self, *queues: Queue, **options: Any) -> Any:
        """A new channel, which declares *queues*."""
        with patch.object(bindings, "_declared", self._declared):
            channel = self._site.channel(**options)
        for queue in queues:
            queue(channel).declare()
        return channel


@pytest.fixture(params=[TOPICS, Exchange("straight")], ids=["topic", "direct"])
def exchange(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server does not compare the bindings, a publisher goes by them for a second."""
    monkeypatch.setattr(bindings, "VALID_FOR", 0.0)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer looks each time that it waits, not once a minute."""
    monkeypatch.setattr(declaring, "LOOK_EVERY", 0.0)
    monkeypatch.setattr(intake, "CONFIRM_AFTER", -1.0)


def film(channel: Any, *bodies: str, key: str = "video.new", **options: Any) -> None:
    publish(channel, *(bodies or ("film",)), exchange=TOPICS, routing_key=key, **options)


def members(site: Site, exchange: str = "topics") -> set[str]:
    """The queues that are bound to *exchange*."""
    return {member.decode().rpartition("\x16")[2] for member in site.redis.smembers(site.bindings(exchange))}


def has_come(site: Site, *queues: str) -> list[int]:
    return [site.ready(queue) + site.scheduled(queue) for queue in queues]


def drop_member(site: Site, exchange: str, queue: str) -> None:
    for member in site.redis.smembers(site.bindings(exchange)):
        if member.endswith(b"\x16" + queue.encode()):
            site.redis.srem(site.bindings(exchange), member)


LOSSES: dict[str, Callable[[Site, str], object]] = {
    "the key": lambda site, exchange: site.redis.delete(site.bindings(exchange)),
    "a member": lambda site, exchange: drop_member(site, exchange, "q"),
    "everything": lambda site, exchange: site.flush(),
}


class TestAPublisher:
    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("headers", [{}, {"x-delay": 60_000}], ids=["now", "later"])
    def test_says_again_what_its_process_has_declared(
        self, site: Site, exchange: Exchange, loss: str, headers: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue, other = Queue("q", exchange, "k"), Queue("other", exchange, "another")
        process = Process(site)
        channels = [process.channel(queue, other), process.channel()]
        for channel in channels:
            publish(channel, "before", exchange=exchange, routing_key="k", headers=headers)
        for channel in channels:
            before = sum(has_come(site, "q"))
            caplog.clear()
            LOSSES[loss](site, exchange.name)
            publish(channel, "a", "b", exchange=exchange, routing_key="k", headers=headers)
            assert sum(has_come(site, "q")) == (2 if loss == "everything" else before + 2)
            [line] = caplog.messages
            assert line.startswith("Redis had lost that queue ")
            assert f"queue 'q' is bound to exchange {exchange.name!r}" in line
            assert "Its keys have vanished" in line

    def test_names_five_of_them(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        channel = Process(site).channel(*(Queue(f"q{number}", TOPICS, "#") for number in range(7)))
        site.flush()
        film(channel)
        [line] = caplog.messages
        assert line.count("is bound to") == 5
        assert ", and 2 more." in line
        assert has_come(site, *(f"q{number}" for number in range(7))) == [1] * 7

    @pytest.mark.parametrize("key", ["video.new", "other"])
    @pytest.mark.usefixtures("no_pause")
    def test_two_queues_and_one_worker_lives(self, site: Site, key: str) -> None:
        """It is the first to say its binding again. So the publisher finds a queue, but not each."""
        clips = Queue("clips", TOPICS, "video.#")
        publisher, consumer = (
            Process(site).channel(FILMS, clips, Queue("other", TOPICS, "#")),
            Process(site).channel(),
        )
        inbox, connection = Inbox(consumer, clips), consumer.connection.client
        site.flush()
        drain(connection, lambda: members(site) == {"clips"})
        film(publisher, key=key)
        assert has_come(site, "other") == [1]
        if key == "video.new":
            assert has_come(site, "films") == [1]
            drain(connection, lambda: len(inbox) == 1)

    @pytest.mark.parametrize(
        "passing",
        [
            Queue("p", TOPICS, "#", queue_arguments={"x-expires": 60_000}),
            Queue("p", TOPICS, "#", auto_delete=True),
        ],
    )
    def test_does_not_bring_back_what_passes(self, site: Site, passing: Queue) -> None:
        channel = Process(site).channel(passing)
        site.redis.delete(site.bindings("topics"))
        film(channel)
        assert (members(site), has_come(site, "p")) == (set(), [0])

    def test_uses_a_dead_letter_queue_only_for_what_belongs_nowhere(self, site: Site) -> None:
        channel = Process(site).channel(FILMS, deadletter_queue="lost")
        site.flush()
        film(channel)
        assert has_come(site, "films", "lost") == [1, 0]

    @pytest.mark.one_server
    def test_sends_nothing_more_while_all_is_there(self, site: Site) -> None:
        channel = Process(site).channel(FILMS, ALL)

        def sent(**options: Any) -> dict[str, int]:
            # The first looks for the way, and the server may not know the script of the second yet.
            publish(channel, "first", "second", **options)
            site.redis.config_resetstat()
            publish(channel, "a", "b", **options)
            stats = site.redis.info("commandstats")
            return {name: stats[name]["calls"] for name in map("cmdstat_{}".format, COUNTED) if name in stats}

        pushes = {"cmdstat_lpush": 2, "cmdstat_zadd": 2}
        assert sent() == pushes
        # A known route is compared by the script that pushes.
        compared = {"cmdstat_evalsha": 2, "cmdstat_scard": 2, "cmdstat_sismember": 4}
        assert sent(exchange=TOPICS, routing_key="other") == {**compared, **pushes}
        assert sent(exchange=TOPICS, routing_key="video.new") == {
            "cmdstat_smembers": 2,
            "cmdstat_lpush": 4,
            "cmdstat_zadd": 4,
        }


class TestABatch:
    @pytest.fixture
    def app(self, site: Site) -> Any:
        app = Celery("films", broker=site.url, set_as_current=False)
        app.conf.task_queues = [FILMS, ALL]
        yield app
        app.close()

    @pytest.mark.parametrize("key", ["video.new", "other"])
    @pytest.mark.parametrize("inside", [True, False])
    def test_comes_to_each_queue(self, site: Site, app: Celery, key: str, inside: bool) -> None:
        def send(queue: Queue = FILMS) -> None:
            app.send_task("work", queue=queue, routing_key=key)

        send()
        send(ALL)
        site.flush()
        with batch(app):
            send()
            if inside:
                # What was held back was routed, and maybe by what is there no more.
                site.flush()
            send()
        assert has_come(site, "films", "all") == [2 if key == "video.new" else 0, 2]

    @pytest.mark.skipif(not hasattr(redis.Channel, "create_publish_batch"), reason="new in kombu 5.7")
    @pytest.mark.parametrize("inside", [True, False])
    def test_of_kombu_comes_to_each_queue(self, site: Site, inside: bool) -> None:
        producer: Any = Producer(Process(site).channel(FILMS), TOPICS)
        producer.publish("before", routing_key="video.new")
        site.flush()
        with producer.batch():
            producer.publish("a", routing_key="video.new")
            if inside:
                site.flush()
            producer.publish("b", routing_key="video.new")
        assert has_come(site, "films") == [2]


@pytest.mark.usefixtures("no_pause")
class TestAConsumer:
    def test_tells_those_who_have_declared_nothing(
        self, site: Site, caplog: pytest.LogCaptureFixture
    ) -> None:
        channel = Process(site).channel()
        inbox = Inbox(channel, FILMS, Queue("news", Exchange("news"), "news"))
        stranger = Process(site).channel()
        drop_member(site, "topics", "films")
        film(stranger, "lost")
        drain(channel.connection.client, lambda: members(site) == {"films"})
        film(stranger, "came")
        drain(channel.connection.client, lambda: inbox.bodies == ["came"])
        assert caplog.messages == [
            "Redis had lost that queue 'films' is bound to exchange 'topics'. Its keys have vanished: "
            "FLUSHDB, an eviction, an older dump, or no dump at all. Declared again. What was published "
            "meanwhile may be missing there."
        ]

    def test_tells_only_of_its_own_queues_that_last(self, site: Site) -> None:
        """Its process has declared others, too."""
        channel = Process(site).channel(ALL)
        passing = [
            Queue("expiring", TOPICS, "#", queue_arguments={"x-expires": 60_000}),
            Queue("passing", TOPICS, "#", auto_delete=True),
            Queue("listening", Exchange("everybody", "fanout"), "#"),
        ]
        Inbox(channel, FILMS, *passing)
        site.redis.delete(site.bindings("topics"), site.bindings("everybody"))
        drain(channel.connection.client, lambda: "films" in members(site))
        # kombu 5.7 has a timer for queues that expire.
        assert members(site) - {"expiring"} == {"films"}
        assert members(site, "everybody") == set()

    @pytest.mark.one_server
    def test_only_reads_while_all_is_there(self, site: Site) -> None:
        channel = Process(site).channel()
        Inbox(channel, FILMS)
        site.redis.config_resetstat()
        for _ in range(3):
            channel.say_again()
        stats = site.redis.info("commandstats")
        # Redis 6.2 does not name subcommands.
        assert stats["cmdstat_sismember"]["calls"] == 9
        assert stats.keys() - {"cmdstat_sismember"} <= {
            "cmdstat_config|resetstat",
            "cmdstat_config",
            "cmdstat_info",
        }

    def test_heals_each_place(self, site: Site) -> None:
        """Also what a deletion goes by, and what keeps kombu from sweeping the table."""
        channel = Process(site).channel()
        Inbox(channel, FILMS)
        keys = sorted(site.all_keys("*kombu.binding*"))
        for key in keys:
            site.redis.delete(key)
            drain(channel.connection.client, lambda: sorted(site.all_keys("*kombu.binding*")) == keys)

    def test_goes_on_when_it_cannot_look(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        channel = Process(site).channel()
        inbox = Inbox(channel, FILMS)
        site.redis.delete(site.bindings("topics"))
        site.redis.set(site.bindings("topics"), "of another program")
        wrong = f"key {site.bindings('topics')!r} holds a string, where a set belongs"
        drain(channel.connection.client, lambda: wrong in caplog.text)
        publish(channel, "a", queue="films")
        drain(channel.connection.client, lambda: len(inbox) == 1)
        site.redis.delete(site.bindings("topics"))
        drain(channel.connection.client, lambda: members(site) == {"films"})

    def test_makes_its_queue_fair_again(self, site: Site, caplog: pytest.LogCaptureFixture) -> None:
        fair = Queue("q", queue_arguments={"x-fair": True})
        channel = Process(site).channel(
            Queue("others", queue_arguments={"x-fair": True}), partitions={"q": 2}
        )
        Inbox(channel, fair)
        names = channel.store.partitions.names("q")
        queues = FairQueues(channel.store)
        queues.switch_on(["plain"])
        site.flush()
        drain(channel.connection.client, lambda: set(queues.states(names)) == {"on"})
        assert queues.states(["others"]) == [""]
        [line] = caplog.messages
        assert line.startswith("Redis had lost that queue 'q' is fair, queue 'q#1' is fair. Its keys")

    def test_leaves_a_queue_alone_that_is_being_made_plain(self, site: Site) -> None:
        channel = Process(site).channel(Queue("q", queue_arguments={"x-fair": True}))
        site.redis.hset(site.keys().limits, "fair", "off")
        channel._declared.make_fair_again(channel.store, ["q"])
        assert FairQueues(channel.store).states(["q"]) == ["off"]


def unbind(channel: Any) -> None:
    FILMS(channel).unbind_from(TOPICS, "video.#")


def delete(channel: Any) -> None:
    FILMS(channel).delete()


@pytest.mark.parametrize("take_out", [unbind, delete])
class TestWhatAnotherProcessHasTakenOut:
    @pytest.fixture(autouse=True)
    def pause(self, no_pause: None) -> None: ...

    def test_stays_away(
        self, site: Site, take_out: Callable[[Any], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        old = Process(site)
        publisher, consumer = old.channel(FILMS), old.channel()
        Inbox(consumer, FILMS)
        film(publisher, "before")
        take_out(Process(site).channel())
        assert members(site) == set()
        consumer.say_again()
        # As after its connection was lost.
        for channel in (publisher, old.channel(FILMS)):
            film(channel, "after", declare=[FILMS])
        assert members(site) == set()
        assert caplog.messages == [
            "Queue 'films' stays unbound from exchange 'topics', where it had routing key 'video.#': another "
            "process has unbound it, or deleted the queue. This process has declared it before; one that is "
            "started now can bind it again."
        ]

    def test_comes_back_with_a_process_that_is_started(
        self, site: Site, take_out: Callable[[Any], None]
    ) -> None:
        """A deploy was taken back."""
        old = Process(site)
        publisher = old.channel(FILMS)
        take_out(Process(site).channel())
        film(publisher)
        again = Process(site).channel(FILMS)
        film(again)
        film(publisher)
        assert has_come(site, "films") == [2]
        site.redis.delete(site.bindings("topics"))
        film(old.channel(FILMS))
        assert has_come(site, "films") == [3]

    def test_is_forgotten_after_a_day_in_which_nobody_has_wanted_it(
        self, site: Site, take_out: Callable[[Any], None]
    ) -> None:
        note = unbound(site.cluster is not None, "films")
        publisher = Process(site).channel(FILMS)
        take_out(Process(site).channel())
        assert 0.9 * DAY_MS < site.redis.pttl(note) <= DAY_MS
        site.redis.pexpire(note, DAY_MS // 2)
        film(publisher)
        assert 0.9 * DAY_MS < site.redis.pttl(note) <= DAY_MS

    def test_costs_a_publisher_a_question_a_minute(self, site: Site, take_out: Callable[[Any], None]) -> None:
        publisher = Process(site).channel(FILMS, ALL)
        take_out(Process(site).channel())
        film(publisher)
        publisher._declared.bring_back = None
        film(publisher)
        assert has_come(site, "all", "films") == [2, 0]

    def test_can_be_declared_by_the_process_that_has_taken_it_out(
        self, site: Site, take_out: Callable[[Any], None]
    ) -> None:
        process = Process(site)
        one, other = process.channel(FILMS), process.channel(FILMS)
        take_out(one)
        film(other)
        assert has_come(site, "films") == [0]
        FILMS(other).declare()
        film(other)
        assert has_come(site, "films") == [1]


class TestUnbinding:
    def test_leaves_the_other_bindings(self, site: Site) -> None:
        others = [Queue("films", TOPICS, "film.#"), Queue("films", Exchange("straight"), "video.#"), ALL]
        publisher = Process(site).channel(FILMS, *others)
        unbind(Process(site).channel())
        film(publisher)
        film(publisher, key="film.new")
        publish(publisher, "a", exchange=Exchange("straight"), routing_key="video.#")
        assert has_come(site, "films", "all") == [2, 2]

    def test_what_a_program_with_another_separator_has_bound(self, site: Site) -> None:
        Process(site).channel(FILMS, sep=":")
        unbind(Process(site).channel())
        assert site.redis.smembers(site.bindings("topics")) == set()

    def test_by_a_changed_release(self, site: Site, no_pause: None) -> None:
        """No message comes to both queues, whoever publishes it, while old processes live on."""
        movies = Queue("movies", TOPICS, "video.#")
        old = Process(site)
        publisher, consumer = old.channel(FILMS), old.channel()
        inbox = Inbox(consumer, FILMS)
        film(publisher, "before")
        new = Process(site).channel()
        unbind(new)
        movies(new).declare()
        for channel in (publisher, new, old.channel(FILMS)):
            consumer.say_again()
            film(channel, "after")
        assert has_come(site, "movies") == [3]
        drain(consumer.connection.client, lambda: len(inbox) == 1)
        assert inbox.bodies == ["before"]

    def test_a_lost_key_brings_nothing_back_that_was_unbound(self, site: Site) -> None:
        publisher = Process(site).channel(FILMS, ALL)
        unbind(Process(site).channel())
        site.redis.delete(site.bindings("topics"))
        film(publisher)
        assert has_come(site, "films", "all") == [0, 1]


class TestDeleting:
    STRAIGHT: ClassVar = Queue("films", Exchange("straight"), "k")
    OWN: ClassVar = Queue("films", Exchange("films"), "films")

    def test_takes_out_all_bindings_whoever_has_declared_them(self, site: Site) -> None:
        Process(site).channel(FILMS, Queue("films", TOPICS, "film.#"), self.STRAIGHT, self.OWN, ALL)
        Process(site).channel().queue_delete("films")
        assert [members(site, name) for name in ("topics", "straight", "films")] == [{"all"}, set(), set()]
        assert site.redis.smembers(shared_exchanges(site.cluster is not None)) == {b"topics"}

    @pytest.mark.parametrize("queue", [FILMS, OWN], ids=["named", "own"])
    def test_takes_the_messages_along(self, site: Site, queue: Queue) -> None:
        publisher = Process(site).channel(queue)
        publish(publisher, "a", queue="films")
        publish(publisher, "b", queue="films", headers={"x-delay": 60_000})
        # Without any binding that is known, nothing is deleted.
        assert Process(site).channel().queue_delete("films", if_unused=True) == 0
        # Those that are ready.
        assert Process(site).channel().queue_delete("films") == 1
        assert has_come(site, "films") == [0]
        assert Process(site).channel().queue_delete("films") == 0

    def test_takes_the_messages_of_a_queue_that_was_unbound(self, site: Site) -> None:
        publisher = Process(site).channel(FILMS)
        publish(publisher, "a", queue="films")
        FILMS(publisher).unbind_from(FILMS.exchange, FILMS.routing_key)
        assert Process(site).channel().queue_delete("films") == 1
        assert has_come(site, "films") == [0]

    def test_one_binding_that_is_declared_again_brings_back_no_other(self, site: Site) -> None:
        """An old process has declared both."""
        publisher = Process(site).channel(FILMS, Queue("films", TOPICS, "film.#"))
        delete(Process(site).channel())
        Process(site).channel(FILMS)
        film(publisher)
        film(publisher, key="film.new")
        assert has_come(site, "films") == [1]

    @pytest.mark.parametrize("how", ["if_unused", "the exchange"])
    def test_of_what_is_unused_leaves_it_to_those_who_use_it(
        self, site: Site, how: str, no_pause: None
    ) -> None:
        consumer = Process(site).channel()
        Inbox(consumer, FILMS)
        channel = Process(site).channel(FILMS)
        if how == "if_unused":
            FILMS(channel).delete(if_unused=True)
        else:
            TOPICS(channel).delete()
        assert members(site) == set()
        drain(consumer.connection.client, lambda: members(site) == {"films"})

    def test_if_empty_leaves_it_bound(self, site: Site) -> None:
        channel = Process(site).channel(FILMS)
        film(channel)
        FILMS(Process(site).channel()).delete(if_empty=True)
        assert (members(site), has_come(site, "films")) == ({"films"}, [1])

    @pytest.mark.one_server
    def test_of_a_reply_queue_costs_nothing_more(self, site: Site) -> None:
        replies = Queue("replies", Exchange("replies"), "replies", auto_delete=True)
        channel = Process(site).channel(replies)
        site.redis.config_resetstat()
        channel.after_reply_message_received("replies")
        assert "cmdstat_smembers" not in site.redis.info("commandstats")
        assert site.all_keys("*unbound*") == []


def test_a_process_remembers_a_bounded_number(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bindings, "MOST_BINDINGS", 3)
    channel = Process(site).channel(
        *(Queue(f"q{number}", Exchange(f"e{number}"), "k") for number in range(8))
    )
    assert channel._declared.exchanges == ["e6", "e7"]
    for number in range(8):
        Queue(f"q{number}", channel=channel).delete()
    assert channel._declared.exchanges == []
    assert channel._declared._count == 0


@pytest.mark.parametrize("again", [False, True])
def test_a_binding_that_is_there_is_not_lost(
    site: Site, again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the connection that declares it is a new one."""
    process = Process(site)
    process.channel(FILMS)
    with caplog.at_level(logging.DEBUG, "kombu_redisdelay") if again else nullcontext():
        film(process.channel(FILMS))
    assert has_come(site, "films") == [1]
    assert caplog.messages == []
