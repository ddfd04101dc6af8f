"""What Celery runs when others write it, ours runs, too; or the call that publishes it refuses it."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from time import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from celery import Celery, _state
from celery.concurrency.solo import TaskPool
from celery.worker import state
from celery.worker.consumer import Consumer
from celery.worker.strategy import default
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu.transport import virtual

from kombu_redisdelay.broker.message import check, due
from kombu_redisdelay.transport.protocol import is_usual, task_with_odd_id, wrong_part
from kombu_redisdelay.transport.receive import _decoded
from tests.environments import examples
from tests.search import may_search_for_long

pytestmark = may_search_for_long

#: Seconds from now from which on a task counts as one that waits.
SOON = 5.0


class Worker:
    """Celery's own way from a message to its task, as in a solo worker, without a broker."""

    def __init__(self) -> None:
        self.app = Celery("app", broker="memory://", set_as_current=False)
        self.ran: list[str] = []
        self.refused: list[str] = []

        @self.app.task(name="run", shared=False)
        def run(label: str) -> None:
            self.ran.append(label)

        self.app.finalize()
        pool: Any = TaskPool(app=self.app)
        consumer = MagicMock(
            app=self.app,
            hostname="here",
            connection_errors=(),
            event_dispatcher=None,
            disable_rate_limits=True,
            pool=pool,
            controller=SimpleNamespace(state=state),
            on_task_request=lambda request: request.execute_using_pool(pool),
            restart_count=0,
            on_unknown_message=self._refuses("no task"),
            on_unknown_task=self._refuses("unknown"),
            on_invalid_task=self._refuses("invalid"),
            on_decode_error=self._refuses("not decoded"),
        )
        consumer.apply_eta_task = consumer.on_task_request
        consumer.timer.call_at = self._call_at
        consumer.strategies = {"run": default(self.app.tasks["run"], self.app, consumer)}
        self.handle = Consumer.create_task_handler(consumer)

    def _refuses(self, why: str) -> Callable[..., None]:
        return lambda *_: self.refused.append(why)

    def _call_at(self, at: float, call: Callable[..., Any], args: Any, **_: Any) -> None:
        # Not *at*: of which clock it is depends on the release.
        if args[0].eta.timestamp() < time() + SOON:
            call(*args)

    def outcome(self, make: Callable[[], virtual.Message]) -> str:
        """Whether the task runs; the reason if it is refused."""
        self.ran.clear()
        self.refused.clear()
        state.revoked.clear()
        try:
            self.handle(make())
        except Exception as exc:
            return repr(exc)
        return "runs" if self.ran else ", ".join(self.refused) or "does not run"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with pytest.MonkeyPatch.context() as patch:
        # Tasks that tests of other folders have made are tasks of every later app otherwise.
        patch.setattr(_state, "_on_app_finalizers", set())
        worker, before = Worker(), _state.get_current_app()
    worker.app.set_current()
    yield worker
    before.set_current()
    worker.app.close()


# -- what others write -----------------------------------------------------------------------------------

#: Nothing, in one language or another.
NOTHING: st.SearchStrategy[Any] = st.sampled_from([None, "", 0, False, [], {}])
NUMBERS = st.one_of(
    st.integers(-1, 10_000),
    st.floats(0, 1e6),
    st.integers(0, 10_000).map(str),
    st.floats(0, 1e6).map(str),
    st.booleans(),
)
TEXTS = st.one_of(st.text(max_size=5), st.integers(0, 9), st.floats(0, 9))
OFFSETS = st.one_of(
    st.none(), st.just(0), st.integers(-86_399, 86_399), st.integers(-1439, 1439).map(lambda m: 60 * m)
)
PAST = datetime(2026, 1, 1)


def zone(seconds: int | None) -> timezone | None:
    return None if seconds is None else timezone(timedelta(seconds=seconds))


MOMENTS = st.one_of(
    st.datetimes(max_value=datetime(2, 1, 1)),
    st.datetimes(datetime(1850, 1, 1), PAST),
    st.datetimes(),
).flatmap(lambda moment: OFFSETS.map(lambda seconds: moment.replace(tzinfo=zone(seconds))))
#: The ways to write a moment.
WAYS: list[Callable[[datetime], str]] = [
    datetime.isoformat,
    lambda moment: moment.isoformat(" "),
    lambda moment: moment.isoformat(timespec="milliseconds"),
    lambda moment: moment.isoformat().replace("+00:00", "Z"),
    lambda moment: moment.isoformat().replace("+00:00", "z"),
    lambda moment: moment.isoformat().replace(".", ","),
    lambda moment: f"{moment:%Y%m%dT%H%M%S}".zfill(15),
    lambda moment: moment.date().isoformat(),
    lambda moment: f"{moment:%G-W%V-%u}".zfill(10),
    lambda moment: f"{moment.isoformat()} ",
]
TIMES = st.builds(lambda moment, way: way(moment), MOMENTS, st.sampled_from(WAYS))
LIMITS = st.lists(st.one_of(st.none(), NUMBERS), min_size=2, max_size=2)
ANYTHING = st.one_of(NOTHING, TEXTS, NUMBERS, st.just([1]), st.just({"a": 1}))

