"""An operator who makes the queues of a run fair and plain again, pauses keys, and has Redis forget its
scripts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from threading import Event, Thread
from typing import TYPE_CHECKING

from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisClusterException, RedisError

from kombu_redisdelay import Queues
from tests.chaos.site import Site
from tests.chaos.tenants import CONCURRENCY, Tenant
from tools.harness.process import wait_until

if TYPE_CHECKING:
    # In `typing` from Python 3.11 on.
    from typing_extensions import Self

#: Seconds from one action to the next, and how long a key is paused, and the queues are plain.
INTERVAL = 1.5
PAUSED_FOR = 1.0
PLAIN_FOR = 1.5
#: One action in so many is a switch.
SWITCH_EVERY = 4
#: Before the operator tries again: Redis may be starting.
RETRY_AFTER = 0.1
#: Seconds until the workers have moved all messages back.
PATIENCE = 30.0


@dataclass(frozen=True)
class Plain:
    """A time in which the queues were not fair, or not all of them: seconds since the epoch."""

    began: float
    ended: float


class Switcher:
    """Makes the queues fair and limits their keys, and does all this from the ``with`` block's beginning to
    :meth:`calm_down`. Without tenants it does nothing.

    Attributes:
        plain: when the queues were not fair, except before the beginning and after the end.
        calmed_at: from when on the rates of keys count no more, seconds since the epoch.

    Arguments:
        app: of a producer.
    """

    def __init__(self, app: Celery, site: Site, tenants: Sequence[Tenant]) -> None:
        self._app = app
        self._site = site
        self._tenants = tenants
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="chaos-switcher")
        self.plain: list[Plain] = []
        self.calmed_at = float("inf")
        self.pauses = 0

    def calm_down(self) -> None:
        """Do nothing any more. All is fair and nothing is paused when this returns, and no key has a rate,
        or the rest of what it sent would take as long as it was sent for. The other limits stay."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
            self.calmed_at = time.time()
            # A failover may have lost the last switch.
            self._until_it_works(lambda queues: queues.make_fair(self._site.queues))
            self._until_it_works(self._end_rates)

    def clear(self) -> None:
        """End all limits, and make the queues plain."""
        if not self._tenants:
            return
        with Queues(self._app) as queues:
            for queue in self._site.queues:
                queues.limit_keys(queue, concurrency=None)
                for tenant in self._tenants:
                    queues.limit_key(queue, tenant.key, rate=None, concurrency=None)
            queues.make_plain(self._site.queues)
            wait_until(
                lambda: not any(queues.stats(queue).fairness for queue in self._site.queues),
                PATIENCE,
                "the queues are not plain",
            )

    def __enter__(self) -> Self:
        if self._tenants:
            with Queues(self._app) as queues:
                for queue in self._site.queues:
                    queues.limit_keys(queue, concurrency=CONCURRENCY)
                    for each in self._tenants:
                        if each.rate or each.concurrency:
                            queues.limit_key(
                                queue,
                                each.key,
                                rate=each.rate,
                                burst=each.burst,
                                concurrency=each.concurrency,
                            )
                queues.make_fair(self._site.queues)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.calm_down()

    def _run(self) -> None:
        for number in count(1):
            if self._stopped.wait(INTERVAL):
                return
            if number % SWITCH_EVERY:
                self._pause()
            else:
                self._switch()
                self._forget_scripts()

    def _switch(self) -> None:
        began = time.time()
        self._until_it_works(lambda queues: queues.make_plain(self._site.queues))
        self._stopped.wait(PLAIN_FOR)
        self._until_it_works(lambda queues: queues.make_fair(self._site.queues))
        self.plain.append(Plain(began, time.time()))

    def _end_rates(self, queues: Queues) -> None:
        for queue in self._site.queues:
            for each in self._tenants:
                if each.rate:
                    queues.limit_key(queue, each.key, rate=None)

    def _pause(self) -> None:
        self._until_it_works(lambda queues: self._of_each_paused(queues.pause_key))
        self.pauses += 1
        self._stopped.wait(PAUSED_FOR)
        self._until_it_works(lambda queues: self._of_each_paused(queues.resume_key))

    def _of_each_paused(self, action: Callable[[str, str], None]) -> None:
        for queue in self._site.queues:
            for each in self._tenants:
                if each.is_paused:
                    action(queue, each.key)

    def _forget_scripts(self) -> None:
        with suppress(RedisError, RedisClusterException), self._site.client() as client:
            client.script_flush()

    def _until_it_works(self, action: Callable[[Queues], None]) -> None:
        while True:
            try:
                with Queues(self._app) as queues:
                    action(queues)
                return
            except (OperationalError, RedisError, OSError):
                time.sleep(RETRY_AFTER)
