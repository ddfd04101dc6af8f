"""The tasks of an app, as its workers know them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from threading import RLock
from traceback import walk_tb
from typing import Any
from weakref import WeakKeyDictionary

from kombu_redisdelay.words import in_a_line

#: Loader of an app -> what :func:`import_tasks` has said.
_said: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_importing = RLock()


def import_tasks(app: Any) -> str:
    """Import the modules with the tasks of *app*, as its workers do when they start, at the first call.

    Returns:
        Which module cannot be imported, and why: then it is not known what the tasks are. Empty if all were.
    """
    with _importing:
        loader = app.loader
        if loader not in _said:
            _said[loader] = ""
            try:
                # What a module prints is no answer of ours.
                with redirect_stdout(sys.stderr):
                    loader.import_default_modules()
                    app.finalize(auto=True)
            except (Exception, SystemExit) as exc:
                _said[loader] = f"module {_importer(exc)!r} cannot be imported: {in_a_line(exc)}"
        return _said[loader]


def _importer(error: BaseException) -> str:
    """The module at whose import *error* was raised: the first of those that import each other."""
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code.co_name == "<module>":
            return str(frame.f_globals.get("__name__"))
    # There is no such module, or Python cannot read it.
    return str(getattr(error, "name", None) or getattr(error, "filename", None) or "?")


def queues_of_tasks(app: Any) -> Iterator[str]:
    """The names of the queues that tasks themselves say they go to."""
    for task in app.tasks.values():
        name = _queue_option(task)
        if name is not None:
            yield name


def queue_of(app: Any, task: str) -> str | None:
    """Where *app* publishes a task, as far as that is known without its arguments."""
    name = _queue_option(app.tasks[task])
    try:
        return str(app.amqp.router.route({} if name is None else {"queue": name}, task, (), {})["queue"].name)
    except Exception:
        # Routes may be functions of the application.
        return None


def _queue_option(task: Any) -> str | None:
    queue = getattr(task, "queue", None)
    name = getattr(queue, "name", queue)
    return name if isinstance(name, str) else None
