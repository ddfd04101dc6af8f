"""Does the harm that was planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from redis import Redis
from redis.exceptions import RedisError

from tests.chaos.damage import Damage
from tests.chaos.fleet import Fleet
from tests.chaos.schedule import OF_CONNECTIONS, Harm, Planned
from tests.chaos.site import Site
from tests.chaos.upheavals import Upheavals
from tests.chaos.worker import Worker
from tools.harness.proxy import HOST
from tools.harness.sentinel import WATCHER

#: The addresses of workers and producers. Servers have others, where they come through proxies.
CLIENTS = (HOST,)
#: After these, connections are half-open.
SILENT = (Harm.HALF_OPEN, Harm.SILENCE)
#: Seconds that connections are slow, and by how much in each direction.
SLOW_FOR = 2.0
SLOW_BY = 0.1
#: Seconds in which a worker may find out that its connections are half-open, of which nobody tells it.
HALF_OPEN_FOR = 20.0
#: How much longer than the lease something lasts that is to end it.
LONGER = 1.5
#: Seconds that a server has to answer us: it may be stopped just now.
PATIENCE = 1.0


class Inflictor:
    """Does harm to the workers, the connections and the servers of a run.

    Arguments:
        lease: seconds for which a worker may be silent.
    """

    def __init__(self, fleet: Fleet, site: Site, upheavals: Upheavals, lease: float) -> None:
        self._fleet = fleet
        self._site = site
        self._upheavals = upheavals
        self._lease = lease
        self._endings: list[tuple[float, Callable[[], None]]] = []

    def do(self, planned: Planned) -> bool:
        """Do it now. False if there is nothing just now to do it to."""
        harm = planned.harm
        if harm in (Harm.KILL, Harm.TERMINATE, Harm.STOP):
            targets = self._fleet.targets()
            if targets:
                self._harm(targets[int(planned.pick * len(targets))], harm)
            return bool(targets)
        if harm in OF_CONNECTIONS:
            return self._harm_connections(harm, planned.pick)
        if harm is Harm.RESTART:
            # Meanwhile there is nothing else to be harmed.
            self._upheavals.do(harm, planned.pick)
        elif harm in (*self._site.failovers, *self._site.changes):
            self._upheavals.begin(harm, planned.pick)
        else:
            self._kill_clients(planned.pick)
        return True

    def end_what_is_over(self, *, everything: bool = False) -> None:
        """End the harms that last for a while, once they have lasted that long."""
        now = time.monotonic()
        over = [ending for ending in self._endings if everything or ending[0] <= now]
        for ending in over:
            self._endings.remove(ending)
            ending[1]()

    def _harm(self, worker: Worker, harm: Harm) -> None:
        if harm is Harm.KILL:
            self._fleet.kill(worker)
        elif harm is Harm.TERMINATE:
            self._fleet.terminate(worker)
        else:
            self._later(LONGER * self._lease, self._fleet.freeze(worker))

    def _kill_clients(self, pick: float) -> None:
        """Every client of the servers, or one of each. The sentinels are none: without their connections,
        they may fail over a primary that works."""
        at = time.time()
        for server in self._site.servers:
            # One that fails just now has no clients.
            with server.client(socket_timeout=PATIENCE) as client, suppress(RedisError):
                ids = [each["id"] for each in client.client_list(_type="normal") if each["user"] != WATCHER]
                victims = ids if pick < 0.5 else [ids[int((pick - 0.5) * 2 * len(ids))]]
                for victim in victims:
                    _kill_client(client, victim)
        self._note(Harm.CLIENT_KILL, at, self._fleet.labels())

    def _harm_connections(self, harm: Harm, pick: float) -> bool:
        """Harm those of the clients of one server. False if each server is being failed over, or harmed."""
        free = [proxy for proxy in self._site.proxies if not proxy.use.locked()]
        proxy = free[int(pick * len(free))] if free else None
        if proxy is None or not proxy.use.acquire(blocking=False):
            return False
        at, workers = time.time(), self._proxied()
        if harm is Harm.RESET:
            proxy.reset(CLIENTS)
        elif harm is Harm.DELAY:
            proxy.delay(SLOW_BY, CLIENTS)
        else:
            proxy.go_silent(CLIENTS)

        def recover() -> None:
            proxy.pass_on()
            proxy.delay(0)
            proxy.use.release()
            # Also those that were killed meanwhile.
            everyone = {*workers, *self._proxied()}
            self._note(harm, at, everyone, HALF_OPEN_FOR if harm in SILENT else 0)

        lasting = {Harm.SILENCE: LONGER * self._lease, Harm.DELAY: SLOW_FOR}
        if harm in lasting:
            self._later(lasting[harm], recover)
        else:
            recover()
        return True

    def _proxied(self) -> tuple[str, ...]:
        return self._fleet.labels(proxied=not self._site.all_proxied)

    def _note(self, harm: Harm, at: float, workers: Iterable[str], lasting: float = 0) -> None:
        self._fleet.damage.append(Damage(harm, tuple(sorted(workers)), at, time.time() + lasting))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._endings.append((time.monotonic() + seconds, action))


def _kill_client(client: Redis, number: str) -> None:
    try:
        client.client_kill_filter(_id=number, skipme=True)
    except RedisError:
        # It went by itself meanwhile.
        return
