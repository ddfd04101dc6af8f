"""When a Celery worker starts, logs which of its settings will do harm one day."""

from __future__ import annotations

import logging
import sys
from typing import Any

from kombu_redisdelay.broker.options import LONG_LEASE
from kombu_redisdelay.tls import is_unverified
from kombu_redisdelay.transport.channel import Channel

logger = logging.getLogger(__name__)


def warn_when_ready() -> None:
    """Log it as soon as a worker of this process is ready. Calling this again changes nothing."""
    signals: Any = sys.modules.get("celery.signals")
    if signals is not None:
        signals.worker_ready.connect(_on_worker_ready, dispatch_uid=__name__)


def _on_worker_ready(sender: Any = None, **kwargs: Any) -> None:
    channel = getattr(getattr(sender, "task_consumer", None), "channel", None)
    if not isinstance(channel, Channel):
        return
    if is_unverified(channel.pool.connection_kwargs):
        logger.warning(
            "The certificate of the Redis server is not verified (ssl_cert_reqs): a machine between this "
            "worker and the server can read every message. Name the authority instead: ssl_ca_certs.",
        )
    timeout = channel.options.visibility_timeout
    if timeout > LONG_LEASE:
        logger.warning(
            "visibility_timeout is %s seconds: for so long, the messages of a worker that dies may stay "
            "away. Take it out of broker_transport_options: tasks may take any time with the default. Only "
            "workers of redis:// need it.",
            f"{timeout:g}",
        )
    # The command line may have set another multiplier than the settings.
    reduces = sender.app.conf.worker_enable_prefetch_count_reduction and sender.prefetch_multiplier
    if reduces and getattr(sender.pool, "is_green", False):
        logger.warning(
            "After a lost connection, Celery lowers the prefetch count of this worker, and with gevent and "
            "eventlet it never raises it to what it was. Set worker_enable_prefetch_count_reduction = False.",
        )
    elif reduces == 1 and _scales(sender):
        logger.warning(
            "After a lost connection, Celery lowers the prefetch count of this worker. With --autoscale and "
            "worker_prefetch_multiplier = 1, its pool may never grow again. Set "
            "worker_enable_prefetch_count_reduction = False.",
        )


def _scales(sender: Any) -> bool:
    """Whether the pool of a worker grows and shrinks with its work."""
    return getattr(getattr(sender, "controller", None), "autoscaler", None) is not None
