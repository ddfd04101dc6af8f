"""What is done at a time: pages wait for their turn, so that no viewer blocks others, and actions that take
longer than a viewer waits go on in the background."""

from __future__ import annotations

import atexit
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from functools import partial
from threading import Event, Thread
from threading import Lock as ThreadLock
from time import monotonic
from typing import Any
from weakref import WeakValueDictionary

from anyio import Lock, Semaphore, fail_after
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kombu_redisdelay.operations.pace import Pace
from kombu_redisdelay.operations.viewers import at_most, why
from kombu_redisdelay.web.words import for_log, plural

logger = logging.getLogger(__name__)

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


#: Works that are remembered after their end.
REMEMBERED = 20

#: Works that may run at a time.
MOST_RUNNING = 20

#: Seconds that the step of a work gets to end when the page is closed.
_LAST_STEP = 5


class TooMany(Exception):
    """No other work can begin: the largest number of them run."""


class _Stopped(Exception):
    pass


class Work:
    """Something that a person has asked for.

    Arguments:
        title: what it is, for example "Cancel all ready messages of the queue emails".
        who: the person.
        line: how its line in the log begins.
        audit: the same for a program, which gets it with the line.
        key: two works with the same key do the same.
        do: does it, and says what was done. It gets this work, and tells it how many messages are done.
        expected: how many messages there are, probably; ``None`` if that is unknown.
        in_portions: whether it is done in portions, and can be stopped between two.
        span: between which times the messages are.
        since: what these times are, for example "due".
        page, query: the name of the route to go back to, and its fields.

    Attributes:
        count: how many messages it is done with.
        stopping: set when a viewer has stopped it.
        stopped_by: who that was; empty as long as nobody has.
        pace: if it is done slowly, its rate, and what is known of those that were sent. Else ``None``.
        error: what it ended with; ``None`` if it has not failed.
        outcome: what was done, in words; empty as long as it runs.
    """

    def __init__(
        self,
        title: str,
        who: str,
        line: str,
        audit: Mapping[str, Any],
        key: Hashable,
        do: Callable[[Work], str],
        *,
        expected: int | None,
        in_portions: bool,
        span: tuple[datetime | None, datetime | None],
        since: str,
        page: str,
        query: dict[str, str],
    ) -> None:
        self.id = secrets.token_urlsafe(12)
        self.title = title
        self.who = who
        self.key = key
        self.expected = expected
        self.in_portions = in_portions
        self.span = span
        self.since = since
        self.page = page
        self.query = query
        self.count = 0
        self.error: Exception | None = None
        self.outcome = ""
        self.started = datetime.now(timezone.utc)
        self._line = line
        self._audit = audit
        self._do = do
        self.stopping = Event()
        self.stopped_by = ""
        self.pace: Pace | None = None
        self._ended = Event()

    @property
    def is_over(self) -> bool:
        return self._ended.is_set()

    @property
    def is_stopping(self) -> bool:
        return bool(self.stopped_by) and not self.is_over

    def start(self) -> None:
        Thread(target=self._run, name="redisdelay-web-work", daemon=True).start()

    def stop(self, by: str) -> None:
        """Have it end after the step that it is in.

        Arguments:
            by: the viewer who stops it.
        """
        self.stopped_by = by
        self.stopping.set()

    def wait(self, seconds: float) -> bool:
        """Wait until it is over. Returns ``False`` if that takes longer."""
        return self._ended.wait(seconds)

    def give_up(self) -> None:
        """Say in the log that the page does not wait for its end."""
        said = self._so_far()
        logger.warning(
            "%s: left behind in a step that takes long, after %s", self._line, said, extra=self._outcome(said)
        )

    def _run(self) -> None:
        try:
            self._do_it()
        finally:
            self._ended.set()

    def _do_it(self) -> None:
        try:
            self.outcome = self._do(self)
            said = self.outcome
        except _Stopped:
            said = f"stopped by {self.stopped_by} after {self._so_far()}"
            self.outcome = f"Stopped by {self.stopped_by} after {self._so_far()}."
        except ValueError as exc:
            self.error, self.outcome = exc, str(exc)
            said = f"refused: {exc}"
        except Exception as exc:
            self.error, reason = exc, why(exc)
            if self.count:
                self.outcome = (
                    f"It failed after {self._so_far()} or more. Start it again for the rest. {reason}"
                )
                said = f"failed after {self._so_far()} or more: {reason}"
            else:
                self.outcome = f"It failed. A part of it may be done. {reason}"
                said = f"failed, a part of it may be done: {reason}"
        logger.info("%s: %s", self._line, for_log(said), extra=self._outcome(for_log(said)))

    def _outcome(self, said: str) -> dict[str, Any]:
        return {"audit": {**self._audit, "outcome": said, "failed": self.error is not None}}

    def _so_far(self) -> str:
        return plural(self.count, "message")

    def tell(self, count: int) -> None:
        """*count* messages are done. If it was stopped, it ends here."""
        self.count = count
        if self.stopped_by:
            raise _Stopped


class Works:
    """The running and the latest works of this process. Other processes do not know them."""

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self._works: dict[str, Work] = {}

    def start(self, work: Work) -> Work:
        """Start *work*. If one runs that does the same, that one is returned instead.

        Raises:
            TooMany: too many run.
        """
        with self._lock:
            running = [each for each in self._works.values() if not each.is_over]
            for each in running:
                if each.key == work.key and not each.is_stopping:
                    return each
            if len(running) >= MOST_RUNNING:
                raise TooMany
            over = [each for each in self._works.values() if each.is_over]
            for each in over[: max(0, len(over) - REMEMBERED + 1)]:
                del self._works[each.id]
            if not running:
                # An application that mounts the page may not tell it that it ends.
                atexit.unregister(self.stop)
                atexit.register(self.stop)
            self._works[work.id] = work
            work.start()
            return work

    def slow(self) -> list[Work]:
        """Those that run at a rate."""
        with self._lock:
            return [each for each in self._works.values() if each.pace is not None and not each.is_over]

    def get(self, id: str) -> Work | None:
        return self._works.get(id)

    def forget(self, work: Work) -> None:
        with self._lock:
            self._works.pop(work.id, None)

    def stop(self) -> None:
        """Stop what runs, after the step that it is in."""
        with self._lock:
            running = [each for each in self._works.values() if not each.is_over]
        for each in running:
            each.stop("the end of the page")
        deadline = monotonic() + _LAST_STEP
        for each in running:
            if not each.wait(max(0.0, deadline - monotonic())):
                each.give_up()
