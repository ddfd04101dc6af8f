"""Results in ``rpc://``: each is a message to the queue that its task names as ``reply_to``. The process that
has published the task listens there.

An empty list and one that is gone look the same in Redis, so nobody knows whether that process still lives.
So each result gives its list a time to live: what nobody fetches goes after ``result_expires``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from kombu.messaging import Producer

from kombu_redisdelay.extending import extend

#: The time to live of the results that are published now, in ms; 0 for any.
_expires_ms: ContextVar[int] = ContextVar("redisdelay_result_expires_ms", default=0)

#: What may be said of who waits for a result, beside its id.
REPLY_PROPERTIES = ("reply_to", "correlation_id")


def is_rpc(backend: Any) -> bool:
    """Whether *backend* is Celery's ``rpc://``, or one that is derived from it."""
    rpc: Any = sys.modules.get("celery.backends.rpc")
    return rpc is not None and isinstance(backend, rpc.RPCBackend)


def reply_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """What a request says of who waits for the result of a task: that of ``rpc://`` goes there.

    Arguments:
        properties: those of its message.
    """
    return {name: properties.get(name) for name in REPLY_PROPERTIES}


def expires_ms() -> int:
    """The time to live of the list that a result goes to, in ms; 0 for none, or if no result is published."""
    return _expires_ms.get()


@contextmanager
def expiring(backend: Any) -> Iterator[None]:
    """The results that are published in this block go after ``result_expires`` of *backend*."""
    token = _expires_ms.set(int((backend.expires or 0) * 1000))
    try:
        yield
    finally:
        _expires_ms.reset(token)


def let_results_expire() -> None:
    """Have what Celery publishes as a result of ``rpc://`` expire, in this process and those that it forks.
    Calling it again changes nothing."""
    from celery.backends.rpc import RPCBackend

    extend(RPCBackend, "store_result", _store_result)


def _store_result(store: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """``rpc_results_stay``: in place of Celery's ``RPCBackend.store_result``."""
    with expiring(self):
        return store(self, *args, **kwargs)


def publish(channel: Any, backend: Any, result: Any, state: str, request: Any) -> None:
    """Publish a *result* over *channel*. ``backend.store_result`` would wait for a producer of a pool, of
    which the caller may have the last one."""
    with expiring(backend):
        Producer(channel, auto_declare=False).publish(
            backend._to_result(request.id, state, result, None, request),
            exchange="",
            routing_key=request.reply_to,
            correlation_id=request.correlation_id or request.id,
            serializer=backend.serializer,
            delivery_mode=backend.delivery_mode,
        )
