"""Extends Celery's remote control commands in a worker with a broker of ours.

Celery keeps the commands in a registry, in which each can be registered anew. So ours calls Celery's, and
then does its part. In a worker with another broker, that part does nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any

from kombu_redisdelay.broker.message import from_ms
from kombu_redisdelay.broker.portions import BYTES_PER_CALL
from kombu_redisdelay.broker.schedule import Schedule, Scheduled, upcoming
from kombu_redisdelay.transport.channel import Channel
from kombu_redisdelay.transport.receive import message_in_schedule
from kombu_redisdelay.transport.revoker import Revoker, Stamps, announcer

#: How many scheduled tasks ``celery inspect scheduled`` shows.
SHOWN = 100

#: What Celery's worker says of every task that waits for its time: the priority of its timer.
TIMER_PRIORITY = 6

#: Does more than a command of Celery. It gets the state of the worker, the reply of Celery's command, and the
#: arguments by name; it returns what is replied.
Extension = Callable[[Any, Any, Mapping[str, Any]], Any]


def extend() -> None:
    """Register our commands in place of Celery's, if this process has a Celery worker. Calling it again
    changes nothing."""
    # Another thread may be importing it.
    panel: Any = getattr(sys.modules.get("celery.worker.control"), "Panel", None)
    for name, extension in _EXTENSIONS.items() if panel else ():
        command = panel.data.get(name)
        if command is not None and not hasattr(command, "extends_celery"):
            panel.register(name=name, **panel.meta[name]._asdict())(_extended(command, extension))


def _extended(command: Callable[..., Any], extension: Extension) -> Callable[..., Any]:
    by_name = signature(command)

    @wraps(command)
    def extended(state: Any, *args: Any, **kwargs: Any) -> Any:
        reply = command(state, *args, **kwargs)
        return extension(state, reply, by_name.bind(state, *args, **kwargs).arguments)

    extended.extends_celery = True  # type: ignore[attr-defined]
    return extended


def _channel(state: Any) -> Channel | None:
    """The channel over which the worker gets its tasks, if it is one of ours."""
    channel = getattr(state.consumer.task_consumer, "channel", None)
    return channel if isinstance(channel, Channel) and not channel.closed else None


# -- revoke ----------------------------------------------------------------------------------------------


def _revoke(state: Any, reply: Any, arguments: Mapping[str, Any]) -> Any:
    ids = arguments["task_id"]
    _take_out(state, ids=[str(id) for id in _as_list(ids) if id])
    return reply


def _revoke_by_stamps(state: Any, reply: Any, arguments: Mapping[str, Any]) -> Any:
    _take_out(state, stamps=_stamps(arguments["headers"]))
    return reply


def _stamps(headers: Any) -> Stamps:
    """Header -> its values, from what the command was called with."""
    if not isinstance(headers, dict):
        # From the command line: a list of "header=value".
        headers = dict(header.split("=")[:2] for header in headers)
    return {header: _as_list(values) for header, values in headers.items()}


def _as_list(values: Any) -> list[Any]:
    return list(values) if isinstance(values, (list, tuple, set)) else [values]


def _take_out(state: Any, **what: Any) -> None:
    channel = _channel(state)
    if channel is None or not channel.options.revoke_scheduled:
        return
    if channel.revoker is None:
        # With connections of its own: the event loop uses those of the channel meanwhile.
        store = channel.store.with_own_connections(socket_timeout=channel.silence_limit)
        channel.revoker = Revoker(store, state.hostname)
    channel.revoker.revoke(channel.active_queues, announcer(state), **what)


# -- inspect scheduled, inspect query_task ---------------------------------------------------------------


def _scheduled(state: Any, reply: list[Any], arguments: Mapping[str, Any]) -> list[Any]:
    channel = _channel(state)
    if channel is None:
        return reply
    shown, size = list(reply), 0
    for found in upcoming(channel.store, channel.active_queues):
        task = _task(state, found)
        size += len(found.stored)
        if task is not None:
            shown.append(task)
        if len(shown) >= SHOWN or size >= BYTES_PER_CALL:
            break
    return shown


def _query_task(state: Any, reply: dict[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    channel = _channel(state)
    if channel is None:
        return reply
    # Celery has told of the tasks that the worker has.
    ids = [id for id in _as_list(arguments["ids"]) if isinstance(id, str) and id not in reply]
    shown, size = dict(reply), 0
    for id, found in Schedule(channel.store).find_all(channel.active_queues, ids):
        task = _task(state, found)
        size += len(found.stored)
        if task is not None:
            shown.setdefault(id, ("scheduled", task["request"]))
        if size >= BYTES_PER_CALL:
            break
    return shown


def _task(state: Any, found: Scheduled) -> dict[str, Any] | None:
    """What Celery says of a task that waits for its time; ``None`` if it is not a task."""
    try:
        message = message_in_schedule(found.payload)
        headers, properties, delivery_info = message.headers, message.properties, message.delivery_info
        id, type = headers["id"], headers["task"]
    except Exception:
        # Foreign bytes may raise anything.
        return None
    try:
        # Never anything that runs code, even if the worker accepts it.
        message.accept = {"application/json"}
        args, kwargs, _ = message.payload
    except Exception:
        args, kwargs = headers.get("argsrepr"), headers.get("kwargsrepr")
    return {
        "eta": from_ms(found.due_ms).isoformat(),
        "priority": TIMER_PRIORITY,
        "request": {
            "id": id,
            "name": headers.get("shadow") or type,
            "args": args,
            "kwargs": kwargs,
            "type": type,
            "hostname": state.hostname,
            "time_start": None,
            "acknowledged": False,
            "delivery_info": {
                "exchange": delivery_info.get("exchange"),
                "routing_key": delivery_info.get("routing_key"),
                "priority": properties.get("priority"),
                "redelivered": delivery_info.get("redelivered", False),
            },
            "worker_pid": None,
        },
    }


# -- what is left to the loop ------------------------------------------------------------------------------


def _hurry(state: Any, reply: Any, arguments: Mapping[str, Any]) -> Any:
    """Celery leaves these commands to the loop of the consumer. Where there are greenlets, its poll would go
    on for a second or two."""
    channel = _channel(state)
    if channel is not None:
        channel.connection.cycle.interrupt()
    return reply


#: The commands that do more with us.
_EXTENSIONS: Mapping[str, Extension] = {
    "revoke": _revoke,
    "terminate": _revoke,
    "revoke_by_stamped_headers": _revoke_by_stamps,
    "scheduled": _scheduled,
    "query_task": _query_task,
    "add_consumer": _hurry,
    "cancel_consumer": _hurry,
}
