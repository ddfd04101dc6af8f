"""The one way in which we extend a method of Celery, where it has no public place for that."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def extend(owner: Any, name: str, ours: Callable[..., Any]) -> None:
    """Have *ours* called in place of a method of Celery. Calling this again changes nothing.

    Arguments:
        owner: the class or object that has the method.
        name: of the method.
        ours: gets what it replaces, and then what that would get.
    """
    original = getattr(owner, name)
    if hasattr(original, "extends_celery"):
        return

    @wraps(original)
    def extended(*args: Any, **kwargs: Any) -> Any:
        return ours(original, *args, **kwargs)

    extended.extends_celery = True  # type: ignore[attr-defined]
    setattr(owner, name, extended)
