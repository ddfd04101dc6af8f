"""An app, and a look into Redis, for the tests of ``batch(app)``."""

from __future__ import annotations

from typing import Any

from celery import Celery

from tests.transport.kit import Site

#: A result backend.
BACKEND = "cache+memory://"


def celery_app(url: str, **settings: Any) -> Celery:
    app = Celery("batched", broker=url, set_as_current=False)
    app.conf.update({"task_publish_retry": False, **settings})
    return app


def send(app: Celery, *numbers: int, **options: Any) -> list[Any]:
    return [app.send_task("add", [number, number], **options) for number in numbers]


def ready(site: Site, queue: str = "celery", prefix: str = "") -> int:
    return int(site.redis.llen(site.keys(queue, prefix).ready))


def scheduled(site: Site, queue: str = "celery") -> int:
    return site.scheduled(queue)
