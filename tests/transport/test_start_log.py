"""What a worker says of its settings when it is ready."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from kombu_redisdelay.transport.settings import _on_worker_ready
from tests.transport.kit import Site

LEASE, PREFETCH = "visibility_timeout is 43200 seconds", "worker_enable_prefetch_count_reduction"


@pytest.mark.parametrize(
    ("options", "settings", "pool", "said"),
    [
        ({}, {}, "prefork", set()),
        ({"visibility_timeout": 43_200}, {}, "prefork", {LEASE}),
        ({}, {}, "green", {PREFETCH}),
        ({}, {"worker_enable_prefetch_count_reduction": False}, "green", set()),
        ({}, {"worker_prefetch_multiplier": 0}, "green", set()),
        ({}, {"worker_prefetch_multiplier": 1}, "autoscale", {PREFETCH}),
        ({}, {"worker_prefetch_multiplier": 1}, "prefork", set()),
        ({}, {}, "autoscale", set()),
        (
            {},
            {"worker_prefetch_multiplier": 1, "worker_enable_prefetch_count_reduction": False},
            "autoscale",
            set(),
        ),
    ],
)
def test_what_will_do_harm_is_said(
    site: Site,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    settings: dict[str, Any],
    pool: str,
    said: set[str],
) -> None:
    app = Celery("worker", broker="memory://", set_as_current=False)
    app.conf.update({name: value for name, value in settings.items() if name != "worker_prefetch_multiplier"})
    consumer = SimpleNamespace(
        app=app,
        pool=SimpleNamespace(is_green=pool == "green"),
        # Of the settings, or of the command line.
        prefetch_multiplier=settings.get("worker_prefetch_multiplier", 4),
        controller=SimpleNamespace(autoscaler=object() if pool == "autoscale" else None),
        task_consumer=SimpleNamespace(channel=site.channel(**options)),
    )
    _on_worker_ready(sender=consumer)
    assert {text for text in (LEASE, PREFETCH) if text in caplog.text} == said
    app.close()


def test_a_server_that_is_not_verified_is_said(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    app = Celery("worker", broker="memory://", set_as_current=False)
    channel = site.channel()
    task_consumer = SimpleNamespace(channel=channel)
    consumer = SimpleNamespace(app=app, pool=None, prefetch_multiplier=4, task_consumer=task_consumer)
    channel.pool.connection_kwargs["ssl_cert_reqs"] = "required"
    _on_worker_ready(sender=consumer)
    assert caplog.text == ""
    channel.pool.connection_kwargs["ssl_cert_reqs"] = "none"
    _on_worker_ready(sender=consumer)
    assert "The certificate of the Redis server is not verified (ssl_cert_reqs)" in caplog.text
    app.close()


def test_other_brokers_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    _on_worker_ready(sender=SimpleNamespace(task_consumer=SimpleNamespace(channel=object())))
    _on_worker_ready(sender=None)
    assert caplog.text == ""
