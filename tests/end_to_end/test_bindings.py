"""Queues of a topic exchange, while their bindings are lost, and taken out, under a worker that lives on."""

from __future__ import annotations

from kombu.entity import Exchange, Queue

from kombu_redisdelay.transport import bindings
from tests.end_to_end.installation import Installation
from tests.faults.workers import LOST_CONNECTION
from tools.harness.process import wait_until

TOPICS = Exchange("topics", "topic")
FILMS, NEWS = Queue("films", TOPICS, "video.#"), Queue("news", TOPICS, "#")
BINDINGS = "_kombu.binding.topics"


def test_two_queues_of_which_one_has_a_worker(site: Installation) -> None:
    worker = site.worker(
        pool="prefork",
        app="tests.end_to_end.topics_app",
        settings={"task_acks_late": True},
        queues=["films"],
        expected=f"{LOST_CONNECTION}|Redis had lost that queue 'films'",
    )
    producer = site.producer(task_queues=[FILMS, NEWS])

    def publish(task: str) -> None:
        producer.send_task("work", [task], queue="films", routing_key="video.new")

    producer.send_task("work", ["of the other queue"], queue="news", routing_key="text")
    publish("before")
    site.wait_ended(["before"])
    # Else what it holds would have vanished, too.
    wait_until(lambda: not site.unacked("films"), 20, "the ack")
    site.redis.flushdb()
    wait_until(lambda: site.redis.exists(BINDINGS), 20, "that the worker says its binding again")
    assert site.redis.scard(BINDINGS) == 1
    publish("after")
    site.wait_ended(["after"])
    assert site.ready("news") == 1

    # Another process unbinds it. Then the connections of the worker are lost, and it declares all anew.
    bindings._declared.clear()
    with producer.connection_for_write() as connection:
        FILMS(connection.default_channel).unbind_from(TOPICS, "video.#")
    site.redis.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: worker.log().count("Connected to") == 2, 30, "that the worker has connected again")
    wait_until(lambda: "'films' stays unbound from exchange 'topics'" in worker.log(), 20, "that it says so")
    with producer.connection_for_write() as connection:
        producer.send_task(
            "work", ["after that"], exchange="topics", routing_key="video.new", connection=connection
        )
    producer.send_task("work", ["the last"], queue=Queue("films"))
    site.wait_ended(["the last"])
    assert site.ledger.ended() == ["before", "after", "the last"]
    assert worker.log().count("stays unbound") == 1
