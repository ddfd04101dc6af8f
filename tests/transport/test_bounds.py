"""Queues that refuse new work: ``max_length`` with ``x-overflow: reject-publish``."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from celery import Celery, chain, group
from celery.contrib.testing.worker import start_worker
from kombu import pools
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError
from kombu.messaging import Producer
from redis.exceptions import ResponseError

from kombu_redisdelay import BatchPublishError, QueueFull, Queues, batch
from kombu_redisdelay.broker.ready import ReadyLists
from kombu_redisdelay.transport import admission
from tests.transport.batching import celery_app, send
from tests.transport.kit import Inbox, Site, drain, publish
from tools.harness.process import wait_until

REJECT = {"x-overflow": "reject-publish"}


@pytest.fixture(autouse=True)
def always_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths are read for each message, so that no test depends on time."""
    pools.reset()
    admission.forget_lengths()
    monkeypatch.setattr(admission, "FRESH_FOR", 0.0)


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "FRESH_FOR", 1000.0)


def bounded(channel: Any, name: str = "q", max_length: int = 3, **options: Any) -> Queue:
    options = {"routing_key": name, "queue_arguments": REJECT, **options}
    queue = Queue(name, options.pop("exchange", Exchange("e")), max_length=max_length, **options)(channel)
    queue.declare()
    return queue


def fill(channel: Any, number: int = 3, queue: str = "q", **options: Any) -> None:
    publish(channel, *map(str, range(number)), queue=queue, **options)


@pytest.fixture
def app(site: Site) -> Iterator[Celery]:
    app = celery_app(site.url)
    app.conf.task_queues = [Queue("q", max_length=3, queue_arguments=REJECT), Queue("free")]
    yield app
    app.close()


class TestAQueueWithABound:
    @pytest.mark.parametrize("options", [{}, {"exchange": "e"}, {"headers": {"x-unique": "a"}}])
    def test_refuses_what_is_too_much(self, site: Site, options: dict[str, Any]) -> None:
        channel = site.channel()
        bounded(channel)
        fill(channel)
        with pytest.raises(
            QueueFull, match=r"'q' is full: it has 3 messages, and may have 3; publish it later, "
        ) as caught:
            publish(channel, "one more", **options)
        full = caught.value
        assert isinstance(full, OperationalError)
        assert (full.queue, full.bound, full.length, full.messages) == ("q", 3, 3, 1)
        assert site.ready() == 3

    def test_takes_more_when_there_is_room(self, site: Site) -> None:
        channel = site.channel()
        bounded(channel)
        fill(channel)
        site.client_of().rpop(site.keys().ready)
        publish(channel, "one more")
        with pytest.raises(QueueFull):
            publish(channel, "too much")

    def test_counts_ready_and_scheduled_ones_of_all_priorities(self, site: Site) -> None:
        channel = site.channel()
        bounded(channel)
        publish(channel, "later", headers={"x-delay": 60_000})
        publish(channel, "last", priority=9)
        publish(channel, "now")
        for headers in ({}, {"x-delay": 60_000}):
            with pytest.raises(QueueFull):
                publish(channel, "too much", headers=headers)

    def test_counts_what_is_sorted_by_key(self, site: Site) -> None:
        channel = site.channel()
        queue = bounded(channel, queue_arguments={**REJECT, "x-fair": True})
        for priority in (0, 6, 0):
            publish(channel, "a", priority=priority, headers={"x-key": "tenant"})
        inbox = Inbox(channel, queue, prefetch=1)
        drain(channel.connection.client, lambda: len(inbox) == 1)
        inbox.consumer.cancel()
        assert (site.ready(), site.unacked()) == (0, 1)
        publish(channel, "instead", priority=9, headers={"x-key": "tenant"})
        with pytest.raises(QueueFull, match="it has 3"):
            publish(channel, "too much")

    def test_an_unacked_message_does_not_count(self, site: Site) -> None:
        channel = site.channel()
        inbox = Inbox(channel, bounded(channel))
        fill(channel)
        drain(channel.connection.client, lambda: len(inbox) == 3)
        fill(channel)

    def test_partitions_have_equal_shares(self, site: Site) -> None:
        channel = site.channel(partitions={"q": 3})
        bounded(channel, max_length=8)
        assert channel.connection.bounds.of == {"q": 3, "q#1": 3, "q#2": 2}
        refused = set()
        for number in range(60):
            try:
                publish(channel, "a", correlation_id="", message_id=str(number))
            except QueueFull as full:
                refused.add((full.queue, full.bound, full.length))
        assert refused == {("q", 3, 3), ("q#1", 3, 3), ("q#2", 2, 2)}
        assert [site.ready(name) for name in ("q", "q#1", "q#2")] == [3, 3, 2]

    def test_of_several_queues_none_gets_what_one_refuses(self, site: Site) -> None:
        channel = site.channel()
        exchange = Exchange("t", "topic")
        Queue("free", exchange, routing_key="#")(channel).declare()
        bounded(channel, exchange=exchange, routing_key="#")
        fill(channel, exchange=exchange)
        with pytest.raises(QueueFull):
            publish(channel, "too much", exchange=exchange)
        assert (site.ready("free"), site.ready()) == (3, 3)

    def test_fanout_beside_it_works(self, site: Site) -> None:
        channel = site.channel()
        bounded(channel)
        inbox = Inbox(channel, Queue("copies", Exchange("f", "fanout")))
        fill(channel)
        drain(channel.connection.client, lambda: site.listeners() > 0)
        publish(channel, "to all", exchange="f", queue="")
        drain(channel.connection.client, lambda: len(inbox) == 1)


