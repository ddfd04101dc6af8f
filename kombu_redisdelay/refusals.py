"""What it means when a server refuses: one table. A row is an answer of a server in trouble, or of one that
does not fit; what is in no row is unknown.

Whoever meets a refusal asks :func:`refusal_of`, and does what the row says. A row says it for

- a worker: :class:`Then`. It holds for its takes, acks, rejects and leases;
- a publish: it raises at once, or kombu tries again because the connection counts as lost;
- a result in Redis: whether ``result_backend_always_retry`` tries again;
- a person at the command line or the page: a sentence.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    ExecAbortError,
    MasterDownError,
    ModuleError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)


class Then(Enum):
    """How a worker goes on when a server has refused.

    Attributes:
        ASKS_AGAIN: it keeps its connection, and asks again after a pause.
        GOES_ON: it takes, acks and rejects as ever. Only what needs memory is tried again later.
        CONNECTS_AGAIN: it connects again: the address may lead to another server by now.
        SLOT_RESTS: the fetcher of the slot rests, the others go on.
        ENDS: it ends, and a sentence says why.
        RAISES: it ends by the error. To wait would not help, and if a message is the cause, a fleet would
        stand still.
    """

    ASKS_AGAIN = "asks again"
    GOES_ON = "goes on"
    CONNECTS_AGAIN = "connects again"
    SLOT_RESTS = "the slot rests"
    ENDS = "ends"
    RAISES = "raises"


class Refusal(NamedTuple):
    """A row of the table.

    Attributes:
        reason: its name, in metrics and logs.
        said: what the server says, where redis-py has no class for it, or Redis 6.2 puts it into the error of
            a script.
        then: how a worker goes on.
        hint: a sentence for a person: what is wrong, and what to do.
        classes: the classes that redis-py makes of it.
        is_for_one: whether it refuses this client, and may serve others. Else it refuses all.
        once_served: whether a worker goes on in this way only if it was served before. A worker that was not
            has a wrong user, and ends.
        is_lost: whether a publish counts as a lost connection, so that kombu tries again. Nothing was stored.
        passes: whether it is over after a while without a person, so that a result is stored again.
    """

    reason: str
    said: str
    then: Then
    hint: str
    classes: tuple[type[RedisError], ...] = ()
    is_for_one: bool = False
    once_served: bool = False
    is_lost: bool = False
    passes: bool = False

    @property
    def is_for_a_while(self) -> bool:
        """Whether it may be over a little later."""
        return self.then not in (Then.ENDS, Then.RAISES)


def _code(*codes: str) -> str:
    """At the front. Redis 6.2 puts it into the error of a script, behind the number of a line."""
    return rf"(?:^|: -)(?:{'|'.join(codes)}) "


#: The first row that matches counts. Codes come first: up to Redis 6.2, the error of a script contains them.
REFUSALS = (
    Refusal(
        "misconf",
        _code("MISCONF"),
        Then.ASKS_AGAIN,
        "Redis could not save its data to the disk, and writes nothing until it can: see its log, and the "
        "space on its disk",
        passes=True,
    ),
    Refusal(
        "busy",
        # Whoever ends that script may hit one of ours, which runs again.
        _code("BUSY") + "|Script killed by user",
        Then.ASKS_AGAIN,
        "a script keeps Redis busy, and nothing else can be done meanwhile: SCRIPT KILL ends a script that "
        "has not written yet",
        is_lost=True,
        passes=True,
    ),
    Refusal(
        "noperm",
        # In a script: up to Redis 7.0, and from Redis 7.2 on and in Valkey.
        _code("NOPERM") + "|The user executing the script can't |ACL failure in script: ",
        Then.ASKS_AGAIN,
        "this user may not do that: doctor names the permissions that are missing",
        (NoPermissionError,),
        is_for_one=True,
        once_served=True,
    ),
    Refusal(
        "oom",
        _code("OOM"),
        Then.GOES_ON,
        "the server is out of memory (maxmemory)",
        (OutOfMemoryError,),
    ),
    Refusal(
        "loading",
        _code("LOADING"),
        Then.CONNECTS_AGAIN,
        "Redis has started, and loads its data",
        (BusyLoadingError,),
        is_lost=True,
        passes=True,
    ),
    Refusal(
        "maxclients",
        # A cluster counts the connections between nodes, too.
        r"max number of clients (?:\+ cluster connections )?reached",
        Then.CONNECTS_AGAIN,
        "Redis has as many clients as maxclients allows",
        is_for_one=True,
        is_lost=True,
    ),
    Refusal(
        "noauth",
        _code("NOAUTH", "WRONGPASS"),
        Then.CONNECTS_AGAIN,
        "Redis asks for another user or password",
        (AuthenticationError,),
        is_for_one=True,
        once_served=True,
        is_lost=True,
    ),
    Refusal(
        "readonly",
        _code("READONLY", "UNBLOCKED", "MASTERDOWN"),
        Then.CONNECTS_AGAIN,
        "this server is a replica: the address should lead to the primary",
        (ReadOnlyError, MasterDownError),
        is_lost=True,
        passes=True,
    ),
    Refusal(
        "noreplicas",
        _code("NOREPLICAS"),
        Then.CONNECTS_AGAIN,
        "too few replicas follow the server (min-replicas-to-write)",
        is_lost=True,
        passes=True,
    ),
    Refusal(
        "clusterdown",
        _code("CLUSTERDOWN", "TRYAGAIN"),
        Then.SLOT_RESTS,
        "the cluster does not serve a slot now",
        (ClusterDownError, TryAgainError),
        is_lost=True,
        passes=True,
    ),
    Refusal(
        "noscript",
        _code("NOSCRIPT"),
        Then.ASKS_AGAIN,
        "somebody has had the server forget its scripts (SCRIPT FLUSH)",
        (NoScriptError,),
        passes=True,
    ),
    Refusal(
        "unusable",
        r"^unknown (?:sub)?command|^DB index|not allowed in cluster mode",
        Then.ENDS,
        "another server or another broker URL is needed",
    ),
    Refusal(
        "undeclared",
        r"(?i:undeclared key)",
        Then.ENDS,
        "the server must let scripts use keys that they do not declare: Dragonfly has "
        "--default_lua_flags=allow-undeclared-keys for that, and kvrocks lua-strict-key-accessing no",
    ),
    # What only other code cures.
    Refusal(
        "fault",
        _code("WRONGTYPE", "CROSSSLOT", "NOPROTO", "EXECABORT", "INVALIDOBJ")
        + r"|^WRONGTYPE: |user_script|[Rr]unning script|[Cc]ompiling script"
        + r"|^unknown |^wrong number of arg|^syntax error|out of range|is not an? (?:integer|valid)"
        + r"|non local key",
        Then.RAISES,
        "",
        (ClusterCrossSlotError, ExecAbortError, ModuleError),
    ),
    Refusal(
        "quota",
        # Of hosted servers. The size of one request is the fault of a message.
        r"^(?!.*\b(?:request|value|record) size\b)"
        r"(?=.*\b(?:limit|quota|bandwidth|connections)\b).*\b(?:exceeded|reached)\b|\b[Tt]hrottled\b",
        Then.ASKS_AGAIN,
        "a quota of the hosted server is used up",
        is_for_one=True,
    ),
)

_PATTERNS = tuple((re.compile(each.said), each) for each in REFUSALS)

#: What redis-py puts before the error of a command in a pipeline, behind the command itself.
_OF_A_PIPELINE = "of pipeline caused error: "
#: What Redis puts behind the error of a command in a script, from Redis 7 on.
_OF_A_SCRIPT = re.compile(r"\.? script: \w+, on @user_script:\d+\.$")


def refusal_of(error: BaseException) -> Refusal | None:
    """The row for *error*; ``None`` if the server has not refused, or no row knows it. An error that stands
    for a refusal may have the row in its attribute ``refusal``."""
    if not isinstance(error, RedisError):
        return None
    found: Refusal | None = getattr(error, "refusal", None)
    if found is not None:
        return found
    said = _without_command(error)
    is_answer = isinstance(error, ResponseError)
    for pattern, refusal in _PATTERNS:
        if isinstance(error, refusal.classes):
            return refusal
        # The texts of other errors, such as those of lost connections, may contain anything.
        if (is_answer or refusal.reason == "maxclients") and pattern.search(said):
            return refusal
    return None


def error_text(error: BaseException) -> str:
    """What the server has said, without the command of a pipeline, and without the name of a script and its
    line, which matter only if the script is wrong."""
    return _OF_A_SCRIPT.sub("", _without_command(error))


def _without_command(error: BaseException) -> str:
    """A command may contain any text."""
    return str(error).rpartition(_OF_A_PIPELINE)[2]
