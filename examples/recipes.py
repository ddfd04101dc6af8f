"""Two everyday uses of delayed messages: an order that is closed unless it is paid, and one digest after the
last of many events."""

from __future__ import annotations

from celery import Celery

from kombu_redisdelay import Messages

app = Celery("recipes", broker="redisdelay://localhost:6379/0")

#: Seconds.
TIME_TO_PAY = 30 * 60
QUIET_TIME = 10 * 60


# -- close an order that is not paid in time --


@app.task
def close_order(number: int) -> None:
    print(f"order {number} was not paid in time: closed")


def place_order(number: int) -> None:
    close_order.apply_async([number], task_id=f"close-order-{number}", countdown=TIME_TO_PAY)


def pay_order(number: int) -> bool:
    """Whether it was paid in time. If not, it is being closed, or has been."""
    with Messages(app) as messages:
        return bool(messages.cancel(ids=[f"close-order-{number}"]))


# -- send one digest when nothing has happened for ten minutes --


@app.task
def send_digest(customer: str) -> None:
    print(f"all the news for {customer}")


def on_event(customer: str) -> None:
    send_digest.apply_async(
        [customer],
        task_id=f"digest-{customer}",
        countdown=QUIET_TIME,
        headers={"x-delay-on-conflict": "replace"},
    )
