"""Recognises a server that refuses to write: it is no primary any more, or too few replicas follow it."""

from __future__ import annotations

import re

from redis.exceptions import MasterDownError, ReadOnlyError, ResponseError

#: What a replica refuses, and what a server says to a blocked client when it becomes one. redis-py cuts off
#: some of these words and makes a class of them. Redis 6.2 puts them into the error of a script.
_NOT_THE_PRIMARY = re.compile(r"(?:^|-)(?:READONLY|UNBLOCKED|MASTERDOWN) ")
_TOO_FEW_REPLICAS = re.compile(r"(?:^|-)NOREPLICAS ")
#: What redis-py puts before the error of a command in a pipeline, behind the command itself.
_OF_A_PIPELINE = "of pipeline caused error: "


def is_no_primary(error: ResponseError) -> bool:
    """Whether a server refused because it is a replica, or has become one."""
    is_replica = isinstance(error, (ReadOnlyError, MasterDownError))
    return is_replica or _NOT_THE_PRIMARY.search(_said(error)) is not None


def has_too_few_replicas(error: ResponseError) -> bool:
    """Whether a server refused because of ``min-replicas-to-write``."""
    return _TOO_FEW_REPLICAS.search(_said(error)) is not None


def _said(error: ResponseError) -> str:
    """What the server has said, without the command of a pipeline: that may contain any text."""
    return str(error).rpartition(_OF_A_PIPELINE)[2]
