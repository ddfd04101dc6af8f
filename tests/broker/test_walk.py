"""A list is read page by page while others use it: nothing twice, and nothing left out that stays there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kombu_redisdelay.broker.paging import MOST_RESTARTS, walk
from kombu_redisdelay.broker.portions import BYTES_PER_CALL
from kombu_redisdelay.operations.reading import Identified, distinct
from tests.broker.database import Database, FakeDatabase
from tests.broker.rig import Rig
from tests.search import may_search_for_long, run_machine

KEY = "{one-slot}q"
choices = st.integers(0, 1000)


def message(name: str, deliveries: int = 0) -> bytes:
    return json.dumps({"n": deliveries, "properties": {"delivery_tag": name}}).encode()


def name_of(data: bytes) -> str:
    return str(json.loads(data)["properties"]["delivery_tag"])


class Walking(RuleBasedStateMachine):
    """A list, and readers of it.

    Attributes:
        names: the messages in the list, the next one to be taken first.
        held: those that consumers have taken.
        deliveries: how many deliveries of each have failed.
    """

    database: Database

    def __init__(self) -> None:
        super().__init__()
        self.database.reset()
        self.rig = Rig(self.database)
        self.numbers = count()
        self.names: list[str] = []
        self.held: list[str] = []
        self.deliveries: dict[str, int] = {}
        self.reader: Iterator[str] | None = None
        self.stayed: list[str] = []
        self.shown: list[str] = []

    @initialize(size=st.integers(0, 30))
    def begin(self, size: int) -> None:
        self.publish(size)

    @rule(how_many=st.integers(1, 6))
    def publish(self, how_many: int) -> None:
        for name in islice((f"m{n}" for n in self.numbers), how_many):
            self.names.append(name)
            self.deliveries[name] = 0
            self.rig.client.lpush(KEY, message(name))

    @precondition(lambda self: len(self.names) < 40)
    @rule()
    def publish_many(self) -> None:
        """So many that the reader makes new bookmarks."""
        self.publish(70)

    @precondition(lambda self: self.names)
    @rule(how_many=st.integers(1, 20))
    def take(self, how_many: int) -> None:
        for name in self.names[:how_many]:
            assert name_of(self.rig.client.rpop(KEY)) == name
            self.gone(name)
            self.held.append(name)

    @precondition(lambda self: self.held)
    @rule(which=choices, how_many=st.integers(1, 20), counts=st.booleans(), to_head=st.booleans())
    def give_back(self, which: int, how_many: int, counts: bool, to_head: bool) -> None:
        """To the head as it was, or with a count; to the tail with a count, or as it was: after it was
        parked, or dead and requeued."""
        for _ in range(min(how_many, len(self.held))):
            name = self.held.pop(which % len(self.held))
            self.deliveries[name] += counts
            data = message(name, self.deliveries[name])
            if to_head:
                self.names.insert(0, name)
                self.rig.client.rpush(KEY, data)
            else:
                self.names.append(name)
                self.rig.client.lpush(KEY, data)

    @precondition(lambda self: self.names)
    @rule(which=choices, how_many=st.integers(1, 5))
    def cancel(self, which: int, how_many: int) -> None:
        first = which % len(self.names)
        for name in self.names[first : first + how_many]:
            assert self.rig.client.lrem(KEY, 1, message(name, self.deliveries[name])) == 1
            self.gone(name)

    @rule(size=st.integers(2, 7))
    def start_reading(self, size: int) -> None:
        self.finish_reading()
        self.stayed, self.shown = list(self.names), []
        found = (
            Identified(cast(Any, entry.data), name_of(entry.data), True, entry.is_sure)
            for entry in walk(self.rig.store.server, [KEY], size=size)
        )
        self.reader = map(name_of, map(cast(Any, bytes), distinct(found)))

    @precondition(lambda self: self.reader)
    @rule(how_many=st.integers(1, 12))
    def read(self, how_many: int) -> None:
        assert self.reader is not None
        self.shown += islice(self.reader, how_many)

    def finish_reading(self) -> None:
        self.shown += self.reader or ()
        self.reader = None
        assert len(set(self.shown)) == len(self.shown)
        stayed = set(self.stayed)
        assert [name for name in self.shown if name in stayed] == self.stayed

    def teardown(self) -> None:
        self.finish_reading()

    def gone(self, name: str) -> None:
        self.names.remove(name)
        if name in self.stayed:
            self.stayed.remove(name)


@may_search_for_long
@pytest.mark.in_all_orders
def test_whatever_happens(database: Database) -> None:
    usual = 20 if isinstance(database, FakeDatabase) else 30
    run_machine(Walking, usual, name=database.name, database=database)


def test_equal_entries_without_a_tag_are_each_read(rig: Rig) -> None:
    data = [b"x", b"y", b"x", b"x", b"x", b"y", b"x"]
    rig.client.rpush(KEY, *data)
    entries = list(walk(rig.store.server, [KEY], size=2))
    assert [entry.data for entry in entries] == data[::-1]
    assert all(entry.is_sure for entry in entries)
    assert [entry.taken_before for entry in entries] == list(range(7))


def test_only_what_contains_one_of_the_texts(rig: Rig) -> None:
    rig.client.rpush(KEY, *(f"a{n:03}b" for n in range(500)))
    found = walk(rig.store.server, [KEY], ["123", "456", "%d"])
    assert [(entry.taken_before, entry.data) for entry in found] == [(43, b"a456b"), (376, b"a123b")]


def test_those_in_the_lists_before_are_taken_before(rig: Rig) -> None:
    rig.client.rpush(f"{KEY}0", "1", "2")
    rig.client.rpush(KEY, "3")
    assert [entry.taken_before for entry in walk(rig.store.server, [f"{KEY}0", KEY])] == [2]


def test_large_entries_are_read_alone(rig: Rig) -> None:
    large = [bytes([65 + n]) * BYTES_PER_CALL for n in range(3)]
    rig.client.rpush(KEY, *large)
    reader = walk(rig.store.server, [KEY])
    assert next(reader).data == large[2]
    # Were the second one part of the same page, it would still come.
    assert rig.client.rpop(KEY, 2) == [large[2], large[1]]
    assert [entry.data for entry in reader] == [large[0]]


def test_it_looks_far_for_its_bookmarks(rig: Rig) -> None:
    """With 5,000 messages published between two pages."""
    rig.client.lpush(KEY, *map(message, map(str, range(40))))
    reader = walk(rig.store.server, [KEY], size=10)
    first = list(islice(reader, 10))
    rig.client.lpush(KEY, *map(message, map(str, range(100, 5100))))
    rig.client.rpop(KEY, 5)
    rest = [name_of(entry.data) for entry in islice(reader, 30)]
    assert [*(name_of(entry.data) for entry in first), *rest] == list(map(str, range(40)))


def test_one_that_was_published_meanwhile_is_removed(rig: Rig) -> None:
    """It lies between the bookmarks, which are new, and what was there at the beginning."""
    rig.client.lpush(KEY, *map(message, map(str, range(40))))
    reader = walk(rig.store.server, [KEY], size=10)
    names = [name_of(entry.data) for entry in islice(reader, 10)]
    rig.client.lpush(KEY, *map(message, map(str, range(100, 200))))
    names += [name_of(entry.data) for entry in islice(reader, 10)]
    assert rig.client.lrem(KEY, 1, message("100")) == 1
    names += map(name_of, (entry.data for entry in reader))
    assert set(names) == {*map(str, range(40)), *map(str, range(101, 200))}


def test_it_goes_on_without_its_bookmarks(rig: Rig) -> None:
    names = list(map(str, range(40)))
    rig.client.lpush(KEY, *map(message, names))
    reader = walk(rig.store.server, [KEY], size=10)
    first = list(islice(reader, 10))
    for name in names[-10:]:
        assert rig.client.lrem(KEY, 1, message(name)) == 1
    rig.client.lpush(KEY, message("new"))
    rest = list(reader)
    assert {name_of(entry.data) for entry in (*first, *rest)} == {*names[:-10], "new"}
    assert not any(entry.is_sure for entry in rest)


def test_a_list_that_never_stands_still_comes_to_an_end(rig: Rig) -> None:
    reader = walk(rig.store.server, [KEY], size=10)
    rig.client.lpush(KEY, *map(message, map(str, range(20))))
    numbers, read = count(100), 0
    for _ in reader:
        read += 1
        assert rig.client.rpop(KEY, 20)
        rig.client.lpush(KEY, *map(message, map(str, islice(numbers, 20))))
    assert read == 10 * (1 + MOST_RESTARTS)
