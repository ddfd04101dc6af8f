"""What a person can do. Each action first asks, and says how many messages it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Protocol, TypedDict

from kombu_redisdelay.operations.content import is_task
from kombu_redisdelay.operations.moments import parse_time
from kombu_redisdelay.operations.queued import DEAD, READY, SCHEDULED
from kombu_redisdelay.web.form import Form
from kombu_redisdelay.web.site import Site
from kombu_redisdelay.web.words import number, plural, text

#: Messages that are looked at to say how many an action is about.
COUNTED_AT_MOST = 20_000

#: No name is said longer than this, in characters.
_LONGEST_NAME = 100

#: What an action is about: messages that are selected, all of a list, or a queue.
SELECTED, ALL, QUEUE = "selected", "all", "queue"


@dataclass(frozen=True)
class Action:
    """Something that can be done.

    Attributes:
        about: :data:`SELECTED`, :data:`ALL` or :data:`QUEUE`.
        button: what the button says that asks for it.
        confirm: what the button says that does it.
        question: what is asked before, for example "Cancel 3 messages?".
        do: does it, and says what was done. Raises ``ValueError`` if a field is filled in wrongly.
        states: the states of the messages that it can be done to.
        asks: which fields have to be filled in: "time", "limit" or none.
        removes: whether messages are gone afterwards.
    """

    about: str
    button: str
    confirm: str
    question: Callable[[Site, Form], str]
    do: Callable[[Site, Form], str]
    states: tuple[str, ...] = ()
    asks: str = ""
    removes: bool = False


def actions_of(state: str, about: str) -> dict[str, Action]:
    """What can be done to messages in a state."""
    return {
        name: action for name, action in ACTIONS.items() if action.about == about and state in action.states
    }


def _ask_selected(verb: str) -> Callable[[Site, Form], str]:
    return lambda site, form: f"{verb} {plural(len(form.selected), 'message')}?"


def _ask_all(verb: str) -> Callable[[Site, Form], str]:
    return lambda site, form: f"{verb} {_counted(site, form)}{_of_which(form)}?"


def _counted(site: Site, form: Form) -> str:
    """How many messages a list has."""
    choice = form.choice
    after, before = choice.span(site.timezone)
    queue, what = choice.queue or None, "dead letter" if choice.state == DEAD else "scheduled message"
    if not choice.task and choice.state == SCHEDULED:
        return plural(site.delayed.count(queue, due_after=after, due_before=before), what)
    if not (choice.task or after or before):
        return plural(site.dead_letters.count(queue), what)
    found = 0
    for looked_at, message in enumerate(
        site.queues.iter(queue, state=choice.state, after=after, before=before)
    ):
        if looked_at == COUNTED_AT_MOST:
            return f"all that match ({number(found)} of the first {plural(looked_at, what)})"
        found += is_task(message.task, choice.task or None)
    return plural(found, what)


def _of_which(form: Form) -> str:
    """Which messages a list has."""
    choice = form.choice
    verb = "died" if choice.state == DEAD else "due"
    parts = [
        f" of the queue {_queue(form)}" if choice.queue else " of all queues",
        f", of the task {text(choice.task, _LONGEST_NAME)}" if choice.task else "",
        f", {verb} at {choice.after} or later" if choice.after else "",
        f", {verb} before {choice.before}" if choice.before else "",
    ]
    return "".join(parts)


class _Many(Protocol):
    """What does something to the messages of a queue that have one of these ids."""

    def __call__(self, ids: Iterable[str], *, queue: str | None) -> Mapping[str, int]: ...


def _done(verb: str, form: Form, do: _Many) -> str:
    """Do it to the messages that were selected. Returns what was done, and how many of these had moved on."""
    in_queues: dict[str, list[str]] = {}
    for id, queue in form.selected:
        in_queues.setdefault(queue, []).append(id)
    counts = [count for queue, ids in in_queues.items() for count in do(ids, queue=queue or None).values()]
    gone = counts.count(0)
    left = f" {number(gone)} of the selected ones had moved on." if gone else ""
    return f"{verb} {plural(sum(counts), 'message')}.{left}"


class _Scheduled(TypedDict):
    queue: str | None
    task: str | None
    due_after: datetime | None
    due_before: datetime | None


class _Dead(TypedDict):
    queue: str | None
    task: str | None
    after: datetime | None
    before: datetime | None


class _Time(TypedDict):
    countdown: float | None
    eta: datetime | None


def _scheduled(site: Site, form: Form) -> _Scheduled:
    """What picks the scheduled messages of a list."""
    choice = form.choice
    after, before = choice.span(site.timezone)
    return {
        "queue": choice.queue or None,
        "task": choice.task or None,
        "due_after": after,
        "due_before": before,
    }


def _dead(site: Site, form: Form) -> _Dead:
    """What picks the dead letters of a list."""
    choice = form.choice
    after, before = choice.span(site.timezone)
    return {"queue": choice.queue or None, "task": choice.task or None, "after": after, "before": before}


def _new_time(site: Site, form: Form) -> _Time:
    try:
        time = parse_time(form.text("time"), site.timezone)
    except ValueError as exc:
        raise ValueError(f"New time: {exc}") from exc
    if isinstance(time, datetime):
        return {"countdown": None, "eta": time}
    return {"countdown": time.total_seconds(), "eta": None}


def _cancel(site: Site, form: Form) -> str:
    return _done("Cancelled", form, site.queues.cancel_many)


def _cancel_all(site: Site, form: Form) -> str:
    return f"Cancelled {plural(site.delayed.purge(**_scheduled(site, form)), 'message')}."


def _deliver(site: Site, form: Form) -> str:
    return _done("Delivered", form, site.delayed.deliver_now_many)


def _deliver_all(site: Site, form: Form) -> str:
    return f"Delivered {plural(site.delayed.deliver_now_all(**_scheduled(site, form)), 'message')}."


def _reschedule(site: Site, form: Form) -> str:
    return _done("Rescheduled", form, partial(site.delayed.reschedule_many, **_new_time(site, form)))


def _reschedule_all(site: Site, form: Form) -> str:
    count = site.delayed.reschedule_all(**_scheduled(site, form), **_new_time(site, form))
    return f"Rescheduled {plural(count, 'message')}."


def _requeue(site: Site, form: Form) -> str:
    return _done("Requeued", form, site.dead_letters.requeue_many)


def _requeue_all(site: Site, form: Form) -> str:
    return f"Requeued {plural(site.dead_letters.requeue_all(**_dead(site, form)), 'dead letter')}."


def _remove(site: Site, form: Form) -> str:
    return _done("Removed", form, site.dead_letters.remove_many)


def _remove_all(site: Site, form: Form) -> str:
    return f"Removed {plural(site.dead_letters.purge(**_dead(site, form)), 'dead letter')}."


def _queue(form: Form) -> str:
    """The queue that a form is about, for people."""
    return text(form.choice.queue, _LONGEST_NAME)


def _ready(site: Site, form: Form) -> str:
    return f"It has {plural(site.queues.count(form.choice.queue, state=READY), 'ready message')}."


def _ask_pause(site: Site, form: Form) -> str:
    ready = _ready(site, form)
    return f"Pause {_queue(form)} for all workers? {ready} What workers have taken, they run."


def _pause(site: Site, form: Form) -> str:
    site.queues.pause(form.choice.queue)
    return f"{_queue(form)} is paused."


def _ask_resume(site: Site, form: Form) -> str:
    return f"Let workers take from {_queue(form)} again? {_ready(site, form)}"


def _resume(site: Site, form: Form) -> str:
    site.queues.resume(form.choice.queue)
    return f"{_queue(form)} is not paused any more."


def _ask_limit(site: Site, form: Form) -> str:
    return (
        f"Limit what all workers together take from {_queue(form)}? The limits that it has now are replaced."
    )


def _limit(site: Site, form: Form) -> str:
    site.queues.limit(
        form.choice.queue,
        rate=form.text("rate") or None,
        burst=_whole("Burst", form.text("burst")),
        concurrency=_whole("Concurrency", form.text("concurrency")),
    )
    is_limited = site.queues.control(form.choice.queue).is_limited
    return f"{_queue(form)} is limited." if is_limited else f"{_queue(form)} has no limits any more."


def _whole(name: str, text: str) -> int | None:
    """A whole number that a person wrote; ``None`` if they wrote nothing."""
    if text and not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise ValueError(f"{name} must be a whole number from 1, not {text!r}")
    return int(text) if text else None


def _of_messages(
    name: str,
    verb: str,
    verb_all: str,
    selected: Callable[[Site, Form], str],
    every: Callable[[Site, Form], str],
    states: tuple[str, ...],
    of_all: str,
    asks: str = "",
    removes: bool = False,
) -> dict[str, Action]:
    """An action on messages that are selected, and the same on all messages of a list.

    Arguments:
        states: where it can be done to those that are selected.
        of_all: where it can be done to all.
    """
    return {
        name: Action(SELECTED, verb, verb, _ask_selected(verb), selected, states, asks, removes),
        f"{name}-all": Action(ALL, verb_all, verb_all, _ask_all(verb), every, (of_all,), asks, removes),
    }


ACTIONS: dict[str, Action] = {
    **_of_messages(
        "deliver", "Deliver now", "Deliver all now", _deliver, _deliver_all, (SCHEDULED,), SCHEDULED
    ),
    **_of_messages(
        "reschedule",
        "Reschedule",
        "Reschedule all",
        _reschedule,
        _reschedule_all,
        (SCHEDULED,),
        SCHEDULED,
        "time",
    ),
    **_of_messages(
        "cancel", "Cancel", "Cancel all", _cancel, _cancel_all, (SCHEDULED, READY), SCHEDULED, removes=True
    ),
    **_of_messages("requeue", "Requeue", "Requeue all", _requeue, _requeue_all, (DEAD,), DEAD),
    **_of_messages("remove", "Remove", "Remove all", _remove, _remove_all, (DEAD,), DEAD, removes=True),
    "pause": Action(QUEUE, "Pause", "Pause", _ask_pause, _pause),
    "resume": Action(QUEUE, "Resume", "Resume", _ask_resume, _resume),
    "limit": Action(QUEUE, "Limit", "Limit", _ask_limit, _limit, asks="limit"),
}