PARTS: dict[str, st.SearchStrategy[Any]] = {
    # With the other ways to write nothing, Celery fails.
    "eta": st.one_of(st.none(), TIMES),
    "expires": st.one_of(st.none(), TIMES),
    "retries": st.one_of(NOTHING, NUMBERS),
    "timelimit": st.one_of(NOTHING, LIMITS),
    "group": st.one_of(NOTHING, TEXTS),
    "shadow": st.one_of(NOTHING, TEXTS),
    "stamped_headers": st.one_of(NOTHING, st.lists(st.text(max_size=5), max_size=2)),
    "stamps": st.one_of(NOTHING, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)),
    **dict.fromkeys(("root_id", "parent_id", "lang", "argsrepr", "kwargsrepr", "origin", "meth"), ANYTHING),
    **dict.fromkeys(("group_index", "ignore_result", "replaced_task_nesting"), ANYTHING),
}
PARTS_1: dict[str, st.SearchStrategy[Any]] = {
    **PARTS,
    "taskset": st.one_of(NOTHING, TEXTS),
    "utc": st.booleans(),
    **dict.fromkeys(("callbacks", "errbacks", "chord"), NOTHING),
}
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "delivery_info": st.one_of(
            NOTHING,
            st.fixed_dictionaries(
                {}, optional=dict.fromkeys(("exchange", "routing_key"), st.one_of(NOTHING, TEXTS))
            ),
        ),
        "correlation_id": st.one_of(NOTHING, TEXTS),
        "reply_to": st.one_of(NOTHING, TEXTS),
        "priority": st.one_of(NOTHING, NUMBERS),
    },
)


def payload(headers: Any, body: Any, properties: dict[str, Any], encoding: Any = "utf-8") -> bytes:
    encoded = b64encode(json.dumps(body).encode()).decode()
    return json.dumps(
        {
            "body": encoded,
            "headers": headers,
            "content-type": "application/json",
            "content-encoding": encoding,
            "properties": {**properties, "body_encoding": "base64", "delivery_tag": "1"},
        }
    ).encode()


class _Channel:
    decode_body = virtual.Channel.decode_body
    codecs = virtual.Channel.codecs
    no_ack_consumers = None

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def stock(entry: bytes) -> virtual.Message:
    """As kombu's own transport delivers it."""
    made = virtual.Message(json.loads(entry), channel=_Channel())
    made.accept = {"application/json"}
    return made


def ours(entry: bytes) -> virtual.Message:
    """As our transport delivers it, and our worker hands it to Celery."""
    made = virtual.Message(check(_decoded(entry)), channel=_Channel())
    made.accept = {"application/json"}
    is_plain = is_usual(made)
    wrong = wrong_part(made)
    assert not (is_plain and (wrong or task_with_odd_id(made)))
    if wrong is not None:
        raise ValueError(wrong)
    return made


def compare(worker: Worker, entry: bytes) -> None:
    by_celery = worker.outcome(lambda: stock(entry))
    if by_celery == "runs":
        assert worker.outcome(lambda: ours(entry)) == by_celery, entry


@given(st.fixed_dictionaries({}, optional=PARTS), PROPERTIES, NOTHING)
@settings(max_examples=examples(1200))
def test_version_2(worker: Worker, parts: dict[str, Any], properties: dict[str, Any], encoding: Any) -> None:
    headers, body = {"task": "run", "id": "an id", **parts}, [["a"], {}, {}]
    compare(worker, payload(headers, body, properties, encoding))


@given(st.fixed_dictionaries({}, optional=PARTS_1), PROPERTIES, NOTHING)
@settings(max_examples=examples(1200))
def test_version_1(worker: Worker, parts: dict[str, Any], properties: dict[str, Any], headers: Any) -> None:
    body = {"task": "run", "id": "an id", "args": ["a"], "kwargs": {}, **parts}
    compare(worker, payload(headers, body, properties))


@given(st.one_of(st.none(), MOMENTS), st.one_of(st.none(), MOMENTS))
@settings(max_examples=examples(1200))
def test_what_is_published_can_be_read(
    worker: Worker, eta: datetime | None, expires: datetime | None
) -> None:
    """Of what the call takes, Celery reads each time."""
    sent = worker.app.amqp.as_task_v2("an id", "run", ("a",), eta=eta, expires=expires)
    try:
        when = due({"headers": sent.headers, "properties": {}})
    except ValueError:
        return
    made = ours(payload({**sent.headers, "eta": None}, sent.body, {}))
    worker.refused.clear()
    worker.handle(made)
    assert not worker.refused
    if eta is not None and eta.year < 9999:
        made = ours(payload({**sent.headers, "expires": None}, sent.body, {}))
        is_past = when is None or when.at_ms / 1000 < time() + SOON
        assert worker.outcome(lambda: made) == ("runs" if is_past else "does not run")
