"""The page of the keys of one queue."""

from __future__ import annotations

from math import ceil
from time import monotonic

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from kombu_redisdelay.operations.access import natural
from kombu_redisdelay.operations.columns import KEY, KEY_COLUMNS, USUAL_SORT, own_limits
from kombu_redisdelay.operations.fair import shown_key
from kombu_redisdelay.operations.key_stats import MOST_KEYS, KeyStats, queue_keys
from kombu_redisdelay.operations.limits import in_words
from kombu_redisdelay.operations.states import READY, SCHEDULED, STATES, UNACKED
from kombu_redisdelay.operations.stats import queue_stats
from kombu_redisdelay.web.actions import actions
from kombu_redisdelay.web.choice import Choice, well_formed
from kombu_redisdelay.web.form import KEY as KEY_FIELD
from kombu_redisdelay.web.site import fields_of, render, site_of
from kombu_redisdelay.web.sorting import Column, Sorting

#: Keys that are shown.
MOST_SHOWN = 100

#: With more keys than this, there is a field to search them.
MOST_WITHOUT_SEARCH = 10

#: Seconds after which the page is brought up to date: at least so many, and so many times as long as it took
#: to read the keys.
UPDATE_AFTER, TIMES_AS_LONG = 5, 20

#: By what the keys can be sorted.
COLUMNS = tuple(
    Column(name, column.label, (lambda key: natural(key.key)) if column.kind == KEY else column.value)
    for name, column in KEY_COLUMNS.items()
    if column.is_sorted_by
)


def keys(request: Request) -> Response:
    """The keys of one queue, or those that contain a text: as many as fit on the page."""
    site, fields = site_of(request), fields_of(request)
    name, search = (well_formed(fields.get(field, "")) for field in ("name", "search"))
    search = search.strip()
    if not name:
        raise HTTPException(404, "Choose a queue first: each has a page of its keys.")
    sorting = Sorting.of(fields.get("sort", ""), COLUMNS, f"-{USUAL_SORT}")
    store, began = site.queues.store, monotonic()
    [stats] = queue_stats(store, [name])
    found = queue_keys(store, name, MOST_KEYS, search)
    took = monotonic() - began
    matching = [key for key in found.keys if search.casefold() in shown_key(key.key).casefold()]
    return render(
        request,
        "keys.html",
        queue=stats,
        found=found,
        rows=sorting.sort(matching)[:MOST_SHOWN],
        count=len(matching),
        all=found.count,
        columns=KEY_COLUMNS,
        headings={column.name: column for column in COLUMNS},
        sorting=sorting,
        search=search,
        written=well_formed(fields.get(KEY_FIELD, "")),
        has_search=bool(search) or len(found.keys) > MOST_WITHOUT_SEARCH,
        choice=Choice(queue=name),
        actions=actions(),
        states=STATES,
        first_state=READY,
        partitions=len(store.partitions.names(name)),
        is_known=site.is_known(name),
        update_after=max(UPDATE_AFTER, ceil(took * TIMES_AS_LONG)),
        state_of=_state_of,
        in_words=in_words,
        own_limits=own_limits,
    )


def _state_of(key: KeyStats) -> str:
    """The state whose list shows messages of the key."""
    if key.scheduled and not key.ready:
        return SCHEDULED
    return UNACKED if key.unacked and not key.ready else READY
