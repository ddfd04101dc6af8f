"""From the command line to the broker: the app, its connection, its queues."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from time import sleep
from typing import Any, NamedTuple, TypeVar

import click
from celery import _state

from kombu_redisdelay.broker import waits
from kombu_redisdelay.broker.fair_keys import ON
from kombu_redisdelay.broker.store import Store
from kombu_redisdelay.cli.echo import echo
from kombu_redisdelay.operations.access import Access, natural
from kombu_redisdelay.operations.fair import fair_states, limits_of_key, shown_key
from kombu_redisdelay.operations.key_stats import keys_without_messages
from kombu_redisdelay.operations.limits import queue_limits
from kombu_redisdelay.operations.stats import read_each
from kombu_redisdelay.operations.viewers import BROKER_ERRORS, why
from kombu_redisdelay.refusals import refusal_of
from kombu_redisdelay.transport.refused import LONGEST_PAUSE, may_wait

AccessT = TypeVar("AccessT", bound=Access)
T = TypeVar("T")


def connect(how: type[AccessT], *, changes: bool = False) -> AccessT:
    """Connect to the broker of the app that ``celery -A`` names, until the command ends. Print a warning for
    each queue that was given with ``-Q`` (:mod:`kombu_redisdelay.cli.options`) and is not known: its name may
    be misspelt.

    Arguments:
        how: the class to open the broker with.
        changes: whether the command changes something. An unknown queue is an error then, unless the option
            ``--force`` is given.

    Raises:
        click.ClickException: the app uses another transport, or the URL or an option is invalid.
        click.UsageError: a queue is not known, and the command *changes*.
    """
    context = click.get_current_context()
    _check_app(context.obj.app)
    try:
        access = how(context.obj.app)
    except (TypeError, ValueError) as exc:
        raise click.ClickException(str(exc)) from exc
    context.call_on_close(access.close)
    unknown = unknown_queues(access, context.params.get("queues", ()))
    known = queue_names(access, ()) if unknown else []
    if unknown and changes and not context.params.get("force"):
        hint = " With --force, do it all the same." if "force" in context.params else ""
        names = " or ".join(map(repr, unknown))
        meant = "".join(_meant(queue, known) for queue in unknown)
        raise click.UsageError(
            f"nobody has used a queue {names} yet, and the app does not declare it.{meant}{hint}"
        )
    for queue in unknown:
        echo(f"Nobody has used a queue {queue!r} yet.{_meant(queue, known)}", err=True)
    return access


def connect_when_served(how: type[AccessT]) -> AccessT:
    """As :func:`connect`, for a command that runs until it is told to stop: while Redis refuses for a while,
    it waits, as a worker does. It ends at SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit())
    while True:
        try:
            access = connect(how)
        except BROKER_ERRORS as exc:
            refusal = refusal_of(exc)
            if refusal is None or not may_wait(refusal, how.__name__):
                raise
            waits.begin(how.__name__, refusal.reason, f"to be connected to: {refusal.hint}")
            sleep(LONGEST_PAUSE)
        else:
            waits.end(how.__name__)
            return access


