"""Warns of large messages, and refuses those that are too large."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.processes import in_each_child
from kombu_redisdelay.transport.new_work import is_new_work, name_of

logger = logging.getLogger(__name__)

#: What helps.
ADVICE = (
    "Compress it (task_compression, or compression='zlib' with kombu), or keep the data elsewhere and pass a "
    "reference to it"
)

#: How many tasks a process remembers to have warned of.
MOST_WARNED = 1000

#: The tasks that this process has warned of.
_warned: set[str] = set()
in_each_child(_warned.clear)


class Sizes:
    """The sizes of messages that the options allow.

    Attributes:
        noted: bytes that a message may have before :meth:`check` has anything to do.
    """

    def __init__(self, options: Options) -> None:
        self._warning = options.message_size_warning or math.inf
        self._limit = options.message_size_limit or math.inf
        self.noted = min(self._warning, self._limit)

    def check(self, message: Mapping[str, Any], size: int) -> None:
        """Look at a *message* of *size* bytes, as it will be in Redis, which are more than :attr:`noted`.

        Raises:
            ValueError: it is new work and above the limit.
        """
        name, bound = name_of(message), f"message_size_warning is {self._warning:,}"
        if size > self._limit:
            if is_new_work(message):
                raise ValueError(
                    f"{name} was not published: its message has {size:,} bytes, and message_size_limit is "
                    f"{self._limit:,}. {ADVICE}"
                )
            bound = (
                f"message_size_limit is {self._limit:,}, which does not hold for what follows of other work"
            )
        if name in _warned:
            return
        if len(_warned) >= MOST_WARNED:
            _warned.clear()
        _warned.add(name)
        logger.warning("Large message: %s has %s bytes (%s). %s.", name, f"{size:,}", bound, ADVICE)
