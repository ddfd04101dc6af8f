"""Marks what users import from the package itself."""

from __future__ import annotations

from inspect import get_annotations
from typing import TypeVar

PublicT = TypeVar("PublicT")


def public(one: PublicT) -> PublicT:
    """A decorator: tracebacks, pickles and help name *one* by the package, from which users import it,
    instead of by the module that it is in."""
    if isinstance(one, type):
        # They can only be looked up in its own module. Programs that make forms or schemas do that.
        one.__annotations__ = get_annotations(one, eval_str=True)
    one.__module__ = __package__
    return one
