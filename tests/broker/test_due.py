"""When a message is due: Celery's `eta`, plain kombu's `x-delay`."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from kombu_redisdelay.broker.message import Due, due, eta_ms

#: 2030-01-02T03:04:05Z
MOMENT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
MOMENT_MS = 1893553445000


def message(**headers: Any) -> dict[str, Any]:
    return {"headers": headers, "properties": {}, "body": ""}


@pytest.mark.parametrize(
    "eta",
    [
        MOMENT,
        MOMENT.replace(tzinfo=None),
        MOMENT.astimezone(timezone(timedelta(hours=5, minutes=30))),
        "2030-01-02T03:04:05+00:00",
        "2030-01-02T03:04:05Z",
        "2030-01-02T03:04:05",
        "2030-01-02T05:04:05+02:00",
        "2030-01-01T22:04:05-05:00",
    ],
)
@pytest.mark.parametrize("of_celery", [{}, {"task": "t"}])
def test_eta_is_read_as_celery_reads_it(eta: object, of_celery: dict[str, str]) -> None:
    assert eta_ms({"eta": eta, **of_celery}) == MOMENT_MS
    assert due(message(eta=eta, **of_celery)) == Due(at_ms=MOMENT_MS)


def test_eta_keeps_its_microseconds() -> None:
    assert eta_ms({"eta": "2030-01-02T03:04:05.000001"}) == MOMENT_MS + 0.001
    assert eta_ms({"eta": "2030-01-02T03:04:05.999000"}) == MOMENT_MS + 999


@pytest.mark.parametrize("eta", [None, ""])
def test_no_eta_is_due_at_once(eta: object) -> None:
    assert eta_ms({"eta": eta, "task": "t"}) == 0
    assert due(message(eta=eta, task="t")) is None


def test_no_headers_is_due_at_once() -> None:
    assert due({"headers": None, "properties": {}}) is None
    assert due(message()) is None


@pytest.mark.parametrize("eta", ["1969-12-31T23:59:59Z", "0001-01-01T00:00:00", datetime.min])
def test_eta_in_the_far_past_is_due_at_once(eta: object) -> None:
    assert due(message(eta=eta, task="t")) is None


@pytest.mark.parametrize(
    "eta",
    [
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59.999999-12:00",
        datetime.max,
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    ],
)
def test_eta_at_the_end_of_the_calendar(eta: object) -> None:
    assert eta_ms({"eta": eta, "task": "t"}) >= 253402300799999


@pytest.mark.parametrize(
    "eta", ["soon", "2030-13-01T00:00:00", 5, 5.5, ["2030"], True, b"\xff", dict.fromkeys("abcd")]
)
class TestEtaThatIsNone:
    def test_of_a_celery_task_is_an_error_that_names_it(self, eta: object) -> None:
        with pytest.raises(ValueError, match="'eta'") as caught:
            due(message(eta=eta, task="t"))
        assert repr(eta) in str(caught.value)

    def test_of_another_message_is_the_applications_own(self, eta: object) -> None:
        assert due(message(eta=eta)) is None


@pytest.mark.parametrize(
    ("delay", "expected"),
    [(5000, 5000), (1, 1), (0.2, 0.2), (1500.5, 1500.5)],
)
def test_delay_is_in_milliseconds(delay: object, expected: float) -> None:
    assert due(message(**{"x-delay": delay})) == Due(delay_ms=expected)


def test_delay_of_another_kind_of_float_is_one_that_redis_can_read() -> None:
    class Float(float):
        """As numpy has one."""

        def __repr__(self) -> str:
            return "Float(1.5)"

    found = due(message(**{"x-delay": Float(1.5)}))
    assert found is not None
    assert repr(found.delay_ms) == "1.5"


@pytest.mark.parametrize("delay", [None, 0, 0.0])
def test_no_delay_is_due_at_once(delay: object) -> None:
    assert due(message(**{"x-delay": delay})) is None


def test_eta_and_delay_are_both_kept() -> None:
    assert due(message(**{"x-delay": 7, "eta": MOMENT})) == Due(MOMENT_MS, 7)


def test_the_longest_delay_ends_in_the_year_9999() -> None:
    until_the_end = 253402300799999 - time.time() * 1000
    within = due(message(**{"x-delay": until_the_end - 60_000}))
    assert within is not None
    with pytest.raises(ValueError, match="9999"):
        due(message(**{"x-delay": until_the_end + 60_000}))


@pytest.mark.parametrize(
    "delay",
    [
        "5000",
        "",
        b"5",
        [5],
        {},
        object(),
        Decimal(5),
        1j,
        True,
        False,
        float("nan"),
        float("inf"),
        float("-inf"),
        -1,
        -0.001,
        1e300,
        10**15,
        10**400,
    ],
    ids=lambda delay: f"{type(delay).__name__} {delay!r:.20}",
)
def test_a_delay_that_makes_no_sense_names_header_and_value(delay: object) -> None:
    with pytest.raises(ValueError, match="'x-delay'") as caught:
        due(message(**{"x-delay": delay}))
    assert repr(delay) in str(caught.value)
