"""Says which settings do harm, or have no effect: transport options, and those of a worker or a task."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any

from kombu.transport import redis
from redis import Redis

from kombu_redisdelay.broker.options import LONG_LEASE, Options
from kombu_redisdelay.broker.unique import DONE, LATEST, WHILE_HEADER
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.urls import is_unverified

logger = logging.getLogger(__name__)

#: The options that kombu 5.5 to 5.7 reads, besides the ``from_transport_options`` of its channels. With an
#: earlier kombu, the options of a later one are accepted, too.
_OF_KOMBU = frozenset(
    (
        # Transports, virtual and redis.
        *("polling_interval", "unacked_restore_interval", "unacked_restore_throttle", "client_name"),
        *("health_check_interval", "reauth_check_interval", "retry_on_error", "retry"),
        *("sentinel_fanout_compat",),
        # Connection.
        *("max_retries", "interval_start", "interval_step", "interval_max", "connect_retries_timeout"),
        *("errback", "callback"),
        # Producer.publish adds its retry policy to the transport options.
        *("on_revive", "retry_errors"),
    )
)

KNOWN = frozenset(
    (
        *Options.__slots__,
        *Options.renamed(),
        *redis.Channel.from_transport_options,
        *redis.SentinelChannel.from_transport_options,
        *_OF_KOMBU,
    )
)

#: How similar two names must be, from 0 to 1, for one to count as a misspelling of the other.
_ALIKE = 0.8

#: Options of redis-py that come from the URL of a sentinel.
_OF_THE_URL = {"host", "port"}

#: Options that this process has already warned of.
_warned: set[str] = set()

#: Tasks of which the log has said that they are acked too early.
_told: set[str] = set()


def unknown_options(transport_options: Mapping[str, Any]) -> dict[str, str | None]:
    """Unknown option -> the known option that it resembles, ``None`` if there is no such option."""
    return {name: _nearest(name) for name in transport_options if name not in KNOWN}


def warn_of_misspelt_options(transport_options: Mapping[str, Any]) -> None:
    """Log a warning for each unknown option that resembles a known one, and for each that has another name by
    now, once in each process.

    There is no warning for other unknown options: applications, and tools such as RedBeat, keep their own
    options in the transport options.
    """
    for was, name in Options.renamed().items():
        if was in transport_options and was not in _warned:
            _warned.add(was)
            logger.warning("The transport option %r is named %r now. It still has its effect", was, name)
    for name, nearest in unknown_options(transport_options).items():
        if nearest is not None and name not in _warned:
            _warned.add(name)
            logger.warning(
                "The transport option %r is unknown, and has no effect. Did you mean %r?", name, nearest
            )


def check_sentinel_options(transport_options: Mapping[str, Any]) -> None:
    """Check kombu's options for sentinels.

    Raises:
        ValueError: one of them is missing or wrong. The error names the option, and has no password.
    """
    name = transport_options.get("master_name")
    if not name:
        raise ValueError(
            "the transport option 'master_name' is missing: the name by which the sentinels know the "
            "primary (in their configuration: sentinel monitor <name> ...)"
        )
    if not isinstance(name, str):
        raise ValueError(f"transport option 'master_name' must be a text, not {name!r}")
    others = transport_options.get("min_other_sentinels", 0)
    if not isinstance(others, int) or isinstance(others, bool) or others < 0:
        raise ValueError(
            f"transport option 'min_other_sentinels' must be a whole number from 0, not {others!r}"
        )
    given = transport_options.get("sentinel_kwargs") or {}
    if not isinstance(given, Mapping):
        raise ValueError("transport option 'sentinel_kwargs' must be a dict of options of redis-py")
    known = signature(Redis).parameters.keys() - _OF_THE_URL
    for unknown in sorted(map(str, given.keys() - known)):
        nearest = _nearest(unknown, known)
        hint = "" if nearest is None else f". Did you mean {nearest!r}?"
        raise ValueError(
            f"transport option 'sentinel_kwargs' has {unknown!r}, which is no option of redis-py{hint}"
        )


def warn_when_ready() -> None:
    """Log it as soon as a worker of this process is ready. Calling this again changes nothing."""
    signals: Any = sys.modules.get("celery.signals")
    if signals is not None:
        signals.worker_ready.connect(_on_worker_ready, dispatch_uid=__name__)


def warn_of_early_ack(task: Any, headers: Mapping[str, Any]) -> None:
    """Do so once for each *task* that a worker acks before it runs, if its key is to be held until it is
    done.

    Arguments:
        headers: of a message of the task, which has a key. They have the mode, too: a program that does not
            know the task may have published it.
    """
    name = task.name
    if headers.get(WHILE_HEADER) in (DONE, LATEST) and not task.acks_late and name not in _told:
        _told.add(name)
        logger.warning(
            "Task %s is published with %s = %r, and this worker acks it before it runs. So its key is free "
            "by then, as with %r. Set acks_late = True.",
            name,
            WHILE_HEADER,
            headers[WHILE_HEADER],
            "waiting",
        )


def _nearest(name: str, known: Collection[str] = KNOWN) -> str | None:
    nearest = get_close_matches(name.lower(), sorted(known), n=1, cutoff=_ALIKE)
    return nearest[0] if nearest else None


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
