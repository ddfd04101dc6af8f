"""The actions on the keys of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu_redisdelay.broker.fair_keys import ON
from kombu_redisdelay.operations import fair
from kombu_redisdelay.operations.limits import LIMIT_FIELDS, in_words
from kombu_redisdelay.web.form import Form, Selected
from kombu_redisdelay.web.questions import name_of
from kombu_redisdelay.web.queue_actions import as_fields
from kombu_redisdelay.web.site import Site
from kombu_redisdelay.web.words import plural
from kombu_redisdelay.words import made, will_run


def named(key: Selected) -> str:
    """A key that is selected, for people."""
    return fair.shown_key(key.id)


def which(form: Form) -> str:
    """The keys that are selected, in words."""
    return plural(len(form.selected), "key") if len(form.selected) > 1 else f"key {named(form.selected[0])}"


def ask_fair(site: Site, form: Form) -> str:
    unused = "" if site.is_known(form.choice.queue) else " Nobody has used this queue yet."
    return f"Make {name_of(form.choice.queue)} fair? Workers then serve its keys in turn.{unused}"


def make_fair(site: Site, form: Form) -> str:
    return _switched(site, form, site.queues.make_fair)


def ask_plain(site: Site, form: Form) -> str:
    queue = form.choice.queue
    paused = will_run(*fair.count_paused(site.queues.store, queue))
    return (
        f"Make {name_of(queue)} plain? Workers then move its messages back, and serve them without turns. "
        f"{paused}{'. ' if paused else ''}The limits of keys do not hold until it is fair again."
    )


def make_plain(site: Site, form: Form) -> str:
    return _switched(site, form, site.queues.make_plain)


def limits_of_each(site: Site, form: Form) -> dict[str, str]:
    return as_fields(site.queues.key_limits(form.choice.queue))


def ask_limit_each(site: Site, form: Form) -> str:
    queue = name_of(form.choice.queue)
    return f"Limit what all workers together take of each key of {queue}?{_of_partitions(site, form)}"


def limit_each(site: Site, form: Form) -> str:
    queue = form.choice.queue
    site.queues.limit_keys(queue, **form.arguments(LIMIT_FIELDS, site.timezone))
    return f"Each key of {name_of(queue)}: {in_words(site.queues.key_limits(queue))}.{_if_plain(site, form)}"


def own_limits(site: Site, form: Form) -> dict[str, str]:
    """Those of the key, if one is selected."""
    if len(form.selected) > 1:
        return {}
    queue, key = form.choice.queue, form.selected[0].id
    return as_fields(fair.own_limits_of_key(site.queues.store, queue, key))


def ask_limit(site: Site, form: Form) -> str:
    return f"Give {which(form)} of {name_of(form.choice.queue)} other limits?{_of_partitions(site, form)}"


def limit(site: Site, form: Form) -> str:
    queue, limits = form.choice.queue, form.arguments(LIMIT_FIELDS, site.timezone)
    _each(form, lambda key: site.queues.limit_key(queue, key, **limits))
    its = site.queues.key_limits(queue, form.selected[0].id)
    own = fair.own_limits_of_key(site.queues.store, queue, form.selected[0].id)
    as_each = "" if own.is_limited else ", as each key"
    return f"{_these(form)}: {in_words(its)}{as_each}.{_if_plain(site, form)}"


def ask_pause(site: Site, form: Form) -> str:
    queue = name_of(form.choice.queue)
    return f"Pause {which(form)} of {queue} for all workers? What workers have taken, they run."


def pause(site: Site, form: Form) -> str:
    _each(form, lambda key: site.queues.pause_key(form.choice.queue, key))
    return f"{_these(form)}: paused.{_if_plain(site, form)}"


def ask_resume(site: Site, form: Form) -> str:
    return f"Let workers take messages of {which(form)} from {name_of(form.choice.queue)} again?"


def resume(site: Site, form: Form) -> str:
    _each(form, lambda key: site.queues.resume_key(form.choice.queue, key))
    return f"{_these(form)}: not paused any more.{_if_plain(site, form)}"


def _switched(site: Site, form: Form, switch: Callable[[str], None]) -> str:
    store, queue = site.queues.store, form.choice.queue
    [before] = fair.fair_states(store, [queue])
    switch(queue)
    [after] = fair.fair_states(store, [queue])
    return f"{name_of(queue)} {made(before, after)}."


def _each(form: Form, do: Callable[[str], Any]) -> None:
    """Do it to each key that is selected."""
    for each in form.selected:
        do(each.id)


def _these(form: Form) -> str:
    said = which(form)
    return f"{said[0].upper()}{said[1:]} of {name_of(form.choice.queue)}"


def _of_partitions(site: Site, form: Form) -> str:
    count = len(site.queues.store.partitions.names(form.choice.queue))
    return f" It has {count} partitions, and each limit counts in each of them." if count > 1 else ""


def _if_plain(site: Site, form: Form) -> str:
    [state] = fair.fair_states(site.queues.store, [form.choice.queue])
    return "" if state == ON else " It counts when the queue is fair."
