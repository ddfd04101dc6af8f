"""A shop that sends a webhook for each change of an account: one synchronisation runs, one comes after it,
and the newest state wins.

Start a worker, ``celery -A account_sync worker``, and then ``python account_sync.py``.
"""

from __future__ import annotations

import time

from celery import Celery

from kombu_redisdelay import Unique

app = Celery("account_sync", broker="redisdelay://localhost:6379/0")

#: How long the other side takes to store an account, seconds.
STORING = 1.0


@app.task(base=Unique, unique="account:{account}", unique_while="latest", acks_late=True)
def sync(account: int, state: str) -> None:
    time.sleep(STORING)
    print(f"account {account} is {state} now")


def on_webhook(account: int, state: str) -> str:
    """What becomes of the change."""
    result = sync.delay(account, state)
    return "replaces the one that waits" if result.replaced else "is published"


if __name__ == "__main__":
    for change in ("new", "paid", "packed", "sent"):
        print(change, on_webhook(42, change))
