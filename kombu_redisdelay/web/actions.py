"""The actions of a viewer. Each action first asks, and says how many messages it acts on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request

from kombu_redisdelay.operations.acting import Done
from kombu_redisdelay.operations.failed_tasks import (
    LOST_AGAIN,
    loses_what_fails_again,
    requeue_slowly,
    unattended,
)
from kombu_redisdelay.operations.limits import LIMIT_FIELDS
from kombu_redisdelay.operations.pace import ASKED, Pace
from kombu_redisdelay.operations.parameters import Parameter
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import FAILED
from kombu_redisdelay.operations.verbs import REMOVE, REQUEUE, REQUEUE_SLOWLY, VERBS, Verb
from kombu_redisdelay.operations.viewers import TookTooLongError, at_most
from kombu_redisdelay.web import key_actions, queue_actions
from kombu_redisdelay.web.choice import Choice
from kombu_redisdelay.web.form import Form
from kombu_redisdelay.web.key_actions import which
from kombu_redisdelay.web.questions import name_of, of_which
from kombu_redisdelay.web.site import Site, may_act, site_of
from kombu_redisdelay.web.words import number, plural
from kombu_redisdelay.web.works import Work
from kombu_redisdelay.words import (
    chord_parts,
    have_returned,
    rest,
    run_again,
    stay,
    with_object,
    without_message,
)

#: Seconds for which it is looked which messages will stay.
LONGEST_FORESIGHT = 1.0

#: How fast failed tasks are requeued slowly, if nobody says another rate.
USUAL_RATE = "10/s"

#: What an action acts on: messages that are selected, all of a list, a queue, keys of a queue that are
#: selected, or each of them.
SELECTED, ALL, QUEUE, KEYS, EACH_KEY = "selected", "all", "queue", "keys", "each key"

#: These act on something of one queue.
OF_QUEUE = (QUEUE, KEYS, EACH_KEY)


@dataclass(frozen=True)
class Action:
    """Something that can be done.

    Attributes:
        about: such as :data:`SELECTED`.
        button: what the buttons say that ask for it, and do it.
        title: what the question begins with.
        do: does it, and says what was done. If it takes several round trips, it tells its work how many
            messages it is done with. Raises ``ValueError`` if a field is filled in wrongly.
        states: the names of the states whose lists offer it.
        fields: what the form asks for.
        hint: what it says below its fields.
        at_a_rate: whether it takes its time. The same is not done at two rates at a time.
        needs_state: whether it is done in the state of the list only.
        removes: whether the messages do not exist afterwards.
        needs_app: whether it needs the Celery app.
        leaves_blocked: whether messages stay as they are while others hold their unique keys.
        foresee: says how many will stay for this reason; empty if none will.
        question: what is asked before, if it acts on something of a queue.
        begin: what the fields say at first.
        manner: how it is done, if that must be said: what the question ends with.
    """

    about: str
    button: str
    title: str
    do: Callable[[Site, Form, Work], str]
    states: tuple[str, ...] = ()
    fields: tuple[Parameter, ...] = ()
    hint: str = ""
    at_a_rate: bool = False
    needs_state: bool = False
    removes: bool = False
    needs_app: bool = False
    leaves_blocked: bool = False
    foresee: Callable[[Site, Form], str] = lambda site, form: ""
    question: Callable[[Site, Form], str] | None = None
    begin: Callable[[Site, Form], Mapping[str, str]] = lambda site, form: {}
    manner: str = ""

    def is_offered(self, choice: Choice) -> bool:
        """Whether it can be done to what *choice* is of."""
        return bool(choice.queue) if self.about in OF_QUEUE else choice.state in self.states

    def title_of(self, form: Form) -> str:
        """What it does, and to what: all messages of a list, which are not counted for this."""
        if self.about == QUEUE:
            return with_object(self.title, name_of(form.choice.queue))
        if self.about == KEYS:
            return with_object(self.title, f"{which(form)} of {name_of(form.choice.queue)}")
        if self.about == EACH_KEY:
            return f"{self.title}: {name_of(form.choice.queue)}"
        if self.about == ALL:
            return with_object(self.title, f"all {form.choice.its_state.described}s") + self.which(form)
        return with_object(self.title, plural(len(form.selected), "message"))

    def which(self, form: Form) -> str:
        """Which messages of a list it acts on, and how."""
        return of_which(form.choice) + self.manner


def actions() -> dict[str, Action]:
    """All actions by their names."""
    return {
        "requeue-slowly": _requeue_slowly(),
        **{name: action for verb in VERBS.values() for name, action in _of_verb(verb).items()},
        "pause": _of_queue(QUEUE, "Pause", queue_actions.ask_pause, queue_actions.pause),
        "resume": _of_queue(QUEUE, "Resume", queue_actions.ask_resume, queue_actions.resume),
        "limit": _of_queue(
            *(QUEUE, "Limit", queue_actions.ask_limit, queue_actions.limit, queue_actions.limits_now),
        ),
        "fair": _of_queue(EACH_KEY, "Make fair", key_actions.ask_fair, key_actions.make_fair),
        "plain": _of_queue(EACH_KEY, "Make plain", key_actions.ask_plain, key_actions.make_plain),
        "limit-each-key": _of_queue(
            *(EACH_KEY, "Limit each key", key_actions.ask_limit_each, key_actions.limit_each),
            key_actions.limits_of_each,
        ),
        "pause-key": _of_queue(KEYS, "Pause", key_actions.ask_pause, key_actions.pause),
        "resume-key": _of_queue(KEYS, "Resume", key_actions.ask_resume, key_actions.resume),
        "limit-key": _of_queue(
            *(KEYS, "Limit", key_actions.ask_limit, key_actions.limit, key_actions.own_limits),
        ),
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
    more: dict[str, Any] = {
        "states": verb.states,
        "fields": verb.fields,
        "needs_state": verb.needs_state,
        "removes": verb.removes,
        "needs_app": verb.needs_app,
        "leaves_blocked": any(how.foresee for how in verb.how.values()),
    }
    if more["leaves_blocked"] or FAILED in verb.states:
        more["foresee"] = partial(_foresee, verb)
    return {
        verb.name: Action(SELECTED, title, title, partial(_do_selected, verb), **more),
        f"{verb.name}-all": Action(ALL, with_object(title, "all"), title, partial(_do_all, verb), **more),
    }


def _requeue_slowly() -> Action:
    """For failed tasks: what they need may not be mended yet, or not stand all of them at once."""
    return Action(
        *(ALL, "Requeue slowly", "Requeue", _do_slowly),
        states=(FAILED,),
        fields=REQUEUE_SLOWLY.fields,
        hint="It stops by itself when more than half of the last 20 have failed again. The server of this "
        "page does it: when that ends, it stops, too.",
        at_a_rate=True,
        needs_state=True,
        leaves_blocked=True,
        foresee=_foresee_slowly,
        begin=lambda site, form: {"rate": USUAL_RATE},
        manner=", slowly",
    )


def _foresee(verb: Verb, site: Site, form: Form) -> str:
    given = {name: value for asked in verb.fields for name, value in asked.given(asked.foreseen).items()}
    selections = _selections(verb, form) if form.selected else [site.selection_of(form.choice)]
    noun = "message" if form.selected else form.choice.its_state.noun
    try:
        with at_most(LONGEST_FORESIGHT):
            each = [getattr(site.messages, verb.name)(one, dry_run=True, **given) for one in selections]
    except TookTooLongError:
        stay = "Those stay whose unique keys others hold." if verb.name != REMOVE.name else ""
    else:
        stay = _stay(noun, each).strip()
    is_requeue = verb.name == REQUEUE.name
    is_lost = is_requeue and any(loses_what_fails_again(site.messages, one) for one in selections)
    return f"{LOST_AGAIN if is_lost else ''} {stay}".strip()


def _foresee_slowly(site: Site, form: Form) -> str:
    try:
        with at_most(LONGEST_FORESIGHT):
            queues = unattended(site.messages, site.selection_of(form.choice))
    except TookTooLongError:
        queues = []
    waits = "".join(f" No worker consumes from the queue {name_of(queue)}." for queue in queues)
    return f"{_foresee(REQUEUE, site, form)}{waits}".strip()


def _selections(verb: Verb, form: Form) -> list[Selection]:
    """The messages that are selected. They may have moved on to another state, unless the verb would not tell
    one state from another."""
    state = form.choice.state if verb.needs_state else None
    in_queues: dict[str, list[str]] = {}
    for id, queue in form.selected:
        in_queues.setdefault(queue, []).append(id)
    return [Selection(ids=ids, queue=queue or None, state=state) for queue, ids in in_queues.items()]


def _do_selected(verb: Verb, site: Site, form: Form, work: Work) -> str:
    """Do it. Returns what was done, how many of those that were selected had moved on, and how many stay
    because of their unique keys."""
    given = form.arguments(verb.fields, site.timezone)
    each = [getattr(site.messages, verb.name)(one, **given) for one in _selections(verb, form)]
    counts = [count for done in each for count in done.by_id.values()]
    moved = max(0, counts.count(0) - sum(done.blocked + done.without_message for done in each))
    left = f" {number(moved)} of the selected ones had moved on." if moved else ""
    left += _stay("message", each)
    return f"{verb.done.capitalize()} {plural(sum(counts), 'message')}.{left}"


def _do_all(verb: Verb, site: Site, form: Form, work: Work) -> str:
    selection = site.selection_of(form.choice)
    given = form.arguments(verb.fields, site.timezone)
    done = getattr(site.messages, verb.name)(selection, **given, progress=work.tell)
    noun = form.choice.its_state.noun
    left = _stay(noun, [done])
    return f"{verb.done.capitalize()} {plural(done.count, noun)}.{left}"


def _do_slowly(site: Site, form: Form, work: Work) -> str:
    selection, noun = site.selection_of(form.choice), form.choice.its_state.noun
    pace = work.pace = Pace(site.messages.store, form.text("rate"), work.stopping)

    def tell(count: int) -> None:
        # It ends by its pace, and says then what became of those that were sent.
        work.count = count

    done = requeue_slowly(site.messages, selection, pace, tell)
    assert done.left is not None, "with a rate, it is known"
    by = f"Stopped by {work.stopped_by}. " if done.stopped == ASKED else ""
    why = "" if by else done.stopped
    said = rest(noun, done.left, done.failed_again, done.waiting, done.unknown, why)
    return f"{by}Requeued {plural(done.count, noun)}. {said}.{_stay(noun, [done])}"


def _stay(noun: str, each: Sequence[Done]) -> str:
    """Sentences about those that stay because of their unique keys, or because they were kept without their
    messages, or have returned, and about those that leave their chords or do their work again; empty if none
    do."""
    holders = {id: holder for done in each for id, holder in done.holders.items()}
    blocked = stay(noun, sum(done.blocked for done in each), holders)
    incomplete = without_message("failed task", sum(done.without_message for done in each))
    without_body = chord_parts(sum(done.chord_parts for done in each))
    over = have_returned(sum(done.returned for done in each))
    again = run_again(sum(done.run_again for done in each))
    return "".join(f" {said}." for said in (blocked, incomplete, over, without_body, again) if said)


def _of_queue(
    about: str,
    button: str,
    question: Callable[[Site, Form], str],
    do: Callable[[Site, Form], str],
    limits_now: Callable[[Site, Form], Mapping[str, str]] | None = None,
) -> Action:
    """What is done to a queue, or to keys of it.

    Arguments:
        limits_now: makes the fields of the limits that there are, if these are what it changes.
    """
    action = Action(about, button, button, lambda site, form, work: do(site, form), question=question)
    if limits_now is None:
        return action
    no_limit = "the limit of each key" if about == KEYS else "no limit"
    hint = (
        f"An empty field means {no_limit}. Without a burst, a rate allows at once what it allows in a second."
    )
    return replace(action, fields=LIMIT_FIELDS, hint=hint, begin=limits_now)
