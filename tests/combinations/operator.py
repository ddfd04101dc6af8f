"""What an operator does in a row: pauses, limits, looks at what is wrong, and tidies up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kombu.connection import Connection
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from kombu_redisdelay import Messages, Queues, Selection
from kombu_redisdelay.operations.fair import fair_states
from tests.chaos.transports import TRANSPORTS
from tests.combinations.dimensions import Row
from tests.combinations.history import Window
from tests.combinations.plan import PAUSE, PLAIN, TENANTS, Plan
from tests.combinations.servers import Servers
from tools.harness.process import wait_until

#: What is set in a row of this name.
LIMITS: dict[str, dict[str, Any]] = {
    "rate": {"rate": 80, "burst": 5},
    "concurrency": {"concurrency": 2},
}
#: What is set for each key where keys have limits, and what for one of them.
KEY_CONCURRENCY = 2
KEY_RATE: dict[str, Any] = {"rate": 20, "burst": 5}
PAUSED, SLOW, *_ = TENANTS
GONE, DEAD, FAILED = "gone", "dead", "failed"
READY, UNACKED, SCHEDULED = "ready", "unacked", "scheduled"
SORTED = "sorted by key"
#: Where what is wrong belongs in the end.
WANTED = {
    # A row is too short for giving them up: they may wait for their next try.
    "rejects": (DEAD, SCHEDULED, READY, UNACKED),
    "kills": (DEAD, SCHEDULED, READY, UNACKED),
    "raises": (DEAD, SCHEDULED, READY, UNACKED),
    "fails": (FAILED,),
    "unreadable": (DEAD,),
    "expired": (GONE,),
    "revoked": (GONE,),
    "unknown": (SCHEDULED, DEAD),
}


def wanted(row: Row) -> tuple[str, ...]:
    """Where what is wrong in a row belongs in the end."""
    if row["beside"] == "fails" and row["keep_failed"] == "none":
        return (GONE,)
    # The oldest one is dropped; or the worker, or the primary, was gone before it had the copy. A full Redis
    # keeps none.
    may_be_gone = (
        row["keep_failed"] == "one"
        or row["trouble"] == "OOM"
        or (row["acks"] == "early" and row["middle"] in ("SIGKILL", "failover"))
    )
    if row["beside"] == "fails" and may_be_gone:
        return (FAILED, GONE)
    return WANTED.get(row["beside"], ())


#: Seconds in which a server that is being harmed comes back.
PATIENCE = 30.0


class Operator:
    """Has connections of its own.

    Arguments:
        options: of the transport.

    Attributes:
        paused: when the controlled queue, or one of its keys, was paused.
    """

    def __init__(self, servers: Servers, plan: Plan, options: Mapping[str, Any]) -> None:
        self._servers = servers
        self._plan = plan
        self._connection = Connection(servers.ours(), transport_options=dict(options))
        self._paused_at = 0.0
        self.paused: list[Window] = []

    def actions(self, row: Row, seconds: float) -> Iterator[tuple[float, Callable[[], None]]]:
        """What to do, and how many seconds after the beginning."""
        control, fair = row["control"], row["fair"]
        queue = self._plan.controlled
        if control == "pause":
            yield PAUSE[0] * seconds, lambda: self._pause(lambda queues: queues.pause(queue))
            yield PAUSE[1] * seconds, lambda: self._resume(lambda queues: queues.resume(queue))
        elif control in LIMITS:
            yield 0.0, lambda: self._limit(**LIMITS[control])
        if fair in ("command", "limited", "switched"):
            yield 0.0, lambda: self._until_it_works(self._make_fair)
        if fair == "switched":
            for began, ended in PLAIN:
                yield began * seconds, lambda: self._until_it_works(self._make_plain)
                yield ended * seconds, lambda: self._until_it_works(self._make_fair)
        if fair == "limited":
            yield 0.0, lambda: self._until_it_works(self._limit_keys)
            # Both is told of the same time, so only one of them is done.
            if control != "pause":
                pause, resume = self._key_action(Queues.pause_key), self._key_action(Queues.resume_key)
                yield PAUSE[0] * seconds, lambda: self._pause(pause)
                yield PAUSE[1] * seconds, lambda: self._resume(resume, PAUSED)

    def fates(self) -> dict[str, tuple[str, str]]:
        """Where everything that is wrong is now, and why: by its id."""
        found: dict[str, tuple[str, str]] = {}
        with Messages(self._connection) as messages:
            for send in self._plan.wrong:
                waits = list(messages.select(Selection(ids=[send.id])))
                # One that is dead may also wait once more.
                letters = [each for each in waits if each.state == DEAD]
                for each in letters[:1] or waits[:1]:
                    found[send.id] = each.state, each.reason if letters else ""
                found.setdefault(send.id, (GONE, ""))
        with self._servers.client() as client:
            for _, queue, id, text in self._plan.entries:
                places = {
                    READY: self._servers.address.ready_list(queue),
                    # Of a fair queue, for it has no key.
                    SORTED: f"redisdelay:{{{queue}}}::",
                }
                # What came back has a count in front of it, within the braces.
                end = text[1:].encode()
                states = [state for state, key in places.items() if _ends(client.lrange(key, 0, -1), end)]
                if _ends(client.hvals(f"redisdelay:{{{queue}}}:dead:messages"), end):
                    states.insert(0, DEAD)
                found[id] = next(iter(states), GONE), ""
        return found

    def end_fairness(self) -> None:
        """End it, and all limits of keys, and wait until workers have moved all messages back."""
        with Queues(self._connection) as queues:
            for queue in self._plan.queues:
                queues.limit_keys(queue, concurrency=None)
                queues.limit_key(queue, SLOW, rate=None)
            self._make_plain(queues)
            store = queues.store
            wait_until(lambda: not any(fair_states(store, self._plan.queues)), PATIENCE, "all is moved back")

    def is_settled(self, beside: str) -> bool:
        """Whether all that is wrong is where it belongs, or cannot get there any more."""
        fates = self.fates().values()
        return all(state in (*WANTED.get(beside, ()), GONE) for state, _ in fates)

    def tidy(self) -> None:
        """Take away what is kept for an operator."""
        with Messages(self._connection) as messages:
            queues = Queues(messages)
            messages.remove(Selection(state=(DEAD, FAILED)))
            messages.cancel(ids=[send.id for send in self._plan.wrong])
            for queue in self._plan.queues:
                queues.limit(queue, rate=None, concurrency=None)
                queues.resume(queue)

    def unacked(self) -> int:
        """How many messages the workers hold."""
        with self._servers.client() as client:
            keys = [*client.scan_iter(match="redisdelay:{*}:unacked:*", count=1000)]
            return sum(client.hlen(key) for key in keys)

    def left(self) -> list[str]:
        """What is in Redis and should not be: it has neither an owner that is known nor a time to live."""
        with self._servers.client() as client:
            found = []
            for key in client.scan_iter(count=1000):
                name = key.decode(errors="replace")
                if not TRANSPORTS["redisdelay"].is_expected(name) and client.ttl(key) == -1:
                    found.append(f"{name} ({client.type(key).decode()})")
        return sorted(found)

    def _pause(self, pause: Callable[[Queues], None]) -> None:
        self._until_it_works(pause)
        self._paused_at = time.time()

    def _resume(self, resume: Callable[[Queues], None], key: str | None = None) -> None:
        before = time.time()
        self._until_it_works(resume)
        self.paused.append(Window(self._plan.controlled, self._paused_at, before, time.time(), key))

    def _key_action(self, action: Callable[[Queues, str, str], None]) -> Callable[[Queues], None]:
        return lambda queues: action(queues, self._plan.controlled, PAUSED)

    def _make_fair(self, queues: Queues) -> None:
        queues.make_fair(self._plan.queues)

    def _make_plain(self, queues: Queues) -> None:
        queues.make_plain(self._plan.queues)

    def _limit_keys(self, queues: Queues) -> None:
        for queue in self._plan.queues:
            queues.limit_keys(queue, concurrency=KEY_CONCURRENCY)
            queues.limit_key(queue, SLOW, **KEY_RATE)

    def _limit(self, **limit: Any) -> None:
        def set_limits(queues: Queues) -> None:
            for queue in self._plan.queues:
                queues.limit(queue, **limit)

        self._until_it_works(set_limits)

    def _until_it_works(self, action: Callable[[Queues], None]) -> None:
        def works() -> bool:
            try:
                with Queues(self._connection) as queues:
                    action(queues)
            except (OperationalError, RedisError, OSError):
                return False
            return True

        wait_until(works, PATIENCE, "the operator cannot do it")


def _ends(entries: Iterable[bytes], end: bytes) -> bool:
    return any(entry.endswith(end) for entry in entries)
