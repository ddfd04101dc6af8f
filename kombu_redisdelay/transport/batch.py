"""``batch(app)``: publishes many tasks in as few round trips as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kombu_redisdelay.transport.block import Block, block_for, blocks, current
from kombu_redisdelay.transport.publishing import PublishingChannel
from kombu_redisdelay.transport.transports import Transport

if TYPE_CHECKING:
    from celery import Celery


@contextmanager
def batch(app: Celery, *, progress: Callable[[int], object] | None = None) -> Iterator[Block]:
    """Publish everything together that this thread publishes through *app* in the ``with`` block.

    Tasks, groups, chains and chords, with ``countdown`` or without, and messages of kombu: they are held
    back, and published in one round trip when the block ends, or when 500 messages are held back. What other
    threads, greenlets and asyncio tasks publish is not held back. A block inside another one joins it.

    An exception that leaves the block discards the messages that are held back. The attribute ``published``
    of the object behind ``as`` tells how many messages were published before that.

    Arguments:
        progress: called with the number of messages that were published so far, each time that some were.

    Raises:
        TypeError: the broker of *app* is not reached through this transport.
        BatchPublishError: some messages were not published, or nobody knows whether they were. It names them.
    """
    broker = app.connection_for_write()
    if not issubclass(broker.get_transport_cls(), Transport):
        raise TypeError(f"not a redisdelay:// broker: {broker.as_uri()}")
    outer = block_for(broker)
    if outer is not None:
        yield outer
        return
    from celery.exceptions import TaskPredicate

    block = Block(_connector(app), broker, progress, current.get())
    _guard(app.backend)
    token = current.set(block)
    try:
        yield block
        block.flush()
    except TaskPredicate:
        # So that Celery's `retry` and `replace` leave a task: they have published what comes next.
        block.flush()
        raise
    except BaseException:
        block.discard()
        raise
    finally:
        # It is another context where the end of a block is run by another thread.
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
            raise RuntimeError(
                f"{result!r} cannot be waited for in this batch: its task, or one before it, is published "
                "when the batch ends"
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
