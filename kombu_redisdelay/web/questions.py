"""What an action is about, in words: how many messages, which ones, and some of them to look at."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kombu_redisdelay.operations.content import is_related, is_task
from kombu_redisdelay.operations.queued import DEAD, READY, SCHEDULED, QueuedMessage
from kombu_redisdelay.operations.selected import find_selected
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.form import Form, Selected
from kombu_redisdelay.web.site import Site
from kombu_redisdelay.web.words import number, plural, text

#: Messages that are looked at to say how many an action is about.
COUNTED_AT_MOST = 20_000

#: The same to find those that are selected.
SEARCHED_AT_MOST = 5_000

#: No name is said longer than this, in characters.
_LONGEST_NAME = 100

#: What the messages of a list are called.
NOUNS = {SCHEDULED: "scheduled message", READY: "ready message", DEAD: "dead letter"}


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
        repeated: how many messages one selection is about, where they are several.
    """

    count: int
    found: list[QueuedMessage]
    missing: list[Selected]
    repeated: dict[Selected, int]


def name_of(queue: str) -> str:
    """The name of a queue, for people."""
    return text(queue, _LONGEST_NAME)


def counted(site: Site, choice: Choice) -> Counted:
    """How many messages a list has."""
    after, before = choice.span(site.timezone)
    queue, what = choice.queue or None, NOUNS[choice.state]
    reads = bool(choice.task or choice.related)
    if not reads and choice.state == SCHEDULED:
        return _all(site.delayed.count(queue, due_after=after, due_before=before), what)
    if not (reads or after or before):
        return _all(site.queues.count(queue, state=choice.state), what)
    found = 0
    messages = site.queues.iter(queue, state=choice.state, after=after, before=before)
    for looked_at, message in enumerate(messages):
        if looked_at == COUNTED_AT_MOST:
            total = site.queues.count(queue, state=choice.state)
            looked = f"only the first {number(looked_at)} of {number(total)} were looked at"
            return Counted(f"all {what}s that match, {number(found)} or more ({looked}),", None)
        found += is_task(message.task, choice.task or None) and is_related(
            message.id, message.headers, choice.related or None
        )
    return _all(found, what)


def _all(count: int, what: str) -> Counted:
    return Counted(plural(count, what), count)


def of_which(choice: Choice) -> str:
    """Which messages a list has. Times are said elsewhere: they are to be shown in the viewer's zone."""
    parts = [
        f" of the queue {name_of(choice.queue)}" if choice.queue else " of all queues",
        f", of the task {text(choice.task, _LONGEST_NAME)}" if choice.task else "",
        f", related to {text(choice.related, _LONGEST_NAME)}" if choice.related else "",
    ]
    return "".join(parts)


def subject_of(site: Site, form: Form, states: tuple[str, ...]) -> Subject:
    """The messages that are selected. A message far down in a list is not looked for.

    Arguments:
        states: the states that they may be in.
    """
    in_queues: dict[str, set[str]] = {}
    for id, queue in form.selected:
        in_queues.setdefault(queue, set()).add(id)
    found = [
        (message, queue)
        for queue, ids in in_queues.items()
        for message in find_selected(site.queues, queue or None, ids, states, SEARCHED_AT_MOST)
    ]
    counts = Counter(Selected(message.id, queue) for message, queue in found)
    missing = [each for each in form.selected if each not in counts]
    return Subject(
        len(found) + len(missing),
        [message for message, _ in found],
        missing,
        {each: count for each, count in counts.items() if count > 1},
    )