class TestWhatIsNeverRefused:
    @pytest.mark.parametrize(
        "options", [{"retries": 1}, {"parent_id": "p"}, {"group_id": "g", "group_index": 1}]
    )
    @pytest.mark.one_server
    def test_what_follows_of_other_work(self, site: Site, app: Celery, options: dict[str, Any]) -> None:
        send(app, 1, 2, 3, queue="q")
        with pytest.raises(QueueFull):
            send(app, 4, queue="q")
        send(app, 4, queue="q", **options)
        with batch(app):
            send(app, 5, queue="q", **options)
        assert site.ready() == 5

    @pytest.mark.one_server
    def test_later_members_of_a_group(self, site: Site, app: Celery) -> None:
        add = app.signature("add", queue="q")
        group(add.clone((n, n)) for n in range(5)).apply_async()
        assert site.ready() == 5
        with pytest.raises(QueueFull):
            group(add.clone((n, n)) for n in range(5)).apply_async()
        assert site.ready() == 5, "the first member was refused, and no other was sent"

    @pytest.mark.one_server
    def test_what_a_worker_publishes(self, site: Site) -> None:
        app = celery_app(site.url, result_backend="cache+memory://")
        app.conf.task_queues = [Queue("q", max_length=1, queue_arguments=REJECT), Queue("work")]
        app.conf.task_default_queue = "work"

        @app.task(shared=False, name="again", bind=True)
        def again(self: Any) -> int:
            if not self.request.retries:
                raise self.retry(countdown=0, queue="q")
            return 1

        @app.task(shared=False, name="note")
        def note(number: int) -> None:
            pass

        @app.task(shared=False, name="parent")
        def parent() -> None:
            for number in range(3):
                note.apply_async([number], queue="q")

        app.send_task("note", [0], queue="q")
        with start_worker(
            app,
            pool="solo",
            queues=["work"],
            loglevel="WARNING",
            perform_ping_check=False,
            shutdown_timeout=30,
        ):
            parent.delay().get(timeout=30)
            again.delay()
            chain(app.signature("parent"), note.si(7).set(queue="q")).apply_async()
            wait_until(lambda: site.ready() + site.scheduled() == 1 + 3 + 1 + 3 + 1, 30, "not all came")
        with pytest.raises(QueueFull):
            app.send_task("note", [0], queue="q")

    def test_what_goes_back(self, site: Site) -> None:
        channel = site.channel()
        inbox = Inbox(channel, bounded(channel, max_length=1))
        publish(channel, "a")
        drain(channel.connection.client, lambda: len(inbox) == 1)
        publish(channel, "b")
        inbox.consumer.cancel()
        inbox.messages[0].requeue()
        drain(channel.connection.client, lambda: site.unacked() == 0)
        assert site.ready() == 2


