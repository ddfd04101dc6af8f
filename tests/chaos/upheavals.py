"""What happens to the servers and takes a while, beside all other harm."""

from __future__ import annotations

import time
from concurrent.futures import Executor, Future

from tests.chaos.damage import Damage
from tests.chaos.fleet import Fleet
from tests.chaos.schedule import Harm
from tests.chaos.site import Site


class Upheavals:
    """One after the other, in the thread of *executor*.

    Arguments:
        executor: it has one thread, which lives for as long as the site: the servers that the thread has
            started again end with it.
    """

    def __init__(self, fleet: Fleet, site: Site, executor: Executor) -> None:
        self._fleet = fleet
        self._site = site
        self._executor = executor
        self._begun: list[Future[None]] = []

    def begin(self, harm: Harm, pick: float) -> None:
        """Do it as soon as those that were begun before are over."""
        self._begun.append(self._executor.submit(self.do, harm, pick))

    def do(self, harm: Harm, pick: float) -> None:
        """Do it now, and wait until it is over."""
        at, workers = time.time(), self._fleet.labels()
        course = self._site.befall(harm, pick)
        everyone = tuple(sorted({*workers, *self._fleet.labels()}))
        self._fleet.damage.append(Damage(harm, everyone, at, time.time(), course=course))

    def are_over(self) -> bool:
        """Whether all are.

        Raises:
            Exception: one of them failed: the servers did not do as they should.
        """
        for each in self._begun:
            if each.done():
                each.result()
        return all(each.done() for each in self._begun)
