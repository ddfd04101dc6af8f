"""What the containers run."""

import os
import time

from celery import Celery
from celery.signals import worker_ready

app = Celery("shop", broker=os.environ.get("BROKER_URL", "redisdelay://localhost:6379/0"))

# `celery beat` publishes this each minute, so that something happens from the beginning.
app.conf.beat_schedule = {"remind": {"task": "shop.remind_later", "schedule": 60, "args": ["Ada"]}}


@app.task(acks_late=True)
def remind_later(customer: str) -> None:
    remind.apply_async([customer], countdown=90)


@app.task(acks_late=True)
def remind(customer: str) -> None:
    time.sleep(1)
    print(f"Still interested, {customer}?")


@worker_ready.connect
def serve_metrics(**kwargs: object) -> None:
    """Those of this worker. The exporter serves those of the queues."""
    # Not at the top, because only a worker needs it.
    from prometheus_client import start_http_server

    start_http_server(int(os.environ.get("METRICS_PORT", "9810")))
