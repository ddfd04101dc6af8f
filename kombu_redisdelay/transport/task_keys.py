"""``keys(app, function)``: gives tasks the keys by which fair queues take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kombu_redisdelay.broker.fair_keys import (
    DEFAULT_WEIGHT,
    KEY_HEADER,
    WEIGHT_HEADER,
    check_key,
    check_weight,
    is_id,
)
from kombu_redisdelay.public import public

if TYPE_CHECKING:
    from celery import Celery

#: What a task says of its key.
TaskKey = str | int | UUID | tuple[str | int | UUID, float] | None


@public
def keys(app: Celery, function: Callable[[str, Sequence[Any], Mapping[str, Any]], TaskKey]) -> None:
    """Give each task that *app* publishes a key. In a fair queue, keys take turns::

        def tenant(name, args, kwargs):
            return kwargs.get("tenant")

        keys(app, tenant)

    *function* is asked for every task: also for the parts of a group, chain or chord, and for what a task
    publishes. If it returns ``None`` there, the key is that of the task that publishes. A retry keeps its
    key, and a header ``x-key`` of the call counts more than all this. In queues that are not fair, keys
    change nothing.

    Arguments:
        function: called with the name, the args and the kwargs of each task. It returns the key, a text of at
            most 64 bytes, or a whole number or a UUID, which is made a text; or a pair of the key and its
            weight, a number from 0.001 to 1000, where a key of weight 2 has twice as many turns as one of
            weight 1; or ``None`` for a task without a key.

    Raises:
        TypeError: *app* is no Celery app, or *function* cannot be called.
        ValueError: when a task is published, if *function* returns something else. Nothing is published.
    """
    if not hasattr(app, "send_task"):
        raise TypeError(f"keys() takes a Celery app, not an object of type {type(app).__name__}")
    if not callable(function):
        raise TypeError(f"keys() takes a function, not {function!r}")
    send_task = app.send_task

    @wraps(send_task)
    def with_key(name: str, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any) -> Any:
        headers = options.get("headers") or {}
        if KEY_HEADER not in headers:
            found = _checked(function(name, args or (), kwargs or {}), name)
            options["headers"] = {**headers, **(_inherited(app) if found is None else found)}
        return send_task(name, args, kwargs, *positional, **options)

    app.send_task = with_key


def _checked(found: Any, name: str) -> dict[str, Any] | None:
    if found is None:
        return None
    key, weight = found if isinstance(found, tuple) and len(found) == 2 else (found, DEFAULT_WEIGHT)
    if is_id(key):
        key = str(int(key) if isinstance(key, int) else key)
    check_key(key, f"the key of task {name!r}", "a text, a whole number or a UUID")
    check_weight(weight, f"the weight of the key of task {name!r}")
    return {KEY_HEADER: key} if weight == DEFAULT_WEIGHT else {KEY_HEADER: key, WEIGHT_HEADER: weight}


def _inherited(app: Celery) -> dict[str, Any]:
    """The key of the task that this thread runs."""
    running = app.current_worker_task
    headers = (running.request.headers if running else None) or {}
    return {name: headers[name] for name in (KEY_HEADER, WEIGHT_HEADER) if name in headers}
