"""A Celery task whose message itself comes back later: it is not published anew, as by ``self.retry``."""

from __future__ import annotations

from celery import Celery, Task
from celery.exceptions import Reject
from celery.worker.request import Request

import kombu_redisdelay

app = Celery("requeue_celery", broker="redisdelay://localhost:6379/0")

#: Seconds before the second delivery, the third, and so on.
DELAYS = (60, 5 * 60, 10 * 60, 30 * 60, 60 * 60)


class LaterRequest(Request):  # type: ignore[misc]
    """Runs in the worker's main process, which has the message."""

    acknowledged: bool

    def reject(self, requeue: bool = False) -> None:
        if not requeue or self.acknowledged:
            super().reject(requeue)
            return
        failures = self.message.headers.get("x-delivery-count", 0)
        kombu_redisdelay.requeue(self.message, delay=DELAYS[min(failures, len(DELAYS) - 1)])
        self.acknowledged = True
        self.send_event("task-rejected", requeue=True)


class LaterTask(Task):  # type: ignore[misc]
    Request = LaterRequest
    acks_late = True


def take_money(order: int) -> None:
    print(f"charged order {order}")


@app.task(base=LaterTask)
def charge(order: int) -> None:
    try:
        take_money(order)
    except ConnectionError as error:
        raise Reject(error, requeue=True) from error
