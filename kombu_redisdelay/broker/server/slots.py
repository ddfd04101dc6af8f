"""Slots: into which the keys of a cluster are divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kombu_redisdelay.broker.server.server import Server

Item = TypeVar("Item")


def parts(server: Server, items: Iterable[Item], key: Callable[[Item], str], most: int) -> list[list[Item]]:
    """Divide *items* into those that one script may be about: with keys of one slot, and at most *most*.

    Arguments:
        key: returns a key of an item.
    """
    in_slots: dict[int, list[Item]] = {}
    for item in items:
        in_slots.setdefault(server.slot(key(item)), []).append(item)
    return [some[first : first + most] for some in in_slots.values() for first in range(0, len(some), most)]
