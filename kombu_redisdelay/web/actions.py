"""What a person can do. Each action first asks, and says how many messages it acts on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from starlette.requests import Request

from kombu_redisdelay.operations.deadline import TookTooLongError, at_most
from kombu_redisdelay.operations.moments import parse_time
from kombu_redisdelay.operations.progress import Tell
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.verbs import VERBS, Verb
from kombu_redisdelay.web import queue_actions
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.form import Form
from kombu_redisdelay.web.questions import name_of, of_which
from kombu_redisdelay.web.site import Site, may_act, site_of
from kombu_redisdelay.web.words import number, plural
from kombu_redisdelay.words import stay, with_object

#: Seconds for which it is looked which messages will stay.
LONGEST_FORESIGHT = 1.0

#: What an action acts on: messages that are selected, all of a list, or a queue.
SELECTED, ALL, QUEUE = "selected", "all", "queue"


@dataclass(frozen=True)
class Action:
    """Something that can be done.

    Attributes:
        about: :data:`SELECTED`, :data:`ALL` or :data:`QUEUE`.
        button: what the buttons say that ask for it, and do it.
        title: what the question begins with.
        do: does it, and says what was done. If it takes several round trips, it tells how many messages it is
            done with. Raises ``ValueError`` if a field is filled in wrongly.
        states: the names of the states whose lists offer it.
        asks: which fields have to be filled in: "time", "limit" or none.
        removes: whether the messages do not exist afterwards.
        needs_app: whether it needs the Celery app.
        leaves_blocked: whether messages stay as they are while others hold their unique keys.
        foresee: says how many will stay for this reason; empty if none will.
        question: what is asked before, if it acts on a queue.
    """

    about: str
    button: str
    title: str
    do: Callable[[Site, Form, Tell], str]
    states: tuple[str, ...] = ()
    asks: str = ""
    removes: bool = False
    needs_app: bool = False
    leaves_blocked: bool = False
    foresee: Callable[[Site, Form], str] = lambda site, form: ""
    question: Callable[[Site, Form], str] | None = None

    def is_offered(self, choice: Choice) -> bool:
        """Whether it can be done to what *choice* is of."""
        return bool(choice.queue) if self.about == QUEUE else choice.state in self.states

    def title_of(self, form: Form) -> str:
        """What it does, and to what. Messages of a list are not counted for this."""
        if self.about == QUEUE:
            return with_object(self.title, name_of(form.choice.queue))
        if self.about == ALL:
            return with_object(self.title, f"all {form.choice.its_state.described}s") + of_which(form.choice)
        return with_object(self.title, plural(len(form.selected), "message"))


def actions() -> dict[str, Action]:
    """All actions by their names."""
    return {
        **{name: action for verb in VERBS.values() for name, action in _of_verb(verb).items()},
        "pause": _of_queue("Pause", queue_actions.ask_pause, queue_actions.pause),
        "resume": _of_queue("Resume", queue_actions.ask_resume, queue_actions.resume),
        "limit": _of_queue("Limit", queue_actions.ask_limit, queue_actions.limit, "limit"),
    }


def actions_of(request: Request, choice: Choice, about: str) -> dict[str, Action]:
    """What the viewer can do to the messages of a list."""
    site = site_of(request)
    if not may_act(request):
        return {}
    return {
        name: action
        for name, action in actions().items()
        if action.about == about and action.is_offered(choice) and (site.queues.app or not action.needs_app)
    }


def _of_verb(verb: Verb) -> dict[str, Action]:
    """What is done to messages that are selected, and to all of a list."""
    title = verb.name.replace("_", " ").capitalize()
    asks = "time" if "eta" in verb.asks else ""
    more: dict[str, Any] = {
        "states": verb.states,
        "asks": asks,
        "removes": verb.removes,
        "needs_app": verb.needs_app,
        "leaves_blocked": any(how.foresee for how in verb.how.values()),
    }
    if more["leaves_blocked"]:
        more["foresee"] = partial(_foresee, verb)
    return {
        verb.name: Action(SELECTED, title, title, partial(_do_selected, verb), **more),
        f"{verb.name}-all": Action(ALL, with_object(title, "all"), title, partial(_do_all, verb), **more),
    }


def _foresee(verb: Verb, site: Site, form: Form) -> str:
    # Whatever the new time will be: what is blocked stays.
    asked = {"countdown": 0} if "eta" in verb.asks else {}
    selections = _selections(form) if form.selected else [site.selection_of(form.choice)]
    noun = "message" if form.selected else form.choice.its_state.noun
    blocked = 0
    holders: dict[str, str] = {}
    try:
        with at_most(LONGEST_FORESIGHT):
            for selection in selections:
                done = getattr(site.messages, verb.name)(selection, dry_run=True, **asked)
                blocked += done.blocked
                holders |= done.holders
    except TookTooLongError:
        return "Those stay whose unique keys others hold."
    return _stay(noun, blocked, holders).strip()


def _selections(form: Form) -> list[Selection]:
    """The messages that are selected."""
    in_queues: dict[str, list[str]] = {}
    for id, queue in form.selected:
        in_queues.setdefault(queue, []).append(id)
    return [Selection(ids=ids, queue=queue or None) for queue, ids in in_queues.items()]


def _do_selected(verb: Verb, site: Site, form: Form, tell: Tell) -> str:
    """Do it. Returns what was done, how many of those that were selected had moved on, and how many stay
    because of their unique keys."""
    asked = _asked(verb, site, form)
    counts: list[int] = []
    blocked = 0
    holders: dict[str, str] = {}
    for selection in _selections(form):
        done = getattr(site.messages, verb.name)(selection, **asked)
        counts += done.by_id.values()
        blocked += done.blocked
        holders |= done.holders
    moved = max(0, counts.count(0) - blocked)
    left = f" {number(moved)} of the selected ones had moved on." if moved else ""
    left += _stay("message", blocked, holders)
    return f"{verb.done.capitalize()} {plural(sum(counts), 'message')}.{left}"


def _do_all(verb: Verb, site: Site, form: Form, tell: Tell) -> str:
    selection = site.selection_of(form.choice)
    done = getattr(site.messages, verb.name)(selection, **_asked(verb, site, form), progress=tell)
    noun = form.choice.its_state.noun
    left = _stay(noun, done.blocked, done.holders)
    return f"{verb.done.capitalize()} {plural(done.count, noun)}.{left}"


def _stay(noun: str, blocked: int, holders: Mapping[str, str]) -> str:
    """A sentence about those that stay because of their unique keys; empty if none do."""
    return f" {stay(noun, blocked, holders)}." if blocked else ""


def _asked(verb: Verb, site: Site, form: Form) -> dict[str, Any]:
    """What the verb asks for, as it was filled in."""
    if "eta" not in verb.asks:
        return {}
    try:
        time = parse_time(form.text("time"), site.timezone)
    except ValueError as exc:
        raise ValueError(f"New time: {exc}") from exc
    return {"eta": time} if isinstance(time, datetime) else {"countdown": time.total_seconds()}


def _of_queue(
    button: str,
    question: Callable[[Site, Form], str],
    do: Callable[[Site, Form], str],
    asks: str = "",
) -> Action:
    return Action(
        QUEUE, button, button, lambda site, form, tell: do(site, form), asks=asks, question=question
    )