class TestABatch:
    def test_raises_before_it_sends_what_it_holds(self, site: Site, app: Celery) -> None:
        def publish_all() -> None:
            with batch(app):
                send(app, *range(3), queue="q", task_id="held")
                send(app, 3, queue="q", task_id="last")
                send(app, 4, queue="free", task_id="other")

        with pytest.raises(
            BatchPublishError, match="queue 'q' has no room for 4 messages: it has 0"
        ) as caught:
            publish_all()
        error = caught.value
        assert isinstance(error.__cause__, QueueFull)
        assert (error.published, error.uncertain) == (0, [])
        assert error.unpublished == ["held"] * 3 + ["last", "other"]
        assert site.ready() + site.ready("free") == 0

    def test_over_another_connection_than_the_one_that_knows_the_bound(self, site: Site, app: Celery) -> None:
        with batch(app):
            send(app, *range(3), queue="q")
            with app.producer_pool.acquire(block=True):
                # Another one has to be used, as if another thread published now.
                send(app, 3, queue="free")
        assert (site.ready(), site.ready("free")) == (3, 1)

        def publish_all() -> None:
            with batch(app):
                send(app, 4, queue="q")
                with app.producer_pool.acquire(block=True):
                    send(app, 5, queue="free")

        with pytest.raises(BatchPublishError, match="'q' is full: it has 3 messages, and may have 3"):
            publish_all()
        assert (site.ready(), site.ready("free")) == (3, 1)

    @pytest.mark.one_server
    def test_names_what_earlier_portions_sent(self, site: Site, app: Celery) -> None:
        app.conf.task_queues = [Queue("q", max_length=600, queue_arguments=REJECT)]

        def publish_all() -> None:
            with batch(app):
                send(app, *range(700), queue="q")

        with pytest.raises(BatchPublishError, match="no room for 200 messages: it has 500") as caught:
            publish_all()
        assert (caught.value.published, len(caught.value.unpublished)) == (500, 200)
        assert site.ready() == 500

    def test_of_many_queues_reads_once(
        self, site: Site, app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = [f"q{number}" for number in range(20)]
        app.conf.task_queues = [Queue(name, max_length=3, queue_arguments=REJECT) for name in names]
        asked = []
        counts = ReadyLists.counts

        def noted(self: ReadyLists, queues: Sequence[str], **options: Any) -> list[int]:
            if options:
                asked.append(len(queues))
            return counts(self, queues, **options)

        monkeypatch.setattr(ReadyLists, "counts", noted)
        with batch(app):
            for name in names:
                send(app, 1, 2, 3, queue=name)
        assert asked == [20]
        assert [site.ready(name) for name in names] == [3] * 20

    @pytest.mark.skipif(not hasattr(Producer, "batch"), reason="kombu before 5.7 has no batches")
    @pytest.mark.one_server
    def test_of_a_producer(self, site: Site) -> None:
        channel = site.channel()
        bounded(channel)
        held = channel.create_publish_batch(10)
        for _ in range(4):
            held.publish(channel.prepare_message("a"), exchange="", routing_key="q")
        with pytest.raises(
            Exception, match="none of what it holds was published: queue 'q' has no room for 4"
        ):
            held.flush()
        assert site.ready() == 0


class TestDeclaring:
    @pytest.mark.one_server
    @pytest.mark.parametrize("arguments", [{}, {"x-overflow": "drop-head"}])
    def test_without_the_overflow_it_is_no_bound(self, site: Site, arguments: dict[str, str]) -> None:
        channel = site.channel()
        bounded(channel, max_length=-1, queue_arguments=arguments)
        fill(channel, 9)

    @pytest.mark.one_server
    def test_who_does_not_declare_it_is_not_bounded(self, site: Site) -> None:
        bounded(site.channel())
        fill(site.channel(), 9)

    def test_it_holds_for_all_channels_of_a_connection(self, site: Site) -> None:
        connection = site.connect()
        bounded(connection.channel())
        with pytest.raises(QueueFull):
            fill(connection.channel(), 4)

    @pytest.mark.one_server
    def test_declared_again_without_it(self, site: Site) -> None:
        channel = site.channel()
        bounded(channel)
        Queue("q", Exchange("e"))(channel).declare()
        fill(channel, 9)
        bounded(channel)
        channel.queue_delete("q")
        fill(channel, 9)

    @pytest.mark.one_server
    @pytest.mark.parametrize("length", [0, -1, 1.5, True, "many", "3"])
    def test_a_wrong_length(self, site: Site, length: Any) -> None:
        queues = [Queue("q", Exchange("e"), queue_arguments={**REJECT, "x-max-length": length})]
        if type(length) is int:
            # kombu makes a number of anything else, or refuses it itself.
            queues.append(Queue("q", Exchange("e"), max_length=length, queue_arguments=REJECT))
        for queue in queues:
            with pytest.raises(ValueError, match="queue 'q': max_length must be a whole number from 1, not"):
                queue(site.channel()).declare()

    @pytest.mark.one_server
    def test_fewer_than_partitions(self, site: Site) -> None:
        with pytest.raises(ValueError, match="from 4, one for each partition, not 3"):
            bounded(site.channel(partitions={"q": 4}))


@pytest.mark.one_server
class TwoThreads:
    """They publish to one queue, whose bound is 3.

    Attributes:
        length: what its length is when it is read.
    """

    def __init__(self) -> None:
        self.length = 0
        self._known = admission.Lengths()
        self._meanwhile: list[Callable[[], None]] = []

    def admit(self) -> None:
        self._known.admit({"q": 1}, {"q": 3}, self._read)

    def admit_while_another_reads(self) -> None:
        """One of them admits a message while the other one reads the length for its own."""
        self._meanwhile.append(self.admit)
        self.admit()

    def _read(self, queues: Sequence[str]) -> list[int]:
        if self._meanwhile:
            self._meanwhile.pop()()
        return [self.length]


class TestReading:
    def test_what_this_process_publishes_counts_meanwhile(self, site: Site, read_once: None) -> None:
        channel = site.channel()
        bounded(channel)
        with pytest.raises(QueueFull):
            fill(channel, 4)
        # Through another connection, too.
        other = site.channel()
        bounded(other)
        with pytest.raises(QueueFull):
            fill(other, 1)
        assert site.ready() == 3

    def test_what_others_publish_is_foreseen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The queue grows by ten messages for each of ours: there is room for one of ten."""
        now, lengths = 0.0, iter((0, 100, 200, 280))
        monkeypatch.setattr(admission, "FRESH_FOR", 0.1)
        monkeypatch.setattr(admission, "monotonic", lambda: now)
        known = admission.Lengths()

        def publish() -> None:
            known.admit({"q": 1}, {"q": 280}, lambda queues: [next(lengths)])

        for now in (0.0, 0.1, 0.2):
            for _ in range(8):
                publish()
            if now < 0.2:
                publish()
                publish()
        # The eight of the last tenth of a second count as 80, so the length is read again.
        with pytest.raises(QueueFull, match="it has 280"):
            publish()
        assert not list(lengths)

    def test_what_workers_have_taken_meanwhile_makes_room(self, site: Site, read_once: None) -> None:
        channel = site.channel()
        bounded(channel)
        for _ in range(3):
            fill(channel)
            site.client_of().delete(site.keys().ready)
        fill(channel)
        with pytest.raises(QueueFull):
            publish(channel, "too much")

    def test_a_full_queue_is_not_read_for_each_message(self, site: Site, read_once: None) -> None:
        channel = site.channel()
        bounded(channel)
        fill(channel)
        with pytest.raises(QueueFull):
            publish(channel, "too much")
        site.client_of().delete(site.keys().ready)
        with pytest.raises(QueueFull):
            publish(channel, "until it is read again")

    def test_a_lone_message_is_not_refused_for_what_others_may_do(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, lengths = 0.0, iter((0, 1000, 1900))
        monkeypatch.setattr(admission, "FRESH_FOR", 0.1)
        monkeypatch.setattr(admission, "monotonic", lambda: now)
        known = admission.Lengths()
        for now in (0.0, 0.1, 0.2):  # noqa: B007
            known.admit({"q": 1}, {"q": 2000}, lambda queues: [next(lengths)])

    @pytest.mark.parametrize("is_known", [False, True])
    def test_what_another_thread_sends_meanwhile_counts(
        self, monkeypatch: pytest.MonkeyPatch, is_known: bool
    ) -> None:
        now, threads = 0.0, TwoThreads()
        monkeypatch.setattr(admission, "FRESH_FOR", 0.1)
        monkeypatch.setattr(admission, "monotonic", lambda: now)
        if is_known:
            threads.admit()
            now = 1.0
        threads.admit_while_another_reads()
        threads.admit()
        # The three that were counted are looked for before one is refused.
        threads.length = 3
        with pytest.raises(QueueFull, match="it has 3"):
            threads.admit()

    def test_what_another_thread_sends_while_both_look_again_counts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(admission, "FRESH_FOR", 1000.0)
        threads = TwoThreads()
        for _ in range(3):
            threads.admit()
        # Workers have taken them all, and there is room for three more: for this one, that of the other
        # thread, and one more.
        threads.admit_while_another_reads()
        threads.admit()
        threads.length = 3
        with pytest.raises(QueueFull, match="it has 3"):
            threads.admit()

    def test_lengths_that_cannot_be_read_are_an_error(self, site: Site) -> None:
        channel = site.channel()
        bounded(channel)
        publish(channel, "a")
        site.redis.delete(site.keys().schedule)
        site.redis.set(site.keys().schedule, "a string")
        with pytest.raises(ResponseError, match="schedule' holds a string, where a zset belongs"):
            publish(channel, "b")
        site.redis.delete(site.keys().schedule)
        publish(channel, "b")

    def test_a_fork_knows_nothing(self, site: Site, read_once: None) -> None:
        channel = site.channel()
        bounded(channel)
        fill(channel, 1)
        lengths = channel.connection.lengths
        assert lengths._known
        child = os.fork()
        if not child:
            os._exit(len(lengths._known))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lengths._known


@pytest.mark.one_server
class TestOperations:
    def test_stats_tell_bound_and_share(self, site: Site, app: Celery) -> None:
        send(app, 1, 2, queue="q")
        send(app, 1, queue="free")
        with Queues(app) as queues:
            stats = queues.stats("q")
            assert (stats.bound, stats.bound_share) == (3, 2 / 3)
            assert (queues.stats("free").bound, queues.stats("free").bound_share) == (None, None)


def test_the_error_can_be_pickled() -> None:
    error = QueueFull("q", 3, 4, 2)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.queue, copy.bound, copy.length, copy.messages, str(copy)) == ("q", 3, 4, 2, str(error))
    assert "has no room for 2 messages: it has 4 messages, and may have 3" in str(error)
