"""Every operation on a cluster, on queues at all of its servers: no command is about more than one slot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import pools
from kombu.entity import Exchange, Queue
from kombu.transport import virtual

from kombu_redisdelay import Messages, Queues, Selection, batch
from kombu_redisdelay.operations.access import Access
from kombu_redisdelay.operations.doctor import examine
from kombu_redisdelay.operations.exporter import QueueCollector
from kombu_redisdelay.operations.forwarder import Forwarded, Forwarder
from kombu_redisdelay.operations.stats import queue_stats
from kombu_redisdelay.operations.timeline import timeline
from tests.transport.kit import Inbox, Site, drain, in_seconds, look_after_queues, publish
from tools.harness.cluster import Cluster
from tools.harness.process import wait_until

QUEUES = [f"q{number:02}" for number in range(12)]
COUNT = len(QUEUES)


@pytest.fixture
def app(cluster_site: Site) -> Iterator[Celery]:
    app = Celery("cluster", broker=cluster_site.url, backend="cache+memory://", set_as_current=False)
    pools.reset()
    yield app
    app.close()
    pools.reset()


@pytest.fixture
def access(app: Celery) -> Iterator[Access]:
    with Access(app) as access:
        yield access


def send_to_all(app: Celery, **options: Any) -> list[str]:
    """A task to each queue. Returns their ids."""
    return [app.send_task("t", queue=queue, **options).id for queue in QUEUES]


def bury_in_all(site: Site) -> None:
    channel = site.channel(dead_letter=True)
    for queue in QUEUES:
        channel.basic_get(queue).reject()


def test_the_queues_are_at_all_servers(cluster: Cluster) -> None:
    assert len(set(map(cluster.node_of, QUEUES))) == 3


def test_consuming(cluster_site: Site) -> None:
    site = cluster_site
    options = {"queue_arguments": {"x-expires": 60_000}, "durable": False}
    channel = site.channel(visibility_timeout=1, delivery_limit=1, dead_letter=True)
    exchange = Exchange("e", "topic")
    queues = [Queue(queue, exchange, f"{queue}.*", **options) for queue in QUEUES]
    for name, queue in zip(QUEUES, queues, strict=True):
        queue(channel).declare()
        publish(channel, "routed", exchange=exchange, routing_key=f"{name}.x")
        publish(channel, "later", queue=name, headers={"x-delay": 1})
    inbox = Inbox(channel, *queues)
    drain(channel.connection.client, lambda: len(inbox) == 2 * COUNT)
    for message, settle in zip(inbox.messages, ("ack", "requeue", "reject") * COUNT, strict=False):
        getattr(message, settle)()
    # The messages of one that is gone come back.
    gone = site.channel()
    for name in QUEUES:
        publish(channel, "held", queue=name)
    inbox.consumer.cancel()
    held = [gone.basic_get(queue) for queue in QUEUES]
    assert all(held)
    for name in QUEUES:
        site.end_leases(name)
    look_after_queues(channel)
    for queue in queues:
        queue(channel).purge()
        queue(channel).delete()


def test_a_block(app: Celery, cluster_site: Site) -> None:
    with batch(app) as block:
        send_to_all(app)
        send_to_all(app, countdown=60)
    assert block.published == 2 * COUNT
    assert [cluster_site.ready(queue) for queue in QUEUES] == [1] * COUNT
    assert [cluster_site.scheduled(queue) for queue in QUEUES] == [1] * COUNT


def test_delayed_messages(app: Celery, cluster_site: Site) -> None:
    ids = send_to_all(app, countdown=60)
    group = [app.send_task("g", queue=queue, countdown=60, group_id="g").id for queue in QUEUES]
    with Messages(app) as delayed:
        assert delayed.queues() == QUEUES
        assert delayed.count(Selection(state="scheduled")) == 2 * COUNT
        assert delayed.count(Selection(state="scheduled", before=in_seconds(30))) == 0
        assert Queues(delayed).stats(QUEUES[0]).next_due is not None
        assert {message.id for message in delayed.select(Selection(state="scheduled"))} == {*ids, *group}
        assert [delayed.get(id).queue for id in ids] == QUEUES  # type: ignore[union-attr]
        assert delayed.cancel(Selection(related="g")).count == COUNT
        assert all(delayed.reschedule(ids=[id], countdown=100) for id in ids)
        assert delayed.reschedule(Selection(state="scheduled"), countdown=200).count == COUNT
        assert delayed.reschedule(ids=ids, countdown=300).by_id == dict.fromkeys(ids, 1)
        late = Selection(state="scheduled", queue=QUEUES[:5], after=in_seconds(250))
        assert delayed.reschedule(late, countdown=100).count == 5
        assert delayed.count(Selection(state="scheduled", queue=QUEUES[:6], before=in_seconds(150))) == 5
        assert delayed.deliver_now(ids=[ids[0]])
        assert delayed.cancel(ids=[ids[1]])
        done = delayed.cancel(Selection(ids=ids, state="scheduled"))
        assert [id for id, count in done.by_id.items() if count] == ids[2:]
        send_to_all(app, countdown=60)
        assert delayed.deliver_now(Selection(state="scheduled", queue=QUEUES[3:])).count == COUNT - 3
        assert delayed.cancel(Selection(state="scheduled")).count == 3
    assert [cluster_site.ready(queue) for queue in QUEUES] == [1, 0, 0, *[1] * (COUNT - 3)]


def test_dead_letters(app: Celery, cluster_site: Site) -> None:
    ids = send_to_all(app)
    bury_in_all(cluster_site)
    with Messages(app) as dead:
        assert dead.queues() == QUEUES
        assert dead.count(Selection(state="dead")) == COUNT
        assert [letter.id for letter in dead.select(Selection(state="dead"))] == ids
        assert dead.requeue(ids=[ids[5]])
        assert dead.requeue(Selection(state="dead", task="t")).count == COUNT - 1
        assert [cluster_site.ready(queue) for queue in QUEUES] == [1] * COUNT
        bury_in_all(cluster_site)
        assert dead.remove(ids=ids[:2]).by_id == dict.fromkeys(ids[:2], 1)
        assert dead.remove(Selection(state="dead")).count == COUNT - 2


def test_queues(app: Celery, cluster_site: Site) -> None:
    dead = send_to_all(app)
    bury_in_all(cluster_site)
    held_ids = send_to_all(app)
    channel = cluster_site.channel()
    held = [channel.basic_get(queue) for queue in QUEUES]
    assert all(held)
    ready, scheduled = send_to_all(app), send_to_all(app, countdown=60)
    with Messages(app) as queues:
        assert [message.id for message in queues.select()] == [*scheduled, *ready, *held_ids, *dead]
        assert queues.count() == queues.tally()["t"] == 4 * COUNT
        places = [queues.get(ids[7]) for ids in (scheduled, ready, held_ids, dead)]
        assert [message and (message.queue, message.state) for message in places] == [
            (QUEUES[7], state) for state in ("scheduled", "ready", "unacked", "dead")
        ]
        counts = queues.cancel(ids=[*dead, *held_ids, *ready, *scheduled]).by_id
        assert [id for id, count in counts.items() if count] == [*ready, *scheduled]


def test_what_is_shown(app: Celery, access: Access, cluster_site: Site) -> None:
    send_to_all(app)
    send_to_all(app, countdown=60)
    assert access.queues() == QUEUES
    assert [stats.ready + stats.scheduled for stats in queue_stats(access.store, QUEUES)] == [2] * COUNT
    assert sum(span.messages for span in timeline(access.store, QUEUES)) == COUNT
    [up, messages, *_] = QueueCollector(access.store, access.queues).collect()
    assert [sample.value for sample in up.samples] == [1]
    ready = [sample.value for sample in messages.samples if sample.labels["state"] == "ready"]
    assert ready == [1] * COUNT


def test_doctor(app: Celery, access: Access, cluster_site: Site) -> None:
    send_to_all(app, countdown=60)
    findings = examine(access)
    assert not [finding for finding in findings if "CROSSSLOT" in str(finding) or "MOVED" in str(finding)]


def test_forwarder(app: Celery, access: Access, cluster_site: Site) -> None:
    forwarded: list[Forwarded] = []
    forwarder = Forwarder(access.store, lambda: QUEUES, forwarded.append)
    thread = threading.Thread(target=forwarder.run)
    thread.start()
    try:
        send_to_all(app, countdown=0.5)
        wait_until(lambda: all(map(cluster_site.ready, QUEUES)), 30, "that all are forwarded")
    finally:
        forwarder.stop()
        thread.join(10)
    # Consumers take what was forwarded.
    channel = cluster_site.channel()
    inbox = Inbox(channel, *QUEUES, on_message=virtual.Message.ack)
    drain(channel.connection.client, lambda: len(inbox) == COUNT)


def test_what_fills_it(app: Celery, cluster_site: Site) -> None:
    send_to_all(app)
    send_to_all(app, countdown=60)
    bury_in_all(cluster_site)
    send_to_all(app)
    with Messages(app) as messages:
        found = messages.memory()
    assert {(each.queue, each.state, each.messages) for each in found.tasks} == {
        (queue, state, 1) for queue in QUEUES for state in ("ready", "scheduled", "dead")
    }
    assert all(each.bytes > 300 for each in found.tasks)
    assert len(found.servers) == 3
