"""``batch(app)``: publishes many tasks in as few round trips as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from kombu_redisdelay.public import public
from kombu_redisdelay.transport.outbox import Block, block_for, blocks, current
from kombu_redisdelay.transport.publishing import PublishingChannel
from kombu_redisdelay.transport.transports import Transport

if TYPE_CHECKING:
    from celery import Celery


@public
def batch(app: Celery, *, progress: Callable[[int], object] | None = None) -> AbstractContextManager[Block]:
    """Publish together all that this thread publishes through *app* in the ``with`` block.

    Tasks, groups, chains and chords, with ``countdown`` or without, and messages of kombu: they are held
    back, and published in one round trip when the block ends, or when 500 messages or 4 MiB are held back.
    What other threads, greenlets and asyncio tasks publish is not held back. A block inside another one joins
    it. With another broker, messages are published one by one, as without a block.

    An exception that leaves the block discards the messages that are held back. The attribute ``published``
    of the object behind ``as`` tells how many messages were published before that.

    Arguments:
        progress: called with the number of messages that the block has published so far, each time that it
            has published some. An exception that it raises ends the block with ``BatchPublishError``.

    Returns:
        What a ``with`` statement enters, once.

    Raises:
        TypeError: *app* is no Celery app, or *progress* cannot be called.
        BatchPublishError: some messages were not published, or may not have been, or *progress* raised an
            exception. The error names the messages.
    """
    if not hasattr(app, "connection_for_write"):
        raise TypeError(f"batch() takes a Celery app, not an object of type {type(app).__name__}")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function, not {progress!r}")
    return _Once(_block(app, progress))


class _Once(AbstractContextManager[Block]):
    """A context manager for one ``with`` statement. Other uses raise an error that says what is wrong."""

    def __init__(self, block: AbstractContextManager[Block]) -> None:
        self._block = block
        self._was_entered = False

    def __enter__(self) -> Block:
        if self._was_entered:
            raise RuntimeError("a batch is for one block: call batch(app) again for the next")
        self._was_entered = True
        return self._block.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._block.__exit__(*error)

    def __aenter__(self, *error: Any) -> NoReturn:
        raise TypeError("enter a batch with `with`, not with `async with`")

    # Python looks for both before it calls either.
    __aexit__ = __aenter__


@contextmanager
def _block(app: Celery, progress: Callable[[int], object] | None) -> Iterator[Block]:
    broker = app.connection_for_write()
    outer = block_for(broker)
    if outer is not None:
        yield outer
        return
    block = Block(_connector(app), broker, progress, current.get(), app.conf.event_exchange)
    if not issubclass(broker.get_transport_cls(), Transport):
        # The same program must run with any URL. Nothing uses this block, so it holds nothing back.
        yield block
        return
    from celery.exceptions import TaskPredicate

    _guard(app.backend)
    token = current.set(block)
    try:
        yield block
        block.flush()
    except TaskPredicate:
        # Celery's `retry` and `replace` end a task with this, and have published what comes next.
        block.flush()
        raise
    finally:
        block.close()
        # If another thread ends the block, the context is another one.
        with suppress(ValueError):
            current.reset(token)


def _connector(app: Celery) -> Callable[[], AbstractContextManager[PublishingChannel]]:
    @contextmanager
    def connect() -> Iterator[PublishingChannel]:
        with app.producer_or_acquire() as producer:
            yield producer.channel

    return connect


def _guard(backend: Any) -> None:
    """Have *backend* refuse to wait for a result whose task is held back: it would wait for ever."""
    if getattr(backend, "_redisdelay_is_guarded", False):
        return
    backend._redisdelay_is_guarded = True
    for name in ("wait_for_pending", "iter_native"):
        setattr(backend, name, _refusing(getattr(backend, name)))


def _refusing(wait: Callable[..., Any]) -> Callable[..., Any]:
    def refusing(result: Any, *args: Any, **kwargs: Any) -> Any:
        ids = set(_ids(result))
        if any(block.holds(ids) for block in blocks()):
            # Its repr would be as long as the group.
            name = f"{type(result).__name__} {getattr(result, 'id', '')}".rstrip()
            raise RuntimeError(
                f"{name} cannot be waited for in this batch: its task, or one before it, is published when "
                "the batch ends"
            )
        return wait(result, *args, **kwargs)

    return refusing


def _ids(result: Any) -> Iterator[str]:
    """The id of *result*, of its members, and of all that come before it."""
    while result is not None:
        # Not all have one: a ResultSet is just several results.
        yield getattr(result, "id", "")
        for member in getattr(result, "results", None) or ():
            yield from _ids(member)
        result = getattr(result, "parent", None)