def _meant(queue: str, known: Sequence[str]) -> str:
    """The known queues that were probably meant by this name of a *queue*."""
    if all(name in known for name in queue.split(",")):
        return f" For several, write {' '.join(f'-Q {name}' for name in queue.split(','))}."
    close = get_close_matches(queue, known, 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def unknown_queues(access: Access, selected: Sequence[str]) -> list[str]:
    """Those of the *selected* queues that the app does not declare and that are not in Redis."""
    undeclared = set(selected).difference(access.declared_queues)
    if not undeclared:
        return []
    known = {*access.queues(), *access.unreadable()}
    unused = [queue for queue in sorted(undeclared.difference(known)) if not access.store.exists(queue)]
    limits, states = queue_limits(access.store, unused), fair_states(access.store, unused)
    return [
        queue
        for queue, its, state in zip(unused, limits, states, strict=True)
        if not (its.is_paused or its.is_limited or state)
    ]


def _check_app(app: Any) -> None:
    """Raise an error if there is no app. Otherwise, the error would be about the broker of Celery's own."""
    if app is _state.default_app and not app.conf.broker_url:
        raise click.ClickException("No app was given. Use `celery -A proj delayed ...`, or -b with a URL.")


def target_queues(access: Access, selected: Sequence[str], every: bool) -> list[str]:
    """The queues that a command is about to change: those that were *selected* by option, or *every* one.

    Raises:
        click.UsageError: neither is given, or both.
    """
    if selected and every:
        raise click.UsageError("Give -Q or --all, not both.")
    if not selected and not every:
        raise click.UsageError("Name the queues with -Q, or give --all.")
    return queue_names(access, selected)


def queue_names(access: Access, selected: Sequence[str]) -> list[str]:
    """Return the queues that were *selected* by option. If there are none, return all queues that Redis knows
    of or that the app declares, in natural order."""
    return list(dict.fromkeys(selected)) or sorted({*access.queues(), *access.declared_queues}, key=natural)


class Target(NamedTuple):
    """What a command is about to change: a queue, or with a *key* this key of it."""

    queue: str
    key: str | None = None

    def __str__(self) -> str:
        return self.queue if self.key is None else f"{self.queue} key {shown_key(self.key)}"

    @property
    def fields(self) -> dict[str, str]:
        """What names it in JSON."""
        return {"queue": self.queue, **({} if self.key is None else {"key": self.key})}

    def is_paused(self, store: Store, *, in_part: bool = False) -> bool:
        """
        Arguments:
            in_part: whether a partition that is paused by its own name counts.
        """
        if self.key is None:
            names = store.partitions.names(self.queue) if in_part else [self.queue]
            return any(its.is_paused for its in queue_limits(store, names))
        return limits_of_key(store, self.queue, self.key).paused_since is not None


def targets(queues: Sequence[str], keys: Sequence[str]) -> list[Target]:
    """Each of *queues*, or with *keys* each of these keys of them."""
    some: list[str | None] = [*keys] or [None]
    return [Target(queue, key) for queue in queues for key in some]


@contextmanager
def changing(store: Store, each: Sequence[Target]) -> Iterator[None]:
    """Change *each* in a ``with`` block, one after the other. If that ends in the middle, say so."""
    try:
        yield
    except BROKER_ERRORS:
        if len(store.partitions.all_names(target.queue for target in each)) > 1 or len(each) > 1:
            echo("Some of it may be done. Run it again for the rest.", err=True)
        raise


def tell_of_keys(store: Store, queues: Sequence[str], keys: Sequence[str]) -> None:
    """Say on standard error what may surprise after *keys* of *queues* were paused or limited: that a queue
    is not fair, that a key has no messages, and that a key is a name and not a pattern."""
    for queue, state in zip(queues, fair_states(store, queues), strict=True):
        if state != ON:
            echo(f"It takes effect once {queue} is fair: `celery delayed fair -Q {queue}`.", err=True)
        if missing := keys_without_messages(store, queue, keys):
            names = ", ".join(map(shown_key, missing))
            echo(
                f"{queue} has no messages now with the key{'s' if len(missing) > 1 else ''} {names}.",
                err=True,
            )
    for key in keys:
        if re.search(r"[*?[]", key):
            echo(f"{key} is the name of one key: * ? [ are not wildcards here.", err=True)


@contextmanager
def reading(
    read: Callable[[Store, Sequence[str]], list[T]], access: Access, selected: Sequence[str]
) -> Iterator[list[T]]:
    """Read the queues that were *selected* by option, or all, for a ``with`` block. Print an error for each
    that Redis refuses to read; then the exit status is 1 after the block.

    Raises:
        RedisError: none can be read.
    """
    found, refused = read_each(read, access.store, queue_names(access, selected))
    yield found
    for name, error in refused.items():
        echo(f"Cannot read queue {name!r}: {why(error)}", err=True)
    if refused:
        raise click.exceptions.Exit(1)
