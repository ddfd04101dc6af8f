"""A key of the archive is lost: Redis has evicted it, or somebody has deleted it. What the others have is
shown, counted and taken out, and what comes is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kombu_redisdelay.broker import keeping
from kombu_redisdelay.broker.archive import Archive, Archived, Group
from kombu_redisdelay.broker.failure import RESULT
from kombu_redisdelay.broker.keys import ARCHIVED, DEAD, FAILED, ArchiveKeys
from kombu_redisdelay.broker.options import Options
from kombu_redisdelay.broker.paging import REMOVE, REQUEUE, Part
from kombu_redisdelay.broker.portions import finish
from tests.broker.rig import Rig, payload
from tests.dead import bury
from tests.failed import keep_failed

#: Two of them have one id. Of the failed ones, the last has returned.
IDS = ["a", "b", "b", "c"]
EVERY = [(state, part) for state in ARCHIVED for part in ArchiveKeys._fields]
#: No dead letter has returned.
EVERY.remove((DEAD, "returned"))
LOST = pytest.mark.parametrize(("state", "part"), EVERY, ids=map("-".join, EVERY))


def add(rig: Rig, state: str, *ids: str, returned: str = "") -> None:
    for id in ids:
        rig.database.tick()
        if state == DEAD:
            bury(rig.store, "q", payload(id), "rejected")
        else:
            keep_failed(rig.store, "q", id, payload(id), returned=returned)


def fill(rig: Rig) -> None:
    add(rig, DEAD, *IDS)
    add(rig, FAILED, *IDS[:-1])
    add(rig, FAILED, IDS[-1], returned=RESULT)


def lose(rig: Rig, state: str, part: str) -> None:
    assert rig.client.delete(getattr(rig.store.keys("q").archive(state), part)) == 1


def maintain(rig: Rig) -> None:
    finish(keeping.trim(rig.store, Options(), ["q"]))


def fill_and_lose(rig: Rig, state: str, part: str, is_maintained: bool) -> None:
    fill(rig)
    lose(rig, state, part)
    if is_maintained:
        maintain(rig)


def read(rig: Rig, state: str) -> list[Archived]:
    """All, after looking that each way to read them tells of the same ones."""
    archive, everything = Archive(rig.store, state), Part(None, None)
    found = list(archive.iter("q", everything))
    assert archive.counts(["q"]) == [len(found)]
    names = [task.name for task in found]
    assert [row.name for page in archive.heads("q", everything) for row in page] == names
    assert list(archive.named("q", names)) == names
    assert all(task.is_whole or task.head for task in found)
    return found


def ids(found: Sequence[Archived]) -> list[str]:
    return [task.id for task in found]


@pytest.mark.parametrize("state", ARCHIVED)
def test_kinds_are_told_while_they_are_counted_anew(rig: Rig, state: str) -> None:
    fill(rig)
    # Its beginning does not tell its kind.
    keep_failed(rig.store, "q", "long", payload("long"), task="t" * 1000, returned=RESULT)
    archive = Archive(rig.store, state)
    counted = archive.groups("q")
    assert sum(group.count for group in counted) == len(IDS) + (state == FAILED)
    lose(rig, state, "groups")

    def in_order(groups: list[Group]) -> list[Group]:
        return sorted((replace(group, first_ms=0, last_ms=0) for group in groups), key=str)

    assert in_order(archive.groups("q")) == in_order(counted)


@LOST
def test_what_the_others_have_is_told(rig: Rig, state: str, part: str) -> None:
    """At once, but for what only the lost key tells; all of it when it was maintained."""
    fill(rig)
    lose(rig, state, part)
    assert ids(read(rig, state)) == ([] if part == "names" else IDS)
    maintain(rig)
    found, archive = read(rig, state), Archive(rig.store, state)
    assert ids(found) == IDS
    assert all(task.is_whole == (part != "messages") for task in found)
    assert all(bool(task.head) == (part != "heads") for task in found)
    assert ids(list(archive.find_all(["q"], ["b"]))) == ["b", "b"]
    assert sum(group.count for group in archive.groups("q")) == (0 if part == "heads" else len(IDS))
    has_returned = state == FAILED and part != "heads"
    returned = list(archive.iter("q", Part(None, None), returned=True))
    if part != "heads":
        assert ids(returned) == (["c"] if has_returned else [])
        assert archive.returned(["q"]) == [len(returned)]
    other = DEAD if state == FAILED else FAILED
    assert ids(read(rig, other)) == IDS


@LOST
def test_what_comes_is_kept_and_found(rig: Rig, state: str, part: str) -> None:
    fill(rig)
    lose(rig, state, part)
    add(rig, state, "new", "b")
    assert ids(list(Archive(rig.store, state).find_all(["q"], ["new"]))) == ["new"]
    maintain(rig)
    found = read(rig, state)
    # If nobody knew that there was one, it has taken the name of that.
    assert ids(found) == (["a", "b", "c", "new", "b"] if part == "names" else [*IDS, "new", "b"])
    assert all(task.is_whole and task.head for task in found[-2:])
    add(rig, state, "newer")
    assert ids(read(rig, state))[-1] == "newer"


@LOST
@pytest.mark.parametrize("is_maintained", [False, True], ids=["at once", "later"])
def test_it_is_taken_out(rig: Rig, state: str, part: str, is_maintained: bool) -> None:
    fill_and_lose(rig, state, part, is_maintained)
    archive, without = Archive(rig.store, state), list[str]()
    found = read(rig, state)
    done = list(archive.take_out("q", REQUEUE, found, stays=lambda task, holder: without.append(task.id)))
    assert ids(done) + without == ids(found)
    assert (not done) == (part == "messages") or not found
    left = read(rig, state)
    assert ids(left) == without
    assert ids(list(archive.take_out("q", REMOVE, left))) == without
    maintain(rig)
    list(archive.take_out("q", REMOVE, read(rig, state)))
    assert rig.client.exists(*rig.store.keys("q").archive(state)) == 0


@LOST
@pytest.mark.parametrize("is_maintained", [False, True], ids=["at once", "later"])
def test_it_is_cleared(rig: Rig, state: str, part: str, is_maintained: bool) -> None:
    """But for those that have returned: these are removed one by one."""
    fill_and_lose(rig, state, part, is_maintained)
    cleared = Archive(rig.store, state).clear("q")
    is_returned_known = state == FAILED and (part != "heads" or not is_maintained)
    if is_returned_known:
        assert cleared is None
        assert ids(read(rig, state)) == (IDS if part != "names" or is_maintained else [])
    else:
        assert cleared == (0 if part == "names" and not is_maintained else len(IDS))
        assert rig.client.exists(*rig.store.keys("q").archive(state)) == 0


@pytest.mark.parametrize("part", ArchiveKeys._fields)
def test_many_are_mended_in_portions(rig: Rig, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "TRIMMED_PER_CALL", 5)
    add(rig, FAILED, *(f"t{number}" for number in range(20)), "t3")
    add(rig, FAILED, *(f"r{number}" for number in range(20)), returned=RESULT)
    before = rig.failed("q")
    lose(rig, FAILED, part)
    maintain(rig)
    if part in ("heads", "messages"):
        assert len(read(rig, FAILED)) == len(before)
    else:
        assert rig.failed("q") == before


def test_a_head_without_a_name_that_is_none_of_ours_is_listed_once(rig: Rig) -> None:
    add(rig, DEAD, "a")
    rig.client.hset(rig.store.keys("q").dead_heads, "foreign", "9" * 400)
    maintain(rig)
    assert ids(read(rig, DEAD)) == ["a", "foreign"]
    assert all(task.since_ms <= rig.database.now_ms() + 1 for task in read(rig, DEAD))
