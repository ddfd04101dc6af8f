"""The actions on a queue."""

from __future__ import annotations

from kombu_redisdelay.operations.limits import LIMIT_FIELDS, AnyLimits, set_burst
from kombu_redisdelay.operations.selection import Selection
from kombu_redisdelay.operations.states import READY, STATES
from kombu_redisdelay.web.form import Form
from kombu_redisdelay.web.questions import name_of
from kombu_redisdelay.web.site import Site
from kombu_redisdelay.web.words import plural


def ask_pause(site: Site, form: Form) -> str:
    ready = _ready(site, form) if site.is_known(form.choice.queue) else "Nobody has used this queue yet."
    return f"Pause {name_of(form.choice.queue)} for all workers? {ready} What workers have taken, they run."


def pause(site: Site, form: Form) -> str:
    site.queues.pause(form.choice.queue)
    return f"{name_of(form.choice.queue)} is paused."


def ask_resume(site: Site, form: Form) -> str:
    return f"Let workers take from {name_of(form.choice.queue)} again? {_ready(site, form)}"


def resume(site: Site, form: Form) -> str:
    site.queues.resume(form.choice.queue)
    return f"{name_of(form.choice.queue)} is not paused any more."


def limits_now(site: Site, form: Form) -> dict[str, str]:
    queue = form.choice.queue
    return as_fields(site.queues.limits(queue), len(site.queues.store.partitions.names(queue)))


def ask_limit(site: Site, form: Form) -> str:
    queue = name_of(form.choice.queue)
    return f"Limit what all workers together take from {queue}? An empty field is no limit."


def limit(site: Site, form: Form) -> str:
    site.queues.limit(form.choice.queue, **form.arguments(LIMIT_FIELDS, site.timezone))
    is_limited = site.queues.limits(form.choice.queue).is_limited
    return f"{name_of(form.choice.queue)} {'is limited' if is_limited else 'has no limits any more'}."


def as_fields(limits: AnyLimits, partitions: int = 1) -> dict[str, str]:
    """The fields of a form for limits that there are.

    Arguments:
        partitions: how many share the burst.
    """
    each = {field.name: getattr(limits, field.name) for field in LIMIT_FIELDS}
    each["burst"] = set_burst(limits, partitions)
    return {name: str(value) for name, value in each.items() if value is not None}


def _ready(site: Site, form: Form) -> str:
    count = site.messages.count(Selection(queue=form.choice.queue, state=READY))
    return f"It has {plural(count, STATES[READY].described)}."
