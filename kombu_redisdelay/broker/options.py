"""Our own transport options, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from kombu_redisdelay.broker.keys import Partitions, taken
from kombu_redisdelay.broker.lease_policy import LeasePolicy

#: What `max_batch` may be at most.
MAX_BATCH_LIMIT = 500

#: How many partitions a queue may have at most. A consumer keeps a connection for each.
MAX_PARTITIONS = 1024

#: How many workers may die with a message before it is isolated: it may have killed them.
ISOLATED_AFTER = 3

#: The longest time that a message is isolated, in seconds. A message that is never acked must not stop the
#: consumer.
ISOLATED_FOR = 60.0

#: What is kept of failed tasks by default: how many a queue, for how many seconds, of how many bytes.
FAILED_KEPT = {"count": 10_000, "age": 180 * 24 * 3600, "bytes": 64 * 1024 * 1024}

#: The same of finished tasks, if they are kept.
FINISHED_KEPT = {"count": 100_000, "age": 24 * 3600}

#: Bytes of a message from which on a script that moves it may take more than 5 ms.
LARGE_MESSAGE = 1024 * 1024

#: Seconds. A longer lease was set for ``redis://``, whose default is an hour: long tasks needed it.
LONG_LEASE = 600


@dataclass(frozen=True, slots=True)
class KeepFailed:
    """How much a queue keeps of tasks that have failed. With more, the oldest are dropped.

    Attributes:
        count: how many.
        age_ms: for how long, ms.
        bytes: of how many bytes together.
    """

    count: int
    age_ms: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KeepFinished:
    """How many lines about finished tasks a queue keeps. With more, the oldest are dropped.

    Attributes:
        count: how many.
        age_ms: for how long, ms.
    """

    count: int
    age_ms: int


class OptionKind(NamedTuple):
    """What the value of an option must be.

    Attributes:
        expected: that, in words.
        is_right: whether a value is that.
        what_is_wrong: says it of a value that is not.
    """

    expected: str
    is_right: Callable[[Any], bool]
    what_is_wrong: Callable[[Any], str] = "not {!r}".format

    def optional(self) -> OptionKind:
        expected, is_right, what_is_wrong = self
        return OptionKind(
            f"{expected}, or None", lambda value: value is None or is_right(value), what_is_wrong
        )

    def check(self, option: str, value: object) -> None:
        """
        Raises:
            ValueError: *value* is not right. The error names it and the *option*.
        """
        if not self.is_right(value):
            raise ValueError(
                f"transport option {option!r} must be {self.expected}, {self.what_is_wrong(value)}"
            )


def _is_int(value: object, least: int, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 10**9


def _is_some_time(value: object) -> bool:
    return _is_seconds(value) and value != 0


def whole(least: int, most: float = math.inf, of: str = "") -> OptionKind:
    """A whole number from *least* to *most*.

    Arguments:
        of: of what, in words, with a space in front.
    """
    expected = f"a whole number{of} from {least}" + (f" to {most}" if most < math.inf else "")
    return OptionKind(expected, lambda value: _is_int(value, least, most))


#: The longest of them is 10^9.
SECONDS = OptionKind("a number of seconds from 0", _is_seconds)
SOME_TIME = OptionKind("a number of seconds above 0", _is_some_time)
BOOL = OptionKind("True or False", lambda value: isinstance(value, bool))


def _are_partitions(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(queue, str) and queue and _is_int(count, 1, MAX_PARTITIONS)
        for queue, count in value.items()
    )


def _to_keep(members: Mapping[str, int], expected: str) -> OptionKind:
    """A dict with some of these *members*, 0 or None."""

    def is_member_right(name: object, value: Any) -> bool:
        if name not in members:
            return False
        return _is_some_time(value) if name == "age" else _is_int(value, 1)

    def is_right(value: object) -> bool:
        if value is None or _is_int(value, 0, 0):
            return True
        return isinstance(value, Mapping) and all(is_member_right(*each) for each in value.items())

    def what_is_wrong(value: object) -> str:
        if not isinstance(value, Mapping):
            return f"not {value!r}"
        name, wrong = next(each for each in value.items() if not is_member_right(*each))
        if name in members:
            return f"and not have {wrong!r} as {name!r}"
        return f"and {name!r} is unknown; known are {', '.join(members)}"

    return OptionKind(expected, is_right, what_is_wrong)


def _option(default: Any, kind: OptionKind, was: str = "") -> Any:
    """A row of :class:`Options`.

    Arguments:
        default: its default; a dict is an empty one.
        was: the name that it had in an earlier release: that is accepted, and the log warns.
    """
    metadata = {"kind": kind, "was": was}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Options:
    """What ``broker_transport_options`` may say beyond kombu's own options. docs/options.rst has more of
    each."""

    #: Seconds that a consumer's lease lasts after it was last renewed. A living consumer renews it, so a
    #: task may take any time. After a crash, other consumers get the messages when it ends. kombu's option
    #: for this purpose has the same name.
    visibility_timeout: float = _option(60.0, SOME_TIME)
    #: Failures that a message may have before it is dead-lettered; None for any number. With the default,
    #: and that of retry_wait, that is after two minutes of waiting.
    delivery_limit: int | None = _option(9, whole(1).optional())
    #: Seconds that a message waits after its second failure. It waits twice as long after each further one,
    #: up to a minute, or retry_wait if that is longer. After the first failure it does not wait. With 0 it
    #: never does.
    retry_wait: float = _option(1.0, SECONDS)
    #: Whether a message that is rejected without requeue becomes a dead letter. By default it is dropped, as
    #: kombu does.
    dead_letter: bool = _option(False, BOOL)
    #: How many dead letters a queue keeps. With more, the oldest are dropped.
    dead_letter_limit: int = _option(10_000, whole(1))
    #: Messages that one round trip takes at most, within the prefetch count.
    max_batch: int = _option(64, whole(1, MAX_BATCH_LIMIT))
    #: How many replicas must have a message before it counts as published.
    confirm_replicas: int = _option(0, whole(0))
    #: Queue -> over how many partitions it is spread.
    partitions: Mapping[str, int] = _option(
        {}, OptionKind(f"a dict of queues and whole numbers from 1 to {MAX_PARTITIONS}", _are_partitions)
    )
    #: Whether a Celery worker that is told to revoke a task takes it out of the schedule of its queues.
    revoke_scheduled: bool = _option(True, BOOL)
    #: Seconds for which a task that a Celery worker does not know waits for one that does. Then it becomes a
    #: dead letter. None: it is discarded at once, as Celery does.
    unknown_task_wait: float | None = _option(3600.0, SOME_TIME.optional())
    #: How much a queue keeps of tasks that have failed: count, age in seconds, and bytes, each with a
    #: default of its own. None or 0: nothing.
    keep_failed: Mapping[str, float] | int | None = _option(
        {},
        _to_keep(
            FAILED_KEPT, "a dict of count and bytes (whole numbers from 1) and age (seconds above 0), or None"
        ),
    )
    #: How many finished tasks a queue keeps a line of: count, and age in seconds, each with a default of its
    #: own. None or 0: nothing.
    keep_finished: Mapping[str, float] | int | None = _option(
        None,
        _to_keep(FINISHED_KEPT, "a dict of count (a whole number from 1) and age (seconds above 0), or None"),
    )
    #: Bytes that a message may have before the log warns of it; 0 for any number.
    message_size_warning: int = _option(LARGE_MESSAGE, whole(0, of=" of bytes"))
    #: Bytes that the message of new work may have. It is not published if it has more. None or 0 for any
    #: number.
    message_size_limit: int | None = _option(None, whole(0, of=" of bytes").optional())

    @classmethod
    def of(cls, transport_options: Mapping[str, Any]) -> Options:
        """Pick and check ours out of kombu's *transport_options*.

        Raises:
            ValueError: an option has the wrong type or is out of range. The error names the option and its
                value.
        """
        given: dict[str, Any] = {}
        for each in fields(cls):
            # Who gives both names has the new one.
            for name in (each.metadata["was"], each.name):
                if name in transport_options:
                    given[each.name] = transport_options[name]
        options = cls(**given)
        for each in fields(cls):
            each.metadata["kind"].check(each.name, getattr(options, each.name))
        _check_names(options.partitions)
        return options

    @classmethod
    def renamed(cls) -> dict[str, str]:
        """The name that an option had in an earlier release -> its name."""
        return {each.metadata["was"]: each.name for each in fields(cls) if each.metadata["was"]}

    @property
    def isolated_after(self) -> int:
        """How many workers may die with a message before it is isolated. It is not known which message has
        killed them, so these deaths are no failures of it. The later ones are. With 0 it is never isolated,
        and each death is a failure."""
        return min(ISOLATED_AFTER, (self.delivery_limit or ISOLATED_AFTER + 1) - 1)

    @property
    def kept_failed(self) -> KeepFailed | None:
        """What :attr:`keep_failed` says, in full; ``None``: nothing is kept."""
        if not isinstance(self.keep_failed, Mapping):
            return None
        count, age, size = ({**FAILED_KEPT, **self.keep_failed}[name] for name in FAILED_KEPT)
        return KeepFailed(int(count), max(1, round(age * 1000)), int(size))

    @property
    def kept_finished(self) -> KeepFinished | None:
        """What :attr:`keep_finished` says, in full; ``None``: nothing is kept."""
        if not isinstance(self.keep_finished, Mapping):
            return None
        count, age = ({**FINISHED_KEPT, **self.keep_finished}[name] for name in FINISHED_KEPT)
        return KeepFinished(int(count), max(1, round(age * 1000)))

    @property
    def lease_policy(self) -> LeasePolicy:
        return LeasePolicy(max(1, round(self.visibility_timeout * 1000)))

    @property
    def retry_wait_ms(self) -> float:
        return self.retry_wait * 1000


def _check_names(partitions: Mapping[str, int]) -> None:
    """
    Raises:
        ValueError: a queue has the name of a partition of another one.
    """
    names = Partitions(partitions)
    whose = {name: queue for queue in partitions for name in names.names(queue)[1:]}
    for queue in partitions:
        if queue in whose:
            raise ValueError(taken(queue, whose[queue]))
