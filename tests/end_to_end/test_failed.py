"""Which tasks count as failed, in every pool, with early and with late acks; and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import celery
import pytest
from celery import Signature, group

from kombu_redisdelay import Messages, Selection, batch
from kombu_redisdelay.broker.archive import Archive, Archived
from kombu_redisdelay.broker.failure import CONTINUATION, HOOK, LONGEST_TEXT, RESULT
from kombu_redisdelay.broker.keys import FAILED
from kombu_redisdelay.broker.paging import Part
from tests.end_to_end.installation import QUEUE, Installation
from tools.harness.process import wait_until
from tools.harness.redis_server import RedisServer

APP = "tests.end_to_end.failed_app"
ANYTHING = "."
OPTIONS = {"delivery_limit": 2, "retry_wait": 0, "dead_letter": True, "keep_finished": {}}
SETTINGS = {"broker_transport_options": OPTIONS}

NEWEST = tuple(map(int, celery.__version__.split(".")[:2])) >= (5, 7)

#: Kind of a task -> the exception by which it has failed; None: it has not failed.
EARLY: dict[str, str | None] = {
    "raise": "KeyError",
    "retries": "KeyError",
    "retry": None,
    "hook_retry": None,
    "ignore": None,
    "unstored_ignore": None,
    "reject": "Reject",
    # Its message is not there any more.
    "requeue": "Reject",
    "unpicklable": "Unpicklable",
    "textless": "Textless",
    "leaving": "Leaving",
    "long": "ValueError",
    "not_acked": "KeyError",
    # Its result cannot be stored.
    "unstored_reject": "Reject",
    "hook": "RuntimeError",
    "unstored": "ConnectionError",
    "unstarted": "ConnectionError",
    # These have returned.
    "no_result": "ConnectionError",
    "unstored_retry": "ConnectionError",
    "unstored_autoretry": "ConnectionError",
    "not_acked_no_result": "ConnectionError",
    "full_no_result": "OutOfMemoryError",
    "no_json": "EncodeError",
    "no_link": "EncodeError",
    "no_chain": "EncodeError",
    "no_chord": "ConnectionError",
    "success_hook": None if NEWEST else "RuntimeError",
    "success_hook_lost": None if NEWEST else "WorkerLostError",
    "succeed": None,
    "expired": None,
}
#: The same for those that need a time limit.
LIMITED: dict[str, str | None] = {
    "hard": "TimeLimitExceeded",
    "hard_not_acked": "TimeLimitExceeded",
    "unstored_hard": "TimeLimitExceeded",
    "hard_storing": "TimeLimitExceeded",
}
#: The same for those that would end the worker without a process of their own. Celery says it otherwise.
LEAVING: dict[str, str | None] = dict.fromkeys(["leave", "unstored_leave"], "WorkerLostError")
#: And a process of their own.
FORKED: dict[str, str | None] = {
    **LIMITED,
    **dict.fromkeys(LEAVING, "SystemExit"),
    "soft": "SoftTimeLimitExceeded",
    "soft_storing": "SoftTimeLimitExceeded",
    "lost_storing": "WorkerLostError",
    "lost": "WorkerLostError",
    "lost_rejected": "WorkerLostError",
    "lost_retried": "WorkerLostError",
    "lost_late": None if NEWEST else "WorkerLostError",
    "unstored_lost": "WorkerLostError",
    "unstored_rejected": "WorkerLostError",
    "unstored_retried": "WorkerLostError",
    "hook_retried": "WorkerLostError",
}
OF_POOL = {"prefork": FORKED, "threads": LEAVING, "gevent": {**LIMITED, **LEAVING}}

#: What was lost of those that are known to have returned.
LOST = {
    **dict.fromkeys(["no_result", "not_acked_no_result", "full_no_result", "no_json"], RESULT),
    # Their retry has returned. Their first try has ended by it.
    **dict.fromkeys(["unstored_retry", "unstored_autoretry"], RESULT),
    **dict.fromkeys(["no_link", "no_chain", "no_chord"], CONTINUATION),
    "soft_storing": RESULT,
    "success_hook": HOOK,
    "success_hook_lost": HOOK,
}

#: How to publish some of them.
OPTIONS_OF: dict[str, dict[str, Any]] = {
    "expired": {"expires": datetime.now(timezone.utc) - timedelta(hours=1)},
    "no_link": {"link": Signature("after")},
    "no_chain": {"chain": [Signature("after")]},
    "no_chord": {"chord": Signature("after")},
}

#: With late acks, these come back, until they are given up. Older releases know no ``acks_on_timeout``.
DEAD = {
    "requeue",
    "lost_rejected",
    "unstored_rejected",
    *(["hard_not_acked"] if hasattr(celery.Task, "acks_on_timeout") else []),
}
#: The same of those that Celery does not end in a solo worker.
DEAD_SOLO = {"hook", "unstored", "unstarted"}

#: These are tried again once, and do their work then.
RETRIED = ("retry", "hook_retry", "unstored_retry", "unstored_autoretry")

#: How the others end than by one failure. A process that was lost has ended nothing if Celery tries again.
ENDS = {
    "retries": ["retried", "retried", "failed"],
    **{key: ["ignored"] for key in ("ignore", "unstored_ignore")},
    "succeed": ["succeeded"],
    "expired": ["expired"],
    "lost_late": [] if NEWEST else ["failed"],
    **{key: ["succeeded"] for key in LOST},
    **{key: ["retried", "succeeded"] for key in RETRIED},
}
#: The same of those that come back with late acks. Of a time limit, Celery says that the task has failed.
ENDS_LATE = {
    "requeue": ["requeued", "requeued"],
    "lost_rejected": [],
    "unstored_rejected": [],
    "hard_not_acked": ["failed", "failed"] if "hard_not_acked" in DEAD else ["failed"],
}


@pytest.fixture
def site(server: RedisServer, tmp_path: Path) -> Iterator[Installation]:
    with Installation(server, tmp_path, result_backend=server.url("redis")) as site:
        yield site


def kept(messages: Messages) -> dict[str, list[Archived]]:
    """Name of the task -> those that have failed."""
    found: dict[str, list[Archived]] = {}
    for task in Archive(messages.store, FAILED).iter(QUEUE, Part(None, None)):
        found.setdefault(task.failure.task, []).append(task)
    return found


def outcomes_of(messages: Messages) -> dict[str | None, list[str]]:
    """Name of the task -> how it has ended, time after time."""
    found: dict[str | None, list[str]] = {}
    for task in messages.select(Selection(state="finished")):
        found.setdefault(task.task, []).append(task.outcome)
    return found


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_which_have_failed(site: Installation, pool: str) -> None:
    expected = {**EARLY, **OF_POOL.get(pool, {})}
    gone = {*DEAD, *(DEAD_SOLO if pool == "solo" else ())}
    worker = site.worker(pool=pool, concurrency=2, settings=SETTINGS, app=APP, expected=ANYTHING)
    producer = site.producer()
    for kind in expected:
        for ack in ("early", "late"):
            producer.send_task(f"{kind}.{ack}", **OPTIONS_OF.get(kind, {}))
    errors = {f"{kind}.early": error for kind, error in expected.items() if error}
    errors |= {f"{kind}.late": error for kind, error in expected.items() if error and kind not in gone}
    dead = {f"{kind}.late" for kind in gone & expected.keys()}
    with Messages(producer) as messages:

        def are_settled() -> bool:
            letters = {letter.task for letter in messages.select(Selection(state="dead"))}
            is_empty = (site.ready(), site.scheduled(), site.unacked()) == (0, 0, 0)
            return is_empty and len(kept(messages)) >= len(errors) and letters >= dead

        try:
            wait_until(are_settled, 60, "the end of all")
        except TimeoutError as exc:
            wrong = kept(messages).keys() ^ errors.keys()
            letters = {letter.task for letter in messages.select(Selection(state="dead"))}
            raise TimeoutError(f"{exc}: {wrong}, {letters ^ dead}, {site.unacked()} unacked") from None
        found = kept(messages)
        assert {task: each[0].failure.error for task, each in found.items()} == errors
        assert {task for task, each in found.items() if len(each) > 1} == set(), "kept twice"
        lost = {task: each[0].failure.returned for task, each in found.items()}
        assert lost == {task: LOST.get(task.partition(".")[0], "") for task in errors}
        assert {letter.task for letter in messages.select(Selection(state="dead"))} == dead
        late = {kind: ENDS_LATE.get(kind, ENDS.get(kind, ["failed"])) for kind in expected}
        if pool == "solo":
            # Celery does not come to an end.
            late |= {key: [] for key in DEAD_SOLO}
        ends = {f"{kind}.early": ENDS.get(kind, ["failed"]) for kind in expected}
        ends |= {f"{kind}.late": outcomes for kind, outcomes in late.items()}
        ends = {task: outcomes for task, outcomes in ends.items() if outcomes}
        wait_until(lambda: outcomes_of(messages) == ends, 30, "a line of each end")
        [success] = messages.select(Selection(state="finished", task="succeed.late"))
        assert (success.tries, success.error, "@" in (success.worker or "")) == (1, "", True)
        assert 0 <= (success.ran or 0) <= 60
        assert 0 <= (success.waited or 0) <= 60
    assert worker.running
    for ack in ("early", "late"):
        failure = found[f"raise.{ack}"][0].failure
        assert failure.text == repr("wrong\n\x1b[31mkey")
        assert failure.traceback.startswith("Traceback")
        assert (failure.tries, "@" in failure.worker) == (1, True)
        assert found[f"retries.{ack}"][0].failure.tries == 3
        assert found[f"reject.{ack}"][0].failure.text == "no such account"
        assert found[f"long.{ack}"][0].failure.text == "x" * LONGEST_TEXT
        # As it was published, so that it can be requeued.
        again = found[f"raise.{ack}"][0].payload
        assert again.startswith(b'{"redisdelay-due": ')
        assert b'"task": "raise.%s"' % ack.encode() in again


def test_one_that_has_returned_does_not_come_back_where_none_is_kept(site: Installation) -> None:
    options = {**OPTIONS, "keep_failed": None}
    settings = {"broker_transport_options": options}
    site.worker(pool="solo", settings=settings, app=APP, expected=ANYTHING)
    producer = site.producer()
    kinds = ["no_result", "not_acked_no_result", "no_json", "succeed"]
    for kind in kinds:
        producer.send_task(f"{kind}.late")
    with Messages(producer) as messages:
        ends = {f"{kind}.late": ["succeeded"] for kind in kinds}
        wait_until(lambda: outcomes_of(messages) == ends, 30, "a line of each end")
        assert (site.ready(), site.scheduled(), site.unacked()) == (0, 0, 0)
        assert messages.count() == 0


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_what_is_requeued_runs_again(site: Installation, pool: str, tmp_path: Path) -> None:
    """With what comes after it."""
    site.worker(pool=pool, concurrency=2, app=APP, expected=ANYTHING)
    producer = site.producer()
    gate = tmp_path / "gate"

    def may_fail() -> Signature:
        return producer.signature("may_fail", args=[str(gate)])

    chain = (may_fail() | producer.signature("after")).apply_async()
    parts = group([may_fail(), may_fail()], app=producer).apply_async()
    ids = {chain.parent.id, *(result.id for result in parts)}
    with Messages(producer) as messages:

        def failed() -> set[str]:
            return {message.id for message in messages.select(Selection(state="failed"))}

        for _ in range(2):
            wait_until(lambda: failed() == ids, 30, "that all have failed")
            assert chain.parent.state == "FAILURE"
            assert messages.requeue(Selection(state="failed", error="KeyError")).count == len(ids)
        wait_until(lambda: failed() == ids, 30, "that all have failed again")
        gate.touch()
        assert messages.requeue(ids=ids).by_id == dict.fromkeys(ids, 1)
        site.wait_ended([f"after {gate}"])
        wait_until(lambda: {result.state for result in parts} == {"SUCCESS"}, 30, "the results")
        assert failed() == set()
    # Celery publishes the rest of a chain before it stores the result. One that has failed is not asked for
    # again.
    wait_until(lambda: producer.AsyncResult(chain.parent.id).state == "SUCCESS", 30, "the result")


def test_a_slow_requeue_stops_while_they_fail_again(site: Installation, tmp_path: Path) -> None:
    """And goes through when the cause is mended."""
    site.worker(pool="threads", concurrency=2, app=APP, expected=ANYTHING)
    producer = site.producer()
    gate = tmp_path / "gate"
    failed, number = Selection(state="failed"), 300
    with batch(producer):
        for _ in range(number):
            producer.send_task("may_fail", [str(gate)])
    with Messages(producer) as messages:
        for _ in range(2):
            wait_until(lambda: messages.count(failed) == number, 60, "that all have failed")
            # A busy machine has half a minute to let ten of them fail.
            done = messages.requeue(failed, rate="10/s")
            assert (done.stopped, done.left) == ("failing", number - done.count)
        wait_until(lambda: messages.count(failed) == number, 60, "that all have failed again")
        gate.touch()
        done = messages.requeue(failed, rate="200/s")
        assert (done.count, done.left, done.failed_again, done.stopped) == (number, 0, 0, "")
        wait_until(lambda: messages.count() == 0, 60, "that all have run")
