"""The subject of an action, in words: how many messages, which ones, and some of them to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from kombu_redisdelay.operations.filters import FILTERS
from kombu_redisdelay.operations.message import MessageInfo
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import FAILED, STATES
from kombu_redisdelay.operations.viewers import TookTooLongError, at_most
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.form import Form, Selected
from kombu_redisdelay.web.site import Site
from kombu_redisdelay.web.words import number, plural, text

#: Messages that are looked at to say how many an action acts on.
COUNTED_AT_MOST = 20_000

#: The same to find those that are selected.
SEARCHED_AT_MOST = 5_000

#: Seconds that counting or finding them may take.
LONGEST_LOOK = 3.0

#: No name is said longer than this, in characters.
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Counted:
    """How many messages there are.

    Attributes:
        text: in words.
        count: as a number; ``None`` if not all were looked at.
    """

    text: str
    count: int | None


@dataclass(frozen=True, slots=True)
class Subject:
    """The messages that are selected.

    Attributes:
        count: how many messages there are, as far as that is known.
        found: those that were found, of some.
        missing: those that were not found: they have moved on, or are far down in the list.
        repeated: how many messages one id has, where they are several.
    """

    count: int
    found: list[MessageInfo]
    missing: list[Selected]
    repeated: dict[Selected, int]


def name_of(queue: str) -> str:
    """The name of a queue, for people."""
    return text(queue, _LONGEST_NAME)


def counted(site: Site, choice: Choice) -> Counted:
    """To how many messages of a list something is done."""
    what = choice.its_state.described
    try:
        with at_most(LONGEST_LOOK):
            selection = site.selection_of(choice)
            if choice.state == FAILED:
                # Nothing is done to those that have returned, unless they are asked for.
                selection = selection.without_returned()
            count = site.messages.count(selection, at_most=COUNTED_AT_MOST)
    except TookTooLongError:
        return Counted(f"all {what}s that match (it takes too long to count them),", None)
    if count.is_exact:
        return Counted(plural(count, what), count)
    total = site.messages.count(Selection(queue=choice.queue or None, state=choice.state))
    looked = f"only the first {number(count.looked_at)} of {number(total)} were looked at"
    return Counted(f"all {what}s that match, {number(count)} or more ({looked}),", None)


def of_which(choice: Choice) -> str:
    """Which messages a list has, without times: these are shown elsewhere, in the viewer's zone."""
    queue = f" of the queue {name_of(choice.queue)}" if choice.queue else " of all queues"
    expired = ", only those that have expired" if choice.is_expired else ""
    said = {each.name: each.said for each in FILTERS}
    filters = (f", {said[name]} {text(value, _LONGEST_NAME)}" for name, value in choice.filters)
    return queue + "".join(filters) + expired


def subject_of(site: Site, form: Form, states: tuple[str, ...]) -> Subject:
    """The messages that are selected. A message far down in a list is not looked for.

    Arguments:
        states: the states that they may be in.
    """
    in_queues: dict[str, set[str]] = {}
    for id, queue in form.selected:
        in_queues.setdefault(queue, set()).add(id)
    found: list[tuple[MessageInfo, str]] = []
    with suppress(TookTooLongError), at_most(LONGEST_LOOK):
        for queue, ids in in_queues.items():
            found += ((message, queue) for message in _find(site, queue, ids, states))
    counts = Counter(Selected(message.id, queue) for message, queue in found)
    missing = [each for each in form.selected if each not in counts]
    return Subject(
        len(found) + len(missing),
        [message for message, _ in found],
        missing,
        {each: count for each, count in counts.items() if count > 1},
    )


def _find(site: Site, queue: str, ids: set[str], states: tuple[str, ...]) -> Iterator[MessageInfo]:
    for state in states:
        selection = Selection(queue=queue or None, state=state)
        if STATES[state].finds_ids:
            yield from site.messages.select(replace(selection, ids=list(ids)))
        else:
            some = site.messages.select(selection, limit=SEARCHED_AT_MOST)
            yield from (message for message in some if message.id in ids)
