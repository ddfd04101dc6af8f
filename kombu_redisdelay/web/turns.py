"""Bounds what is done at a time, so that no viewer blocks the page for others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from anyio import Lock, Semaphore, fail_after
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kombu_redisdelay.operations.deadline import at_most

#: Pages that are made at a time: half of the threads that Starlette has, of which files need some, too.
MOST_PAGES = 20

#: Seconds that a search may take.
LONGEST_SEARCH = 10.0

#: Seconds that a page waits for its turn.
PATIENCE = 5.0


class Turns:
    """Each page waits for its turn for a while. A viewer searches one thing at a time."""

    def __init__(self) -> None:
        self._pages = Semaphore(MOST_PAGES)
        self._searches: WeakValueDictionary[str, Lock] = WeakValueDictionary()

    async def page(self, make: Callable[..., Response], *args: Any) -> Response:
        """Make a page, in another thread.

        Raises:
            HTTPException: too many are being made.
        """
        async with _turn(self._pages, "Too many pages are asked for. Try again in a moment."):
            return await run_in_threadpool(make, *args)

    async def search(self, who: str, make: Callable[..., Response], *args: Any) -> Response:
        """The same for a page that searches messages for a viewer.

        Raises:
            TookTooLongError: it takes longer than :data:`LONGEST_SEARCH`.
        """
        searches = self._searches.setdefault(who, Lock())
        async with _turn(searches, "Another search of yours is not done yet. Try again in a moment."):
            return await self.page(partial(_in_time, make), *args)


def _in_time(make: Callable[..., Response], *args: Any) -> Response:
    with at_most(LONGEST_SEARCH):
        return make(*args)


@asynccontextmanager
async def _turn(turns: Lock | Semaphore, too_long: str) -> AsyncIterator[None]:
    try:
        with fail_after(PATIENCE):
            await turns.acquire()
    except TimeoutError as exc:
        raise HTTPException(503, too_long) from exc
    try:
        yield
    finally:
        turns.release()
