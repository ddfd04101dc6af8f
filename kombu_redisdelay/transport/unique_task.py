"""The base class of tasks with a key. One task is enough for each key."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from string import Formatter
from typing import Any

from celery import Celery, Task
from kombu.utils.uuid import uuid

from kombu_redisdelay.broker.unique import (
    AT_MOST_HEADER,
    UNIQUE_HEADER,
    WAITING,
    WHILE_HEADER,
    check_at_most,
    check_key,
    check_mode,
)
from kombu_redisdelay.public import public
from kombu_redisdelay.transport.fates import fate_of
from kombu_redisdelay.transport.unique_results import UniqueResult, end_as_revoked

#: Options of Celery that make another task depend on this one.
_COUNTED_ON = ("chord", "chain", "link")


@public
class Unique(Task):  # type: ignore[misc]
    """A base class for Celery tasks with a key. Of those with the same key, one is enough.

    A message in its queue holds the key, which goes where the message goes: nothing has to be unlocked, and
    nothing stays locked. :doc:`unique` says what each mode does::

        @app.task(base=Unique, unique="account:{account}", unique_while="latest", acks_late=True)
        def sync(account): ...

    Attributes:
        unique: the key. A text, in which the names of arguments in braces stand for their values; or a
            function that gets the arguments of the task and returns the key. A key has 256 bytes at most.
        unique_while: ``"waiting"`` (the default), ``"done"`` or ``"latest"``. The last two need
            ``acks_late``.
        unique_at_most: with ``"latest"`` and a countdown: seconds after the first task, when the work is due
            at the latest. By default there is no limit.

    Raises:
        ValueError: when the app first uses the task, if these are invalid; when it is published, if its key
            is.
    """

    abstract = True
    unique: str | Callable[..., str] | None = None
    unique_while = WAITING
    unique_at_most: float | None = None

    @classmethod
    def bind(cls, app: Celery) -> Any:
        bound = super().bind(app)
        name = cls.name
        if not isinstance(cls.unique, str) and not callable(cls.unique):
            raise ValueError(
                f"task {name!r} has no key: unique must be a text or a function, not {cls.unique!r}"
            )
        _check_names(name, cls.unique, cls.run)
        check_mode(cls.unique_while, f"unique_while of task {name!r}")
        check_at_most(cls.unique_at_most, cls.unique_while, f"unique_at_most of task {name!r}")
        if cls.unique_while != WAITING and not cls.acks_late:
            raise ValueError(
                f"task {name!r} needs acks_late=True for unique_while={cls.unique_while!r}: with an early "
                "ack, nobody knows when it is done"
            )
        return bound

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.run)

    def unique_key(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> str:
        """The key of a call with these arguments. It is the same however they are passed.

        Raises:
            TypeError: the task does not take these arguments.
            ValueError: this is no key.
        """
        try:
            bound = self._signature.bind(*args, **(kwargs or {}))
        except TypeError as exc:
            raise TypeError(f"task {self.name!r}: {exc}") from None
        bound.apply_defaults()
        if callable(self.unique):
            # In the class, a function is a method.
            find = inspect.getattr_static(self, "unique")
            key = getattr(find, "__func__", find)(*bound.args, **bound.kwargs)
        else:
            try:
                key = str(self.unique).format(**bound.arguments)
            except (AttributeError, LookupError, ValueError, TypeError) as exc:
                raise ValueError(
                    f"the key {self.unique!r} of task {self.name!r} cannot be made: {exc}"
                ) from exc
        check_key(key, f"the key of task {self.name!r}")
        return str(key)

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: Any = None,
        **options: Any,
    ) -> Any:
        """As for any task, but it returns the result of the task that holds the key.

        Returns:
            A result with the attributes ``dropped`` and ``replaced``.
        """
        options["headers"] = headers = dict(options.get("headers") or {})
        if link or any(options.get(name) for name in _COUNTED_ON):
            # Another task begins when this one has ended, so it must run.
            for name in (UNIQUE_HEADER, WHILE_HEADER, AT_MOST_HEADER):
                headers.pop(name, None)
        else:
            headers.setdefault(UNIQUE_HEADER, self.unique_key(args or (), kwargs))
            headers.setdefault(WHILE_HEADER, self.unique_while)
            if self.unique_at_most is not None:
                headers.setdefault(AT_MOST_HEADER, self.unique_at_most)
        id = task_id or uuid()
        with fate_of(id) as fate:
            result = super().apply_async(args, kwargs, id, producer, link, link_error, shadow, **options)
        if not isinstance(result, UniqueResult):
            # Eager: it has run.
            result.dropped = result.replaced = False
            return result
        is_known = task_id is not None or bool(options.get("group_id"))

        def learn(conflict: Any) -> None:
            result._learn(conflict)
            if conflict is not None and is_known and not self.ignore_result:
                end_as_revoked(self.backend, id, conflict)

        fate.learned = learn
        fate.tell()
        return result

    def AsyncResult(self, task_id: str, **kwargs: Any) -> UniqueResult:
        return UniqueResult(task_id, backend=self.backend, task_name=self.name, app=self.app, **kwargs)


def _check_names(name: str, unique: Any, run: Callable[..., Any]) -> None:
    """Raise a ``ValueError`` if the key of a task names an argument that the task does not have."""
    if not isinstance(unique, str):
        return
    try:
        parts = [part for _, part, _, _ in Formatter().parse(unique) if part is not None]
    except ValueError as exc:
        raise ValueError(f"unique of task {name!r} is no format: {exc}: {unique!r}") from exc
    parameters = inspect.signature(run).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for part in parts:
        argument = re.split(r"[.\[]", part)[0]
        if argument not in parameters and not (takes_any and argument.isidentifier()):
            raise ValueError(
                f"unique of task {name!r} names the argument {argument!r}, and the task has: "
                f"{', '.join(parameters) or 'none'}"
            )
