"""Moves a broker from kombu's own ``redis://`` to this transport: messages that workers of ``redis://`` have
taken, and messages that wait for their time on ready lists."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from kombu.utils.json import loads
from redis.exceptions import NoPermissionError, ResponseError

from kombu_redisdelay.broker.bindings import Binding, all_bindings, separators
from kombu_redisdelay.broker.members import with_key
from kombu_redisdelay.broker.message import check, eta_ms, message_id
from kombu_redisdelay.broker.portions import next_page
from kombu_redisdelay.broker.ready import Ready, ReadyLists
from kombu_redisdelay.broker.server.wire import answers, checked
from kombu_redisdelay.broker.stranded import (
    FIRST_PAGE,
    MOVED,
    REFUSED,
    Destination,
    Leftover,
    Leftovers,
    Stranded,
)
from kombu_redisdelay.broker.unique import UniqueKey, check_id, is_continued, unique_of
from kombu_redisdelay.operations.app_tasks import import_tasks
from kombu_redisdelay.operations.mending import stranded_lists
from kombu_redisdelay.operations.transfer import InUse, Transfer
from kombu_redisdelay.words import cut, span

#: Unusable entries that are named.
MOST_NAMED = 10

_decoder = json.JSONDecoder()

#: Seconds after which a client that has asked by BRPOP, and waits for nothing, may be none that consumes.
IDLE = 5

#: What comes before the message in an entry.
_OPENING = re.compile(r"\s*\[\s*")

#: A ready message without one of these has no due time: as Python writes JSON, and as others do.
_HAVE_ETA = ('"eta": "', '"eta":"')


class Unusable(Exception):
    """An entry that cannot be moved. The error says why, in one line."""


@dataclass
class Adopted:
    """What was moved, or what there is to move.

    Attributes:
        scheduled: messages that were taken by stock workers, and are due in the future.
        ready: messages that were taken by stock workers, and are to be delivered now.
        parked: messages of ready lists that are due in the future.
        stranded: messages of lists where no worker looks, because their publisher has another ``sep`` or
            other ``priority_steps``.
        lists: these lists, each with how many messages it had.
        copies: copies of these, because several queues are bound where a message was published.
        stay: entries that stay where they are, because they cannot be moved. A queue whose keys have wrong
            types counts as one.
        why: delivery tag, or queue -> why, for some of these.
    """

    scheduled: int = 0
    ready: int = 0
    parked: int = 0
    stranded: int = 0
    lists: dict[str, int] = field(default_factory=dict)
    copies: int = 0
    stay: int = 0
    why: dict[str, str] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        return self.scheduled + self.ready + self.parked + self.stranded

    def add(self, where: Destination) -> None:
        self.copies += len(where.queues) - 1
        if where.due_ms is None:
            self.ready += 1
        else:
            self.scheduled += 1

    def leave(self, what: str, why: str) -> None:
        self.stay += 1
        if len(self.why) < MOST_NAMED:
            self.why[what] = why

    @contextmanager
    def leaving(self, queue: str) -> Iterator[None]:
        """A block that ends if a key of *queue* has a wrong type, so that other queues are still moved."""
        try:
            yield
        except ResponseError as exc:
            if "WRONGTYPE" not in str(exc):
                raise
            self.leave(f"queue {queue!r}", str(exc))


class StockClient(NamedTuple):
    """A client whose latest command is ``BRPOP``, as of a worker of ``redis://``.

    Attributes:
        age: seconds for which it has been connected.
        idle: seconds since it sent a command.
        is_blocked: whether it waits for a reply.
    """

    address: str
    name: str
    age: int
    idle: int
    is_blocked: bool

    @property
    def may_be_none(self) -> bool:
        """Whether it may be something else that has once read answers, as Flower. Or a worker without room:
        that asks for nothing."""
        return not self.is_blocked and self.idle >= IDLE

    def __str__(self) -> str:
        name = f"name {self.name}" if self.name else "no name"
        blocked = "blocked" if self.is_blocked else "not blocked"
        return f"{self.address} ({name}, age {span(self.age)}, idle {span(self.idle)}, {blocked})"


class Adoption(Transfer):
    """A broker that moves over from ``redis://``.

    Attributes:
        passed_over: clients that may be workers of ``redis://``, and were not counted as such. While there
            are any, what those workers have taken stays where it is.
    """

    passed_over: Sequence[StockClient] = ()

    def check_not_in_use(self, ignored: Container[str] = ()) -> None:
        """
        Arguments:
            ignored: addresses of clients that are no workers.

        Raises:
            InUse: workers of ``redis://`` are connected, or the user may not use ``CLIENT LIST``.
        """
        forced = "what they hold runs twice"
        # In one packet: a worker that asks meanwhile is blocked, or holds something.
        listed, unacked = self.store.server.call_all(("CLIENT", "LIST"), ("HLEN", self.stock_keys[0]))
        if isinstance(listed, NoPermissionError):
            raise InUse(
                "cannot see whether workers of redis:// are connected",
                [str(listed)],
                "Allow +client|list",
                f"if there are some, {forced}",
            ) from listed
        checked([listed, unacked])
        clients = [each for each in self._stock_clients(listed) if each.address not in ignored]
        # Where something is unacked, an idle client may be the worker that holds it.
        found = [each for each in clients if unacked or not each.may_be_none]
        if found:
            raise InUse(
                "consumers of redis:// are connected",
                list(map(str, found)),
                "Stop the workers among them, and say by --ignore ADDRESS of each other one that it is no "
                "worker",
                forced,
            )
        self.passed_over = clients

    def _stock_clients(self, listed: bytes) -> Iterator[StockClient]:
        """The clients that consume as workers of ``redis://`` do: their latest command in this database is
        ``BRPOP``. Such a worker sends it again and again over a connection for that alone, and this transport
        never does."""
        for line in sorted(listed.decode(errors="replace").splitlines()):
            client = dict(word.partition("=")[::2] for word in line.split())
            if client.get("cmd") == "brpop" and client.get("db") == str(self.database):
                age, idle = int(client["age"]), int(client["idle"])
                yield StockClient(client["addr"], client["name"], age, idle, "b" in client["flags"])

    @property
    def leftovers(self) -> Leftovers:
        return Leftovers(self.store, *self.stock_keys)

    @cached_property
    def _exchanges(self) -> dict[str, str]:
        """The exchanges of the app, each with its type."""
        queues = self.app.amqp.queues.values() if self.app else ()
        return {queue.exchange.name: queue.exchange.type for queue in queues}

    @cached_property
    def _not_imported(self) -> str:
        """Which module cannot be imported, though it may declare an exchange."""
        return import_tasks(self.app) if self.app else ""

    def look(self) -> Adopted:
        """What there is to move. Reads it, and changes nothing."""
        found = Adopted()
        self.leftovers.check()
        for _, where in self._destined(found):
            found.add(where)
        bindings = list(all_bindings(self.store))
        for each in self._stranded(bindings):
            found.lists[each.key] = each.messages
            found.stranded += each.messages
        for name in self._used(bindings):
            with found.leaving(name):
                for _ in self._early(name):
                    found.parked += 1
        return found

    def adopt(self) -> Iterator[Adopted]:
        """Move messages that workers of ``redis://`` have taken, and those that they or their producers have
        put on ready lists ahead of their time. A message is in one place at any time, so this may be stopped
        at any point and run again. Yields, after each message, what was moved so far."""
        done = Adopted()
        self.leftovers.check()
        yield done
        for leftover, where, outcome in self.leftovers.move(self._destined(done)):
            if outcome == MOVED:
                done.add(where)
                yield done
            elif outcome == REFUSED:
                queues = " or ".join(map(repr, where.queues))
                done.leave(_tag(leftover), f"a key of queue {queues} has a wrong type")
        bindings = list(all_bindings(self.store))
        yield from self._bring_back(bindings, done)
        for name in self._used(bindings):
            self.store.remember(name)
            with done.leaving(name):
                for _ in self._park(name):
                    done.parked += 1
                    yield done

    def _used(self, bindings: Iterable[Binding]) -> list[str]:
        """The names of all queues, including those that only other programs have published to."""
        known = self.names(None)
        others = sorted(set(self._bound(bindings)) - set(known))
        # Queues of events and replies have bindings, too, but no ready list.
        commands = (("EXISTS", *self.store.ready_keys(name)) for name in others)
        hold = answers(self.store.server, commands)
        return known + [name for name, count in zip(others, hold, strict=True) if count]

    def _bound(self, bindings: Iterable[Binding]) -> list[str]:
        readable, _ = self._readable(sorted({each.queue for each in bindings}))
        return self.store.partitions.all_names(readable)

    def _stranded(self, bindings: Sequence[Binding]) -> list[Stranded]:
        """The lists of all queues where no worker looks."""
        names = list(dict.fromkeys([*self.names(None), *self._bound(bindings)]))
        found = stranded_lists(self.store).find(names, separators(self.store, bindings), names)
        return list(found)

    def _bring_back(self, bindings: Sequence[Binding], done: Adopted) -> Iterator[Adopted]:
        lists = stranded_lists(self.store)
        for each in self._stranded(bindings):
            done.lists[each.key] = each.messages
            self.store.remember(each.queue)
            with done.leaving(each.queue):
                for moved in lists.move(each):
                    if moved:
                        done.stranded += 1
                        yield done
                    else:
                        done.leave(f"list {each.key!r}", "an entry is no message")

    def _destined(self, count: Adopted) -> Iterator[tuple[Leftover, Destination]]:
        """What can be moved, and where to. What cannot is noted in *count*."""
        now_ms = self.store.now_ms()
        seen: set[bytes] = set()
        # A worker that was passed over may take something at any moment, and run it.
        for leftover in () if self.passed_over else self.leftovers.iter():
            try:
                yield leftover, self._destination(leftover, now_ms)
            except Unusable as exc:
                # One may come twice.
                if leftover.tag not in seen:
                    seen.add(leftover.tag)
                    count.leave(_tag(leftover), str(exc))

    def _destination(self, leftover: Leftover, now_ms: float) -> Destination:
        payload, message, exchange, routing_key = _read(leftover.data)
        if exchange:
            self._check_exchange(exchange)
        properties = message["properties"]
        properties["delivery_tag"] = properties.get("delivery_tag") or _tag(leftover)
        try:
            names = self.routed_to(exchange, routing_key)
            due_ms = eta_ms(message["headers"])
            id, step = message_id(message), self.step_of(message)
            unique = _unique(message, id)
        except (ValueError, OverflowError, re.error) as exc:
            # The bindings and the headers may be foreign, too.
            raise Unusable(cut(str(exc))) from exc
        if not names:
            raise Unusable(f"no queue is bound to exchange {exchange!r} with routing key {routing_key!r}")
        if unique is not None:
            payload = with_key(payload, unique.member(id))
        # Messages with the same key are in the same partition.
        key = id if unique is None else unique.key
        queues = [self.store.partitions.pick(name, key) for name in names]
        is_retry = is_continued(message["headers"] or {})
        return Destination(queues, step, payload, id, due_ms if due_ms > now_ms else None, is_retry)

    def _check_exchange(self, exchange: str) -> None:
        why = self._not_imported
        kind = self._exchanges.get(exchange)
        if kind == "fanout":
            raise Unusable(
                f"exchange {exchange!r} is a fanout: each worker has had a copy, and nobody reads this one"
            )
        if kind is None and why:
            raise Unusable(f"exchange {exchange!r} may be a fanout: {cut(why)}")

    def _park(self, name: str) -> Iterator[Ready]:
        """Move the ready messages of *name* that are due in the future into the schedule. Redis searches for
        each from one end of its list. So those near the ends go first: stock workers that are stopped put
        their messages there."""
        lists, now_ms = ReadyLists(self.store), self.store.now_ms()
        for step in self.store.steps:
            first, size = 0, FIRST_PAGE
            while page := lists.tail(name, step, first, size):
                early = [ready for ready in page if _time_of(ready)[1] > now_ms]
                yield from lists.schedule_all(name, early, _time_of, _with_key)
                first += len(page) - len(early)
                size = next_page(size, sum(len(ready.payload) for ready in page))
        yield from lists.schedule_all(name, self._early(name), _time_of, _with_key)

    def _early(self, name: str) -> Iterator[Ready]:
        """The ready messages that are due in the future."""
        now_ms = self.store.now_ms()
        for ready in ReadyLists(self.store).iter(name, _HAVE_ETA):
            if _time_of(ready)[1] > now_ms:
                yield ready


def _tag(leftover: Leftover) -> str:
    return leftover.tag.decode(errors="replace")


def _read(data: bytes) -> tuple[bytes, dict[str, Any], str, str]:
    """The message of an entry, as it is written there and decoded; the exchange, and the routing key."""
    try:
        text = data.decode()
        message, exchange, routing_key = loads(text)
        if not (isinstance(exchange, (str, type(None))) and isinstance(routing_key, str)):
            raise ValueError("it names no exchange and no routing key")
        check(message)
        _, end = _decoder.raw_decode(text, start := _OPENING.match(text).end())  # type: ignore[union-attr]
    except Exception as exc:
        # Foreign bytes may make the decoder raise any exception.
        raise Unusable(cut(f"not a message that redis:// has taken: {exc}")) from exc
    return text[start:end].encode(), message, exchange or "", routing_key


def _unique(message: Mapping[str, Any], id: str) -> UniqueKey | None:
    """The key of a message; ``None`` if it has none, or what its headers say is wrong."""
    try:
        unique = unique_of(message["headers"] or {})
        if unique is not None:
            check_id(id)
    except ValueError:
        return None
    return unique


def _with_key(ready: Ready) -> bytes:
    """How a ready message is written in the schedule. Its publisher may be one of ``redis://``."""
    id, *_ = _time_of(ready)
    unique = _unique(loads(ready.payload), id)
    return ready.payload if unique is None else with_key(ready.payload, unique.member(id))


def _time_of(ready: Ready) -> tuple[str, float, bool]:
    """The id of a ready message, when it is due, ms since the epoch, and whether it is of a task that has
    published itself again. The time is 0 if it has none, or is no message."""
    try:
        message = check(loads(ready.payload))
        message["properties"].setdefault("delivery_tag", "")
        headers = message["headers"] or {}
        return message_id(message), eta_ms(headers), is_continued(headers)
    except Exception:
        # The worker that takes it will say what is wrong.
        return "", 0, False
