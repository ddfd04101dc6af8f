"""The key by which a message takes turns in a fair queue, when it is published."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from kombu_redisdelay.broker.fair_keys import member_of
from kombu_redisdelay.broker.printable import printable
from kombu_redisdelay.transport.new_work import is_new_work

logger = logging.getLogger(__name__)


def published_key(message: Mapping[str, Any]) -> str | None:
    """What *message* says of its key; ``None`` if it has none.

    Raises:
        ValueError: a header of new work is invalid. The error names it and the value.
    """
    headers = message["headers"]
    if not headers:
        return None
    try:
        return member_of(headers)
    except ValueError as exc:
        if is_new_work(message):
            raise
        # A retry, or what a task publishes, has the headers of that task, which another transport may have
        # published. Nobody there could handle an error.
        logger.warning("Published without a key: %s", printable(str(exc)))
        return None
