"""What a person can do. Each action first asks, and says how many messages it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kombu_redisdelay.operations.moments import parse_time
from kombu_redisdelay.operations.progress import Tell
from kombu_redisdelay.operations.queued import DEAD, READY, SCHEDULED
from kombu_redisdelay.web import queue_actions
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.form import Form
from kombu_redisdelay.web.questions import NOUNS, name_of, of_which
from kombu_redisdelay.web.site import Site
from kombu_redisdelay.web.words import number, plural

#: What an action is about: messages that are selected, all of a list, or a queue.
SELECTED, ALL, QUEUE = "selected", "all", "queue"


@dataclass(frozen=True)
class Action:
    """Something that can be done.

    Attributes:
        about: :data:`SELECTED`, :data:`ALL` or :data:`QUEUE`.
        button: what the buttons say that ask for it, and do it.
        verb: what the question begins with.
        do: does it, and says what was done. If it takes several steps, it tells how many messages it is done
            with. Raises ``ValueError`` if a field is filled in wrongly.
        states: the states of the lists that offer it.
        asks: which fields have to be filled in: "time", "limit" or none.
        removes: whether messages are gone afterwards.
        of_related: whether a list of related messages offers it.
        question: what is asked before, if it is about a queue.
    """

    about: str
    button: str
    verb: str
    do: Callable[[Site, Form, Tell], str]
    states: tuple[str, ...] = ()
    asks: str = ""
    removes: bool = False
    of_related: bool = True
    question: Callable[[Site, Form], str] | None = None

    def is_offered(self, choice: Choice) -> bool:
        """Whether it can be done to what *choice* is of."""
        if self.about == QUEUE:
            return bool(choice.queue)
        # Otherwise an action on all would be about more than the list shows.
        return choice.state in self.states and (self.of_related or not choice.related)

    def title(self, form: Form) -> str:
        """What it does, without a number that is counted."""
        if self.about == QUEUE:
            return f"{self.verb} {name_of(form.choice.queue)}"
        if self.about == ALL:
            return f"{self.verb} all {NOUNS[form.choice.state]}s{of_which(form.choice)}"
        return f"{self.verb} {plural(len(form.selected), 'message')}"


def actions_of(choice: Choice, about: str) -> dict[str, Action]:
    """What can be done to the messages of a list."""
    return {
        name: action
        for name, action in ACTIONS.items()
        if action.about == about and action.is_offered(choice)
    }


@dataclass(frozen=True)
class _Verb:
    """What can be done to messages that are selected, and to all of a list.

    Attributes:
        many: does it to those with some ids.
        every: does it to those that *picks* picks.
        picks: the arguments of *every* that pick the messages of a list.
        done: what is said then, before how many they were.
        more: further arguments of both.

    For the others, see :class:`Action`.
    """

    name: str
    button: str
    button_all: str
    done: str
    many: Callable[[Site], Callable[..., Mapping[str, int]]]
    every: Callable[[Site], Callable[..., int]]
    picks: Callable[[Site, Choice], Mapping[str, Any]]
    states: tuple[str, ...]
    asks: str = ""
    removes: bool = False
    of_related: bool = False
    more: Callable[[Site, Form], Mapping[str, Any]] = lambda site, form: {}

    def do_selected(self, site: Site, form: Form, tell: Tell) -> str:
        """Do it. Returns what was done, and how many of those that were selected had moved on."""
        in_queues: dict[str, list[str]] = {}
        for id, queue in form.selected:
            in_queues.setdefault(queue, []).append(id)
        more = self.more(site, form)
        counts = [
            count
            for queue, ids in in_queues.items()
            for count in self.many(site)(ids, queue=queue or None, **more).values()
        ]
        gone = counts.count(0)
        left = f" {number(gone)} of the selected ones had moved on." if gone else ""
        return f"{self.done} {plural(sum(counts), 'message')}.{left}"

    def do_all(self, site: Site, form: Form, tell: Tell) -> str:
        picked = {**self.picks(site, form.choice), **self.more(site, form)}
        count = self.every(site)(**picked, progress=tell)
        return f"{self.done} {plural(count, 'dead letter' if form.choice.state == DEAD else 'message')}."

    def actions(self) -> dict[str, Action]:
        return {
            self.name: Action(
                SELECTED,
                self.button,
                self.button,
                self.do_selected,
                self.states,
                asks=self.asks,
                removes=self.removes,
            ),
            f"{self.name}-all": Action(
                ALL,
                self.button_all,
                self.button,
                self.do_all,
                self.states,
                asks=self.asks,
                removes=self.removes,
                of_related=self.of_related,
            ),
        }


def _by_due(site: Site, choice: Choice) -> dict[str, Any]:
    after, before = choice.span(site.timezone)
    return {**_by_name(choice), "due_after": after, "due_before": before}


def _by_time(site: Site, choice: Choice) -> dict[str, Any]:
    after, before = choice.span(site.timezone)
    return {**_by_name(choice), "after": after, "before": before}


def _by_everything(site: Site, choice: Choice) -> dict[str, Any]:
    return {**_by_time(site, choice), "state": choice.state, "related": choice.related or None}


def _by_name(choice: Choice) -> dict[str, Any]:
    return {"queue": choice.queue or None, "task": choice.task or None}


def _new_time(site: Site, form: Form) -> dict[str, Any]:
    try:
        time = parse_time(form.text("time"), site.timezone)
    except ValueError as exc:
        raise ValueError(f"New time: {exc}") from exc
    return {"eta": time} if isinstance(time, datetime) else {"countdown": time.total_seconds()}


_VERBS = (
    _Verb(
        "deliver",
        "Deliver now",
        "Deliver all now",
        "Delivered",
        lambda site: site.delayed.deliver_now_many,
        lambda site: site.delayed.deliver_now_all,
        _by_due,
        (SCHEDULED,),
    ),
    _Verb(
        "reschedule",
        "Reschedule",
        "Reschedule all",
        "Rescheduled",
        lambda site: site.delayed.reschedule_many,
        lambda site: site.delayed.reschedule_all,
        _by_due,
        (SCHEDULED,),
        asks="time",
        more=_new_time,
    ),
    _Verb(
        "cancel",
        "Cancel",
        "Cancel all",
        "Cancelled",
        lambda site: site.queues.cancel_many,
        lambda site: site.queues.cancel_all,
        _by_everything,
        (SCHEDULED, READY),
        removes=True,
        of_related=True,
    ),
    _Verb(
        "requeue",
        "Requeue",
        "Requeue all",
        "Requeued",
        lambda site: site.dead_letters.requeue_many,
        lambda site: site.dead_letters.requeue_all,
        _by_time,
        (DEAD,),
    ),
    _Verb(
        "remove",
        "Remove",
        "Remove all",
        "Removed",
        lambda site: site.dead_letters.remove_many,
        lambda site: site.dead_letters.purge,
        _by_time,
        (DEAD,),
        removes=True,
    ),
)


def _of_queue(
    button: str,
    question: Callable[[Site, Form], str],
    do: Callable[[Site, Form], str],
    asks: str = "",
) -> Action:
    return Action(
        QUEUE, button, button, lambda site, form, tell: do(site, form), asks=asks, question=question
    )


ACTIONS: dict[str, Action] = {
    **{name: action for verb in _VERBS for name, action in verb.actions().items()},
    "pause": _of_queue("Pause", queue_actions.ask_pause, queue_actions.pause),
    "resume": _of_queue("Resume", queue_actions.ask_resume, queue_actions.resume),
    "limit": _of_queue("Limit", queue_actions.ask_limit, queue_actions.limit, "limit"),
}
