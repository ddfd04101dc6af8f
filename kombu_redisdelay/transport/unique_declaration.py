"""What is wrong with the declaration of a task with a key."""

from __future__ import annotations

import inspect
import re
from difflib import get_close_matches
from string import Formatter
from typing import Any

from celery import bootsteps

from kombu_redisdelay.broker.unique import WAITING, check_at_most, check_mode

#: What a task can be declared with.
_OPTIONS = ("unique", "unique_while", "unique_at_most")

#: From which likeness on another name is one of these, misspelt; 1 is the same name.
_ALIKE = 0.8


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
