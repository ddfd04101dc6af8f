"""The base class of tasks with a key: one task is enough for each. A wrong declaration is refused."""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from string import Formatter
from typing import Any, NamedTuple

from celery import Celery, Task, bootsteps
from kombu.utils.uuid import uuid

from kombu_redisdelay.broker.unique import (
    AT_MOST_HEADER,
    CONTINUED,
    UNIQUE_HEADER,
    WAITING,
    WHILE_HEADER,
    check_at_most,
    check_key,
    check_mode,
)
from kombu_redisdelay.public import public
from kombu_redisdelay.rpc_results import is_rpc
from kombu_redisdelay.transport.unique_results import Awaiting, PublishResult, UniqueResult, end

logger = logging.getLogger(__name__)

#: Options of Celery that make another task depend on this one.
_COUNTED_ON = ("chord", "chain")

#: Without any of these options, no task does.
_LINKS = frozenset((*_COUNTED_ON, "parent_id", "reply_to"))

#: How Python writes an object that does not say what it is.
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+>")

#: What a task can be declared with.
_OPTIONS = ("unique", "unique_while", "unique_at_most")

#: From which likeness on another name is one of these, misspelt; 1 is the same name.
_ALIKE = 0.8


class _Plain(NamedTuple):
    """The arguments of a task, if each can be passed by its place and by its name.

    Attributes:
        required: those without a default.
    """

    names: Mapping[str, None]
    required: frozenset[str]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, signature: inspect.Signature) -> _Plain | None:
        """Those of a task with this *signature*; ``None`` if one of them can be passed in one way only."""
        parameters = signature.parameters.values()
        if any(each.kind is not each.POSITIONAL_OR_KEYWORD for each in parameters):
            return None
        defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        names = dict.fromkeys(each.name for each in parameters)
        return cls(names, frozenset(names) - defaults.keys(), defaults)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """As :meth:`inspect.Signature.bind`, in a tenth of the time. ``None`` if they do not match the
        signature."""
        if not kwargs and len(args) == len(self.names):
            return dict(zip(self.names, args, strict=True))
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        if len(given) != len(args) + len(kwargs) or not self.required <= given.keys() <= self.names.keys():
            return None
        return {**self.defaults, **given}


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
        unique_at_most: with ``"latest"`` and a countdown: for how many seconds after the first task was
            published newer ones may postpone the work. If the first one is due later, the limit is its due
            time. By default there is no limit.

    Raises:
        ValueError: each time that the task is published, if these are invalid or its key is; and where it is
            declared, if it is bound to its app there. A worker does not start.
    """

    abstract = True
    unique: str | Callable[..., str] | None = None
    unique_while = WAITING
    unique_at_most: float | None = None

    @classmethod
    def bind(cls, app: Celery) -> Any:
        bound = super().bind(app)
        if fault := fault_of(cls, Unique):
            refuse_in_workers(app)
            # Celery binds all tasks when some task is first used. An error there would be about another task,
            # and leave the tasks after this one unbound.
            if not app._finalize_mutex._is_owned():
                raise ValueError(fault)
        return bound

    @cached_property
    def unique_fault(self) -> str | None:
        """What is wrong with the declaration of the task; ``None`` if nothing is."""
        return fault_of(type(self), Unique)

    @cached_property
    def _has_old_protocol(self) -> bool:
        # Celery looks at the setting once, too.
        amqp = self.app.amqp
        return bool(amqp.create_task_message == amqp.as_task_v1)

    @cached_property
    def _is_monitored(self) -> bool:
        return bool(self.app.conf.task_send_sent_event)

    @cached_property
    def _has_shared_results(self) -> bool:
        """Whether any caller can get the result of the task, if one can. The log says once that it is not
        so."""
        has_shared = self.ignore_result or not is_rpc(self.backend)
        if not has_shared:
            logger.warning(
                "Task %s has a unique key, and its results are in rpc://. There, a result comes only to the "
                "process that has published the message, once: who was dropped, or has replaced another one, "
                "may wait for ever. Use a result backend that all share.",
                self.name,
            )
        return has_shared

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.run)

    @cached_property
    def _plain(self) -> _Plain | None:
        # A function gets its arguments as they would be passed.
        return _Plain.of(self._signature) if isinstance(self.unique, str) else None

    def unique_key(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> str:
        """The key of a call with these arguments. It is the same however they are passed.

        Raises:
            TypeError: the task does not take these arguments.
            ValueError: this is no key.
        """
        if self.unique_fault:
            raise ValueError(self.unique_fault)
        kwargs = kwargs or {}
        if not isinstance(args, (list, tuple)) or not isinstance(kwargs, (dict, Mapping)):
            raise TypeError(
                f"task {self.name!r}: args must be a list or tuple, and kwargs a dict, not {args!r} and "
                f"{kwargs!r}"
            )
        given: Any = None if self._plain is None else self._plain.arguments(args, kwargs)
        if given is None:
            given = self._bound(args, kwargs)
        try:
            key = self._make_key(given)
        except Exception as exc:
            # What a function is called in Python says nothing.
            what = f"the unique key {self.unique!r}" if isinstance(self.unique, str) else "the unique key"
            raise ValueError(
                f"{what} of task {self.name!r} cannot be made: {type(exc).__name__}: {exc}"
            ) from exc
        check_key(key, f"the unique key of task {self.name!r}")
        if " at 0x" in key and _ADDRESS.search(key):
            raise ValueError(
                f"the unique key of task {self.name!r} has the address of an object, no other has it: {key!r}"
            )
        return str(key)

    def _make_key(self, given: Any) -> Any:
        if isinstance(self.unique, str):
            return self.unique.format_map(given if isinstance(given, dict) else given.arguments)
        # In the class, a function is a method.
        find = inspect.getattr_static(self, "unique")
        return getattr(find, "__func__", find)(*given.args, **given.kwargs)

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise TypeError(f"task {self.name!r}: {exc}") from None
        bound.apply_defaults()
        for name, parameter in self._signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                # Their order says nothing.
                bound.arguments[name] = dict(sorted(bound.arguments[name].items()))
        return bound

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
        if self.unique_fault:
            raise ValueError(self.unique_fault)
        if self._has_old_protocol:
            # Its messages have the id and the number of retries in the body.
            raise ValueError(f"task {self.name!r} has a key, which needs the setting task_protocol = 2")
        options["headers"] = headers = dict(options.get("headers") or {})
        if link or link_error or self._is_counted_on(options):
            headers[UNIQUE_HEADER] = None
        elif UNIQUE_HEADER not in headers:
            headers[UNIQUE_HEADER] = self.unique_key(args or (), kwargs)
        if headers[UNIQUE_HEADER] is None:
            # This stays in the message, so that a retry has no key either.
            for name in (WHILE_HEADER, AT_MOST_HEADER):
                headers.pop(name, None)
        else:
            if self.unique_while != WAITING:
                headers.setdefault(WHILE_HEADER, self.unique_while)
            if self.unique_at_most is not None:
                headers.setdefault(AT_MOST_HEADER, self.unique_at_most)
            # To look is to warn.
            _ = self._has_shared_results
        id = task_id or uuid()
        published = PublishResult(id)
        with Awaiting(published):
            result = super().apply_async(args, kwargs, id, producer, link, link_error, shadow, **options)
        if published.is_accepted or not isinstance(result, UniqueResult):
            # It is published; or eager, then it has run.
            return result
        is_known = task_id is not None or bool(options.get("group_id"))

        def learn(published: PublishResult) -> None:
            result._learn(published.conflict)
            is_waited_for = is_known and not self.ignore_result
            if is_waited_for or self._is_monitored:
                backend = self.backend if is_waited_for else None
                end(published, backend, self.app if self._is_monitored else None)

        published.learned = learn
        published.tell()
        return result

    def _is_counted_on(self, options: Mapping[str, Any]) -> bool:
        """Whether another task depends on the one that is published with these *options*."""
        if _LINKS.isdisjoint(options):
            return False
        if any(options.get(name) for name in _COUNTED_ON):
            return True
        if any(options.get(name) for name in CONTINUED):
            # It is never dropped.
            return False
        # A link, and a task of a chain but the first.
        if options.get("parent_id"):
            return True
        # The body of a chord: Celery has frozen it, and publishes it when the last member ends. A member of a
        # group has an index.
        return bool(options.get("reply_to") and self.app.current_worker_task) and (
            options.get("group_index") is None
        )

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """As for any task. The result has the attributes ``dropped`` and ``replaced``, which are false."""
        result = super().apply(*args, **kwargs)
        result.dropped = result.replaced = False
        return result

    def AsyncResult(self, task_id: str, **kwargs: Any) -> UniqueResult:
        return UniqueResult(task_id, backend=self.backend, task_name=self.name, app=self.app, **kwargs)


def fault_of(task: Any, base: Any) -> str | None:
    """What is wrong with the declaration of a task; ``None`` if nothing is.

    Arguments:
        task: its class.
        base: the class that it has the options from.
    """
    try:
        _check_options(task, base)
        _check(task)
    except ValueError as exc:
        return str(exc)
    return None


def refuse_in_workers(app: Any) -> None:
    """Have the workers of *app* not start, because a task of it is declared wrongly."""
    app.steps["worker"].add(_Refusal)


class _Refusal(bootsteps.Step):  # type: ignore[misc]
    """Ends a worker before it takes a task that is declared wrongly."""

    def __init__(self, parent: Any, **options: Any) -> None:
        for task in parent.app.tasks.values():
            if fault := getattr(task, "unique_fault", None):
                raise ValueError(fault)


def _check_options(task: Any, base: Any) -> None:
    """Raise a ``ValueError`` if an option is misspelt."""
    classes = task.__mro__[: task.__mro__.index(base)]
    for option, value in (item for each in classes for item in vars(each).items()):
        if option in _OPTIONS or inspect.isroutine(value):
            continue
        for near in get_close_matches(option, _OPTIONS, 1, _ALIKE):
            raise ValueError(f"task {task.name!r} has no option {option!r}: did you mean {near!r}?")


def _check(task: Any) -> None:
    name, unique = task.name, task.unique
    if not isinstance(unique, str) and not callable(unique):
        raise ValueError(f"task {name!r} has no key: unique must be a text or a function, not {unique!r}")
    if isinstance(unique, str):
        _check_names(name, unique, task)
    check_mode(task.unique_while, f"unique_while of task {name!r}")
    check_at_most(task.unique_at_most, task.unique_while, f"unique_at_most of task {name!r}")
    acks_late = task.app.conf.task_acks_late if task.acks_late is None else task.acks_late
    if task.unique_while != WAITING and not acks_late:
        raise ValueError(
            f"task {name!r} needs acks_late=True for unique_while={task.unique_while!r}: with an early "
            "ack, nobody knows when it is done"
        )


def _check_names(name: str, unique: str, task: Any) -> None:
    """Raise a ``ValueError`` if the key of a task names an argument that the task does not have."""
    try:
        parts = [part for _, part, _, _ in Formatter().parse(unique) if part is not None]
    except ValueError as exc:
        raise ValueError(f"unique of task {name!r} is no format: {exc}: {unique!r}") from exc
    parameters = dict(inspect.signature(task.run).parameters)
    if not isinstance(inspect.getattr_static(task, "run"), staticmethod):
        # The task itself is no argument of a call.
        del parameters[next(iter(parameters))]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for part in parts:
        argument = re.split(r"[.\[]", part)[0]
        if argument not in parameters and not (takes_any and argument.isidentifier()):
            raise ValueError(
                f"unique of task {name!r} names the argument {argument!r}, and the task has: "
                f"{', '.join(parameters) or 'none'}"
            )
